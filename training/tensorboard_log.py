"""TensorBoard's log of a training."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from city.errors import InputError


class TensorBoardLog:
    """A folder with the values of a training by step; removed if it is new and gets none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_unused = False
        """Whether the folder is new, and has no values."""
        self._writer: Any = None

    def __enter__(self) -> Self:
        """Make the folder. Raises InputError."""
        is_new = not self._folder.exists()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.strerror}; remove what is in its place, or pass another "
                "--out"
            ) from None
        if not os.access(self._folder, os.W_OK):
            raise InputError(f"{self._folder}: cannot be written; change its permissions, or pass another --out")
        self._is_unused = is_new
        return self

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Log values. Raises InputError."""
        import tensorflow as tf  # here: it takes seconds to load, and the first simulations need none

        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            self._is_unused = False
            with self._writer.as_default():
                for name, value in values.items():
                    tf.summary.scalar(name, value, step=step)
        except tf.errors.OpError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.message}; make room there, or pass another --out"
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._is_unused:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it has logs of other trainings
                self._folder.parent.rmdir()
