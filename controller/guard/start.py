"""A controller's way to its guard: one that holds the connection already, else a new one."""

import logging
import os
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
    # a SUMO at a port that is not known beforehand cannot be found again
    record = _folder() / f"{host}-{port}-{order}.json" if port else None
    guard_port = port_of(record) if record is not None else None
    if guard_port is not None:
        log.info("the guard at 127.0.0.1:%d holds the connection to SUMO; going on through it", guard_port)
        return _attach(guard_port, hurried)
    command = [sys.executable, "-m", "controller.guard", "--spawned", "--watchdog-s", str(watchdog_s)]
    command += ["--order", str(order)] if order is not None else []
    command += ["--record", str(record)] if record is not None else []
    if where is not None:
        command += ["--sumo", f"{host}:{port}"]
    else:
        command += ["--clients", str(clients), "--sumo-port", str(sumo_port), "--", *arguments]
    process, guard_port = _start(command)
    log.info(
        "a guard holds the connection to SUMO; a controller may come back to it with --no-guard --sumo 127.0.0.1:%d", guard_port
    )
    try:
        return _attach(guard_port, hurried, process)
    except BaseException:
        # it would make the others wait for a controller that does not come
        process.terminate()
        raise


def _attach(port: int, hurried: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> TraciLink:
    """A link through a guard. Raises InputError where it has a controller already."""
    link = start.attach("127.0.0.1", port, hurried, process=process, through_guard=True)
    try:
        link.version()
    except SumoGone:
        link.close()
        raise InputError(
            f"the guard at 127.0.0.1:{port}, which holds the connection to SUMO, takes no controller now: it has one, or ends"
        ) from None
    return link


def _start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """A guard that has connected to SUMO, and its port. Raises InputError with what it says."""
    # a group of its own: what ends the controller's must not end the guard
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
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
        return process, int(rest)
    process.wait()
    raise InputError(rest or "the guard of the connection to SUMO did not start")


def _folder() -> Path:
    """Where this user's guards leave their records. Raises InputError where another user has taken the place."""
    folder = Path(tempfile.gettempdir()) / f"greenserve-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"{folder}: belongs to another user; set TMPDIR, or say --no-guard")
    return folder
