"""A helper process that reads files which may be corrupt or hostile.

A library may loop forever or crash on a corrupt file, and a crafted file may allocate
any amount of memory. Therefore a helper process reads the file, within a time and a
memory limit, and returns plain values (`plain_answers`). After the time limit the exporter ends the
helper and refuses the file. One helper reads all files of its kind in a run.

Graphs of training have one, too (`run_in_helper`): the exporter's own process runs nothing of a checkpoint's graph. It
sends a function with its arguments, such as the one that rebuilds an actor. One helper serves all checkpoints of a run,
because importing TensorFlow takes seconds.
"""

import atexit
import functools
import importlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Generic, TypeVar

from city.errors import InputError, ProgramFailed, first_line, library_errors
from export.checkpoints import plain_answers, regular_files

READ_TIMEOUT_S = 20
"""Reading a weights file normally takes milliseconds."""
GRAPH_TIMEOUT_S = 60
"""Limit for each function on a graph: rebuilding an actor normally takes less than a second, importing Keras some."""
START_TIMEOUT_S = 60.0
"""Limit for the start of the helper, on a machine under load."""
REMEDY = "; copy the file again, or pass another one"
"""For errors of a library that reads a damaged file."""
MAX_MEMORY_BYTES = 6 << 30
"""Limit for reading a file, in addition to the memory of the imported libraries."""
MAX_CACHED_FILES = 2
"""A policy, and the statistics beside it."""
T = TypeVar("T")
_is_helper = False
"""True in a helper process, which reads further files itself."""


class Helper(Generic[T]):
    """A process that calls one function of a module."""

    def __init__(
        self,
        contents: Callable[..., T],
        kind: str,
        libraries: Sequence[str] = (),
        advice: str = "the file may be corrupt: save it again",
    ) -> None:
        """Store the settings; the process starts with the first read.

        Args:
            contents: the function, which reads a file.
            kind: the expected kind of file, for messages, such as `HDF5 weights`.
            libraries: modules to import at the start, so that importing them does not count as reading a file.
            advice: the probable cause if a read crashes or reaches the time limit, and its remedy.
        """
        self._contents, self._kind, self._libraries, self._advice = contents, kind, tuple(libraries), advice
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._read = functools.lru_cache(maxsize=MAX_CACHED_FILES)(lambda path, _time_ns, _size: self.call(path))

    def read(self, path: Path) -> T:
        """Call `contents(path)` in the helper, unless the file was read and has not changed.

        Raises InputError if it cannot be read.
        """
        status = regular_files.check(path)
        return self._read(path, status.st_mtime_ns, status.st_size)

    def call(self, *arguments: Any, limit_s: int | None = None) -> T:
        """Call `contents(*arguments)` in the helper, within a limit in s (default: READ_TIMEOUT_S).

        Raises InputError if it fails.
        """
        if _is_helper:
            with library_errors(f"cannot be read as {self._kind}", remedy=REMEDY):
                return self._contents(*arguments)
        limit_s = limit_s or READ_TIMEOUT_S
        try:
            connection = self._connect()
            connection.send((limit_s, arguments))
            if not connection.poll(2 * limit_s):
                raise EOFError
            result: T
            result, reason = plain_answers.decode(connection.recv_bytes())
        except (OSError, EOFError, ValueError):
            # the helper crashed, its own alarm ended it, or its answer is none
            self.close()
            reason = f"the reader crashed or did not finish within {limit_s} s; {self._advice}"
            raise InputError(f"cannot be read as {self._kind}: {reason}") from None
        except BaseException:
            self.close()  # after an interrupt, a late result must not be read as that of the next file
            raise
        if reason is not None:
            raise InputError(f"cannot be read as {self._kind}: {reason}")
        return result

    def close(self) -> None:
        """Kill the helper process."""
        if self._running is not None:
            process, connection = self._running
            self._running = None
            connection.close()
            process.kill()
            process.wait()

    def _connect(self) -> Connection:
        if self._running is None:
            parent_end, child_end = Pipe()
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            function = f"{self._contents.__module__!r}, {self._contents.__name__!r}"
            call = f"serve({child_end.fileno()}, {function}, {self._libraries!r})"
            # a new interpreter: a fork would copy TensorFlow's threads and locks
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; {call}"],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # no GPU: the exporter's own process may have taken its memory
                env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
            )
            self._running = process, parent_end
            child_end.close()
            atexit.register(self.close)
            if not parent_end.poll(START_TIMEOUT_S):
                raise EOFError
            parent_end.recv_bytes()
        return self._running[1]


def run_in_helper(function: Callable[..., T], *arguments: Any) -> T:
    """Call a module's function in the helper of graphs; its result is one of `plain_answers`.

    Raises:
        InputError: the function raised it, or the helper crashed or reached a limit.
        ProgramFailed, OSError: the function raised it.
    """
    result: T
    result, error = _GRAPHS.call(function, arguments, limit_s=GRAPH_TIMEOUT_S)
    if error is not None:
        raise error
    return result


def result_or_error(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """(the function's result, None) or (None, its error); called in the helper process."""
    try:
        return function(*arguments), None
    except (InputError, ProgramFailed, OSError) as error:
        return None, error


_GRAPHS = Helper(
    result_or_error,
    "a graph of training",
    libraries=["export.single_model"],
    advice="it may loop endlessly: save the actor alone, as a function of the observation",
)


def serve(descriptor: int, module: str, function: str, libraries: Sequence[str]) -> None:
    """Run the helper's loop until the exporter closes the connection.

    It receives (limit in s, arguments) and sends (contents, None) or (None, the error's text).
    """
    global _is_helper
    _is_helper = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exporter handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for library in libraries:
        importlib.import_module(library)
    contents = getattr(importlib.import_module(module), function)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection = Connection(descriptor)
    connection.send_bytes(b"ready")
    while True:
        try:
            limit_s, arguments = connection.recv()
        except EOFError:
            return
        # an alarm without a handler ends the process even inside a library
        signal.alarm(limit_s)
        try:
            answer = plain_answers.encode((contents(*arguments), None))
        except Exception as error:  # noqa: BLE001 - libraries raise many kinds for a damaged file
            # a reader of ours has a remedy of its own
            remedy = "" if isinstance(error, (InputError, ValueError)) else REMEDY
            answer = plain_answers.encode((None, (first_line(error) or type(error).__name__) + remedy))
        signal.alarm(0)
        connection.send_bytes(answer)
