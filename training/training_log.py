"""Log of a training: its curve, TensorBoard's log, and a progress bar or a line for each update."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from city import whole_files
from city.errors import InputError, os_errors
from training.statistics import FPS, IN_CURVES, UpdateStatistics, cell, combined, of_rollouts, summary
from training.transitions import Transitions


class TrainingLog:
    """The log of one training."""

    def __init__(
        self, out: Path, label: str, updates: int, report: Callable[[str], None], shows_bar: bool = True
    ) -> None:
        """Prepare the log.

        Args:
            out: the training's folder.
            label: of the training, in the names of its files.
            updates: number of updates.
            report: called with a line per update if there is no progress bar.
            shows_bar: show a progress bar if stderr is a terminal.
        """
        self.curve, self._folder = out / f"{label}_curve.csv", out / "tensorboard" / label
        self._updates, self._report, self._shows_bar = updates, report, shows_bar
        self.rows: list[str] = []
        """Lines of the curve, the header first; a part of the training's state."""
        self._is_unused = False
        """TensorBoard's folder is new, and has no values."""
        self._writer: Any = None

    def __enter__(self) -> Self:
        """Make TensorBoard's folder, and begin to measure the time. Raises InputError."""
        is_new = not self._folder.exists()
        with os_errors(f"{self._folder}: cannot be written", "remove what is in its place, or pass another --out"):
            self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK):
            raise InputError(f"{self._folder}: cannot be written; change its permissions, or pass another --out")
        self._is_unused = is_new
        self._decisions, self._started_s = 0, time.monotonic()
        # tqdm's default lock is a semaphore between processes, which a killed process leaks
        tqdm.set_lock(threading.RLock())
        done = max(0, len(self.rows) - 1)
        self._bar = tqdm(total=self._updates, initial=done, unit="update", disable=None if self._shows_bar else True)
        return self

    def add(
        self,
        values: Mapping[str, float | None],
        statistics: Mapping[str, UpdateStatistics],
        transitions: Sequence[Transitions],
        text: str,
    ) -> None:
        """Log an update. Raises InputError.

        Args:
            values: columns of the curve before those of the learning; the first one is the step, and None was not
                measured.
            statistics: by kind of actor.
            transitions: of the update's episodes.
            text: a clause about the update.
        """
        # simulations, updates and evaluations take their time; a run that this one resumes does not count
        self._decisions += sum(len(tl.reward) for tl in transitions)
        learning = {FPS: self._decisions / (time.monotonic() - self._started_s)}
        learning |= of_rollouts(transitions) | combined(list(statistics.values()))
        self.rows = self.rows or [",".join((*values, *IN_CURVES))]
        cells = [*values.values(), *(learning.get(name) for name in IN_CURVES)]
        self.rows.append(",".join(map(cell, cells)))
        whole_files.write(self.curve, "\n".join(self.rows) + "\n")
        (_, step), *others = values.items()
        # with several kinds of actors, TensorBoard has the statistics of each
        kinds = statistics if len(statistics) > 1 else {}
        by_kind = {f"{name}/{kind}": value for kind, part in kinds.items() for name, value in combined([part]).items()}
        self._add_to_tensorboard({**dict(others), **learning, **by_kind}, step)
        self._line = f"{text}; {summary(learning)}"

    def show(self) -> None:
        """Show the update that was added last; after it was saved, because a reader may interrupt the training."""
        self._bar.update()
        self._bar.set_postfix_str(self._line)
        if self._bar.disable:
            self._report(f"update {len(self.rows) - 1} of {self._updates}: {self._line}")

    def _add_to_tensorboard(self, values: Mapping[str, float | None], step: float | None) -> None:
        import tensorflow as tf  # here: it takes seconds to load, and the first simulations need none

        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            self._is_unused = False
            with self._writer.as_default():
                for name, value in values.items():
                    if value is not None:
                        tf.summary.scalar(name, value, step=step)
        except tf.errors.OpError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.message}; make room there, or pass another --out"
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if self._writer is not None:
            self._writer.close()
        if self._is_unused:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it has logs of other trainings
                self._folder.parent.rmdir()
