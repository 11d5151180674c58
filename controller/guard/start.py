"""Connect through the guard that holds the connection to SUMO, or start a guard."""

import contextlib
import fcntl
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from city import logs
from city.errors import InputError
from controller.guard import files
from controller.guard.listener import record_of, settings
from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts, SumoConnectionLost
from controller.sumo.traci_connection import TraciConnection

log = logging.getLogger("controller")


class GuardBusy(InputError):
    """The guard has a controller already, or is ending."""


def open_guarded(
    sumo: SumoAccess, watchdog_s: float, interrupts: Interrupts, end_s: float | None = None
) -> TraciConnection:
    """Open a connection to SUMO through a guard.

    Args:
        sumo: the SUMO that the guard is a client of.
        watchdog_s: wall time for which the controller may be silent.
        interrupts: the operator's requests.
        end_s: simulated second at which the controller stops; the guard waits for no controller after it.

    Raises:
        InputError: no guard can be started or reached.
        GuardBusy: the guard accepts no controller now.
    """
    host, port = sumo.attach or ("127.0.0.1", sumo.port)
    if sumo.attach is None and sumo.clients > 1:
        # Chosen in this process so that it is logged: the operator does not see the guard's log. For SUMO's only client
        # the guard chooses it, and holds it until SUMO is connected.
        sumo = replace(sumo, port=sumo.port or start.free_port())
    try:
        # a later controller finds the PID file by the port, so it needs a fixed one
        folder = files.folder(", or pass --no-guard")
        files.remove_old(folder)
        pid_file = folder / f"{host}-{port}-{sumo.order}.json" if port else None
        log_file = None
        if stat.S_ISFIFO(os.fstat(2).st_mode):
            # A process that reads this process's stderr through a pipe would wait for the end of the guard, which
            # outlives its controller.
            log_file = pid_file.with_suffix(".log") if pid_file is not None else folder / f"{os.getpid()}.log"
        guard = _find_or_spawn(pid_file, _flags(sumo, watchdog_s, end_s), log_file)
    except OSError as error:
        hint = "set TMPDIR to a writable folder, or pass --no-guard" if error.filename else "pass --no-guard"
        raise InputError(f"a guard cannot be started ({error}); {hint}") from None
    if not isinstance(guard, subprocess.Popen):
        log.info("the guard at 127.0.0.1:%d holds the connection to SUMO; continuing through it", guard["port"])
        requested = settings(sumo, watchdog_s, end_s)
        if line := _describe_kept_settings(guard, requested):
            log.warning("%s", line)
        return _attach(guard["port"], interrupts)
    if sumo.attach is None:
        start.log_clients(sumo.port, sumo.clients)
    guard_port = _port(guard)
    log.info(
        "a guard holds the connection to SUMO; a controller can reconnect with --no-guard --sumo 127.0.0.1:%d%s",
        guard_port,
        f"; its log is {log_file}" if log_file else "",
    )
    try:
        return _attach(guard_port, interrupts, guard)
    except GuardBusy:
        raise  # another controller uses it
    except BaseException:
        # without a controller the guard would make the other clients wait
        guard.terminate()
        raise


def _flags(sumo: SumoAccess, watchdog_s: float, end_s: float | None) -> list[str]:
    flags = ["--watchdog-s", str(watchdog_s)]
    flags += ["--order", str(sumo.order)] if sumo.order is not None else []
    flags += ["--end", str(end_s)] if end_s is not None else []
    if sumo.attach is not None:
        host, port = sumo.attach
        return [*flags, "--sumo", f"{host}:{port}"]
    flags += ["--gui"] if sumo.gui else []
    return [*flags, "--clients", str(sumo.clients), "--sumo-port", str(sumo.port), "--", *sumo.arguments]


def _attach(port: int, interrupts: Interrupts, process: subprocess.Popen[bytes] | None = None) -> TraciConnection:
    """Open a connection through a guard. Raises InputError; GuardBusy if it accepts no controller now."""
    connection = start.attach(("127.0.0.1", port), interrupts, process=process, through_guard=True)
    try:
        connection.version()
    except SumoConnectionLost:
        connection.close()
        raise GuardBusy(
            f"the guard at 127.0.0.1:{port}, which holds the connection to SUMO, has a controller already, or is "
            "ending; stop that controller, or try again in a few seconds"
        ) from None
    return connection


def _describe_kept_settings(guard: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """A line about settings of a running guard that differ from the requested ones; "" if none differs."""
    kept = {name: guard[name] for name in requested if name in guard and guard[name] != requested[name]}
    if not kept:
        return ""
    text = ", ".join(
        "other arguments of SUMO" if name == "arguments" else f"{name} {_shown(value)} (not {_shown(requested[name])})"
        for name, value in kept.items()
    )
    return (
        f"the guard keeps the settings that it was started with: {text}; to use yours, end it and with it the "
        f"simulation of all clients (kill {guard['pid']}), then start again"
    )


def _shown(value: float | None) -> str:
    return "unset" if value is None else f"{value:g}"


def _find_or_spawn(
    pid_file: Path | None, flags: Sequence[str], log_file: Path | None
) -> Mapping[str, Any] | subprocess.Popen[bytes]:
    """The record of the guard that has this PID file, else a new guard."""
    if pid_file is None:
        return _spawn(flags, log_file)
    with files.locked(pid_file) as lock:
        record = record_of(pid_file)
        if record is not None:
            return record
        return _spawn(["--pid-file", str(pid_file), "--lock", str(lock.fileno()), *flags], log_file, lock.fileno())


def _spawn(flags: Sequence[str], log_file: Path | None, *kept_descriptors: int) -> subprocess.Popen[bytes]:
    # -P: a user's controller.py in the working directory must not be run instead
    command = [sys.executable, "-P", "-m", "controller.guard", "--spawned", *logs.flags(), *flags]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with log_file.open("a") if log_file is not None else contextlib.nullcontext() as file:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_SH)  # held until the guard ends, so that `files.remove_old` keeps its log
        # a new session: signals to the controller's process group must not end the guard
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
            pass_fds=kept_descriptors,
            env=environment,
        )


def _port(process: subprocess.Popen[bytes]) -> int:
    """Wait until a new guard has connected to SUMO; return its port. Raises InputError with the guard's error."""
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode(errors="replace").strip()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.stdout.close()
    status, _, content = line.partition(" ")
    if status == "ready":
        return int(content)
    process.wait()
    raise InputError(
        content or "the guard of the connection to SUMO did not start; pass --no-guard to control without one"
    )
