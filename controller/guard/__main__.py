"""`python -m controller.guard`: SUMO's client in place of a controller, which connects to it instead.

The way of a run: connect to SUMO (or start one) -> wait for a controller -> relay
-> when it is gone, hand its signals back and step on until the next one comes.
"""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from city.errors import InputError
from controller.config import address
from controller.guard.hand_back import hand_back
from controller.guard.relay import LOOK_S, End, Relay
from controller.guard.will import Bequest
from controller.sumo import start, wire
from controller.sumo.link import SumoGone
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller.guard")


class Guard:
    """A connection to SUMO and the door at which controllers knock."""

    def __init__(self, link: TraciLink, listener: socket.socket, watchdog_s: float, first_s: float) -> None:
        """`first_s`: wall time that the simulation waits for a first controller."""
        self._link, self._listener, self._watchdog_s, self._first_s = link, listener, watchdog_s, first_s
        self._step_s = max(1.0, float(link.api.simulation.getDeltaT()))
        number, words = link.api.getVersion()
        self._version = wire.version_answer(int(number), f"{words} {wire.GUARDED}")
        self._stop = False
        link.watch({}, [], {})

    def stop(self, *_: object) -> None:
        self._stop = True

    def run(self) -> int:
        """Until the controller closes, SUMO ends or `stop`; the exit code."""
        try:
            # the simulation begins with the controller, unless that never comes: the others must not stand still for it
            controller = self._wait() or self._go_on(())
            while controller is not None:
                relay = Relay(controller, self._link.socket, self._listener, self._version, self._watchdog_s, lambda: self._stop)
                end = relay.run()
                if end is End.CLOSED:
                    self._link.wait()
                    return 0
                if end is End.SUMO_GONE:
                    raise SumoGone(self._link.why() or "SUMO has closed the connection")
                told = {
                    End.LOST: "the controller has gone",
                    End.HUNG: f"the controller was silent for {self._watchdog_s:g} s and is cut off",
                    End.STOPPED: "asked to stop",
                }
                log.warning("%s; handing its signals back", told[end])
                controller = self._go_on(relay.will)
        except (SumoGone, self._link.lost) as error:
            log.info("SUMO has ended: %s", error)
            return 0
        self._link.close()
        return 0

    def _go_on(self, bequests: Sequence[Bequest]) -> socket.socket | None:
        """Hand back, then step on with the others until a controller comes; None: asked to stop."""
        hand_back(self._link, bequests, self._step_s)
        now = float(self._link.api.simulation.getTime())
        while not self._stop:
            if controller := self._accept(0.0):
                log.info("a controller has come back at second %g", now)
                return controller
            self._link.go([], now + self._step_s)
            now = self._link.read(()).time_s
        return None

    def _wait(self) -> socket.socket | None:
        """The first controller; None where none has come in time, or asked to stop."""
        end_s = time.monotonic() + self._first_s
        while not self._stop and time.monotonic() < end_s:
            if controller := self._accept(LOOK_S):
                return controller
        return None

    def _accept(self, timeout_s: float) -> socket.socket | None:
        self._listener.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            controller = self._listener.accept()[0]
            controller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return controller
        return None


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """Flags, and the arguments of a SUMO to start."""
    parser = argparse.ArgumentParser(
        prog="python -m controller.guard", description="Hold a TraCI connection for a controller that may die.",
        epilog="What stands behind -- starts a SUMO with these arguments.",
    )  # fmt: skip
    parser.add_argument("--sumo", metavar="HOST:PORT", help="attach to a running SUMO")
    parser.add_argument("--order", type=int, metavar="N", help="its place among SUMO's clients")
    parser.add_argument("--clients", type=int, default=2, metavar="N", help="clients a SUMO started here waits for")
    parser.add_argument("--sumo-port", type=int, default=0, metavar="N", help="port of a SUMO started here (default: a free one)")
    parser.add_argument("--port", type=int, default=0, help="loopback port for the controller (default: a free one)")
    parser.add_argument("--watchdog-s", type=float, default=10.0, metavar="S", help="wall time a controller may be silent for")
    parser.add_argument(
        "--first-s", type=float, default=60.0, metavar="S", help="wall time the simulation waits for a first controller"
    )
    parser.add_argument("--spawned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write port and process id there")
    at = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:at]), words[at + 1 :]


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s guard: %(message)s", stream=sys.stderr)
    args, arguments = parse(list(sys.argv[1:] if argv is None else argv))
    try:
        guard, listener = _open(args, arguments)
    except InputError as error:
        # who started it reads what it says, and tells it
        print(f"error: {error}", file=sys.stdout if args.spawned else sys.stderr, flush=True)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, guard.stop)
    port = listener.getsockname()[1]
    record = _write(args.record, port) if args.record is not None else None
    print(f"ready {port}", flush=True)
    # who started it reads no more
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        return guard.run()
    finally:
        if record is not None:
            args.record.unlink(missing_ok=True)
            record.close()


def _open(args: argparse.Namespace, arguments: Sequence[str]) -> tuple[Guard, socket.socket]:
    """Raises InputError."""
    if bool(args.sumo) == bool(arguments):
        raise InputError("say --sumo HOST:PORT to attach, or -- and the arguments of a SUMO to start")
    if not 0 < args.watchdog_s < 3600:
        raise InputError(f"--watchdog-s {args.watchdog_s:g} must lie between 0 and 3600")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", args.port))
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {args.port}: cannot be listened on ({error}); choose another") from None
    # a controller may come before SUMO's other clients have: it waits at the door
    listener.listen(4)
    if args.sumo:
        link = start.attach(*address(args.sumo, "--sumo"), hurried=lambda: False, order=args.order)
    else:
        link = start.start(arguments, args.clients, lambda: False, args.order, args.sumo_port)
    return Guard(link, listener, args.watchdog_s, args.first_s), listener


def _write(path: Path, port: int) -> TextIO:
    """The record, locked for as long as it is open: so who reads it knows that its guard lives."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    file = beside.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    json.dump({"port": port, "pid": os.getpid()}, file)
    file.flush()
    beside.replace(path)
    return file


if __name__ == "__main__":
    sys.exit(main())
