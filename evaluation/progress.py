"""Progress of an evaluation on stderr: finished simulations, an estimate of the remaining time, and the mean delays so
far."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self, TextIO

import numpy as np
from tqdm import tqdm

from evaluation.arms import Arm
from evaluation.simulation import Outcome

LINE_INTERVAL_S = 10.0
"""Shortest time between two lines if stderr is not a terminal."""


class Progress:
    """A bar that is updated after each simulation if the output is a terminal; else a line every LINE_INTERVAL_S at
    most."""

    def __init__(
        self, arms: Sequence[Arm], total: int, output: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Show an empty bar on a terminal.

        Args:
            arms: the arms, in the order in which they are shown.
            total: simulations of all arms.
            output: where the progress is shown (default: stderr).
            clock: the time in s.
        """
        self._total, self._output, self._clock = total, output or sys.stderr, clock
        self._delays_s: dict[str, list[float]] = {arm.name: [] for arm in arms}
        self._begin_s = self._last_line_s = clock()
        # the default lock is a semaphore between processes, which a killed process leaks
        tqdm.set_lock(threading.RLock())
        self._bar = tqdm(
            total=total,
            unit="simulation",
            file=self._output,
            disable=not self._output.isatty(),
            leave=False,
            dynamic_ncols=True,
            mininterval=0,
        )

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count finished simulations and show the progress."""
        for outcome in outcomes:
            self._delays_s[outcome.arm].append(outcome.delay_s)
        done = sum(map(len, self._delays_s.values()))
        means = ", ".join(f"{arm} {np.mean(delays):.1f} s" for arm, delays in self._delays_s.items() if delays)
        self._bar.set_postfix_str(f"delay so far: {means}", refresh=False)
        self._bar.update(len(outcomes))
        now = self._clock()
        if self._bar.disable and done < self._total and now - self._last_line_s >= LINE_INTERVAL_S:
            self._last_line_s = now
            elapsed_s = now - self._begin_s
            elapsed, remaining = map(tqdm.format_interval, (elapsed_s, elapsed_s / done * (self._total - done)))
            print(
                f"simulation {done} of {self._total}, {elapsed} elapsed, about {remaining} left; mean delay so far: "
                f"{means}",
                file=self._output,
                flush=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
