"""A controller's way to its guard: one that holds the connection already, else a new one."""

import contextlib
import fcntl
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from city.errors import InputError
from controller.guard.door import port_of
from controller.sumo import start
from controller.sumo.link import SumoGone
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller")


def open_guarded(
    where: tuple[str, int] | None,
    arguments: Sequence[str],
    clients: int,
    order: int | None,
    sumo_port: int,
    watchdog_s: float,
    hurried: Callable[[], bool],
) -> TraciLink:
    """A link to SUMO through a guard: to the SUMO at `where`, or to one that is started with `arguments`.

    Raises InputError.
    """
    host, port = where or ("127.0.0.1", sumo_port)
    flags = ["--watchdog-s", str(watchdog_s)]
    flags += ["--order", str(order)] if order is not None else []
    if where is not None:
        flags += ["--sumo", f"{host}:{port}"]
    else:
        flags += ["--clients", str(clients), "--sumo-port", str(sumo_port), "--", *arguments]
    try:
        # a SUMO at a port that is not known beforehand cannot be found again
        record = _folder() / f"{host}-{port}-{order}.json" if port else None
        said = _said(record)
        guard = _find_or_spawn(record, flags, said)
    except OSError as error:
        hint = "set TMPDIR to a folder that can be written, or say --no-guard" if error.filename else "say --no-guard"
        raise InputError(f"a guard cannot be started ({error}); {hint}") from None
    if isinstance(guard, int):
        log.info("the guard at 127.0.0.1:%d holds the connection to SUMO; going on through it", guard)
        return _attach(guard, hurried)
    guard_port = _port(guard)
    log.info(
        "a guard holds the connection to SUMO; a controller may come back to it with --no-guard --sumo 127.0.0.1:%d%s",
        guard_port,
        f"; what it says is in {said}" if said else "",
    )
    try:
        return _attach(guard_port, hurried, guard)
    except Refused:
        raise  # it has another controller, who needs it
    except BaseException:
        # it would make the others wait for a controller that does not come
        guard.terminate()
        raise


class Refused(InputError):
    """The guard takes no controller."""


def _attach(port: int, hurried: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> TraciLink:
    """A link through a guard. Raises InputError; Refused where it has a controller already."""
    link = start.attach("127.0.0.1", port, hurried, process=process, through_guard=True)
    try:
        link.version()
    except SumoGone:
        link.close()
        raise Refused(
            f"the guard at 127.0.0.1:{port}, which holds the connection to SUMO, takes no controller now: it has one, or ends"
        ) from None
    return link


def _said(record: Path | None) -> Path | None:
    """Where a guard writes what it says; None: where this process does.

    It outlives its controller: whoever reads that to its end, through a pipe, would wait for the guard.
    """
    if not stat.S_ISFIFO(os.fstat(2).st_mode):
        return None
    return record.with_suffix(".log") if record is not None else _folder() / f"{os.getpid()}.log"


def _find_or_spawn(record: Path | None, flags: Sequence[str], said: Path | None) -> int | subprocess.Popen[bytes]:
    """The port of the guard whose record that is, else a new guard."""
    if record is None:
        return _spawn(flags, said)
    with record.with_suffix(".lock").open("w") as lock:
        # of two controllers that start at once the second waits until the first one's guard can be found
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = port_of(record)
        if found is not None:
            return found
        return _spawn(["--record", str(record), "--lock", str(lock.fileno()), *flags], said, lock.fileno())


def _spawn(flags: Sequence[str], said: Path | None, *kept: int) -> subprocess.Popen[bytes]:
    """A guard. `kept`: files that stay open in it."""
    command = [sys.executable, "-m", "controller.guard", "--spawned", *flags]
    with said.open("a") if said is not None else contextlib.nullcontext() as file:
        # a group of its own: what ends the controller's must not end the guard
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, start_new_session=True, pass_fds=kept)


def _port(process: subprocess.Popen[bytes]) -> int:
    """The port of a guard, once it has connected to SUMO. Raises InputError with what it says."""
    assert process.stdout is not None
    try:
        told = process.stdout.readline().decode(errors="replace").strip()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.stdout.close()
    word, _, rest = told.partition(" ")
    if word == "ready":
        return int(rest)
    process.wait()
    raise InputError(rest or "the guard of the connection to SUMO did not start")


def _folder() -> Path:
    """Where this user's guards leave their records. Raises InputError where another user has taken the place."""
    folder = Path(tempfile.gettempdir()) / f"greenserve-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"{folder}: belongs to another user; set TMPDIR, or say --no-guard")
    return folder
