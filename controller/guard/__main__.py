"""`python -m controller.guard`: SUMO's client in place of a controller, which connects to it instead.

The way of a run: connect to SUMO (or start one) -> wait for a controller -> relay
-> when it is gone, hand its signals back and step on until the next one comes.
"""

import argparse
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from city.errors import InputError
from controller.config import address, check_numbers
from controller.guard.door import Door
from controller.guard.hand_back import hand_back
from controller.guard.relay import LOOK_S, End, Relay
from controller.guard.will import Bequest
from controller.sumo import start, wire
from controller.sumo.link import SumoGone, SumoRefused
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller.guard")


class Guard:
    """A connection to SUMO and the door at which controllers knock."""

    def __init__(
        self,
        link: TraciLink,
        door: Door,
        watchdog_s: float,
        first_s: float,
        idle_s: float,
        leaves: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wall times: `first_s` that the simulation waits for a first controller, `idle_s` that it goes on without one.

        `leaves`: whether the guard ends with a controller that ends in order.

        Raises InputError, or SumoGone where SUMO has ended.
        """
        self._link, self._door, self._clock = link, door, clock
        self._watchdog_s, self._first_s, self._idle_s, self._leaves = watchdog_s, first_s, idle_s, leaves
        number, words = link.version()
        if words.endswith(wire.GUARDED):
            raise InputError("--sumo leads to a guard already; a controller goes through it with --no-guard")
        self._version = wire.version_answer(number, f"{words} {wire.GUARDED}")
        self._step_s = max(1.0, float(link.api.simulation.getDeltaT()))
        self._end_s = float(link.api.simulation.getEndTime())
        """Simulated; 0 or less: none."""
        self._stop = False
        link.watch({}, [], {})

    @property
    def port(self) -> int:
        return self._door.port

    def stop(self) -> None:
        self._stop = True

    def run(self) -> int:
        """Until the controller closes, SUMO ends or `stop`; the exit code."""
        try:
            self._run()
        except (SumoGone, self._link.lost, OSError) as error:
            log.info("SUMO has ended: %s", error)
        except SumoRefused as error:
            log.error("%s; the guard ends", error)
            return 1
        finally:
            # whatever happened: SUMO would end for the others if this client just dropped
            self._door.close()
            self._link.close()
        return 0

    def _run(self) -> None:
        # the simulation begins with the controller, unless that never comes: the others must not stand still for it
        controller = self._wait()
        is_first = controller is not None
        if controller is None:
            controller = self._go_on(())
        while controller is not None:
            relay = Relay(
                controller,
                self._link.socket,
                self._door.listener,
                self._version,
                self._watchdog_s,
                lambda: self._stop,
                self._clock,
            )
            end = relay.run()
            if end is End.SUMO_GONE:
                raise SumoGone(self._link.why() or "SUMO has closed the connection")
            bequests = relay.will or ()
            # one that comes back and cannot begin, as its files do not fit, may come again once they are mended
            is_over = end is End.CLOSED and self._leaves and (is_first or relay.will is not None)
            if is_over or end is End.STOPPED:
                self._door.close()
                hand_back(self._link, bequests, self._step_s)
                return
            told = {
                End.LOST: "the controller has gone" + (f" (it said {relay.why})" if relay.why else ""),
                End.HUNG: f"the controller was silent for {self._watchdog_s:g} s and is cut off",
                End.CLOSED: "the controller has left",
            }
            log.warning("%s; its signals run their plans until one comes back", told[end])
            controller, is_first = self._go_on(bequests), False

    def _go_on(self, bequests: Sequence[Bequest]) -> socket.socket | None:
        """Hand back, then step on with the others until a controller comes; None: asked to stop, or none has come for long."""
        hand_back(self._link, bequests, self._step_s)
        now = float(self._link.api.simulation.getTime())
        end_s = self._clock() + self._idle_s
        while not self._stop and self._clock() < end_s:
            if controller := self._door.accept(0.0):
                log.info("a controller has come at second %g", now)
                return controller
            if 0 < self._end_s <= now:
                log.warning("no controller has come up to the simulation's end, second %g", now)
                return None
            self._link.go(now + self._step_s)
            now = self._link.read(()).time_s
        if not self._stop:
            log.warning("no controller has come for %g s; leaving the simulation to the others", self._idle_s)
        return None

    def _wait(self) -> socket.socket | None:
        """The first controller; None where none has come in time, or asked to stop."""
        end_s = self._clock() + self._first_s
        while not self._stop and self._clock() < end_s:
            if controller := self._door.accept(LOOK_S):
                return controller
        return None


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """Flags, and the arguments of a SUMO to start. Raises InputError."""
    parser = argparse.ArgumentParser(
        prog="python -m controller.guard", description="Hold a TraCI connection for a controller that may die.",
        epilog="What stands behind -- starts a SUMO with these arguments.",
    )  # fmt: skip
    parser.add_argument("--sumo", metavar="HOST:PORT", help="attach to a running SUMO")
    parser.add_argument("--order", type=int, metavar="N", help="its place among SUMO's clients (default: 1)")
    parser.add_argument("--clients", type=int, default=2, metavar="N", help="clients a SUMO started here waits for")
    parser.add_argument("--sumo-port", type=int, default=0, metavar="N", help="port of a SUMO started here (default: a free one)")
    parser.add_argument("--port", type=int, default=0, help="loopback port for the controller (default: a free one)")
    parser.add_argument("--watchdog-s", type=float, default=10.0, metavar="S", help="wall time a controller may be silent for")
    parser.add_argument(
        "--first-s", type=float, default=60.0, metavar="S", help="wall time the simulation waits for a first controller"
    )
    parser.add_argument(
        "--idle-s",
        type=float,
        default=3600.0,
        metavar="S",
        help="wall time the guard stays in the simulation without a controller",
    )
    parser.add_argument("--spawned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write port and process id there")
    at = words.index("--") if "--" in words else len(words)
    args, arguments = parser.parse_args(words[:at]), words[at + 1 :]
    if bool(args.sumo) == bool(arguments):
        raise InputError("say --sumo HOST:PORT to attach, or -- and the arguments of a SUMO to start")
    check_numbers(args.clients, args.order, args.sumo_port)
    if args.order is None and (args.sumo or args.clients > 1):
        args.order = 1  # as a controller: SUMO ends for all where one of several clients has no number
    if not 0 < args.watchdog_s < 3600:
        raise InputError(f"--watchdog-s {args.watchdog_s:g} must lie between 0 and 3600")
    for flag, value in (("--first-s", args.first_s), ("--idle-s", args.idle_s)):
        if not 0 <= value < math.inf:
            raise InputError(f"{flag} {value:g} must be a time in s, such as 60")
    return args, arguments


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s guard: %(message)s", stream=sys.stderr)
    words = list(sys.argv[1:] if argv is None else argv)
    opened: list[Guard] = []

    def stop(*_: object) -> None:
        if not opened:
            raise KeyboardInterrupt
        opened[0].stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        args, arguments = parse(words)
        guard = _open(args, arguments, opened)
    except InputError as error:
        # who started it reads what it says, and tells it
        print(f"error: {error}", file=sys.stdout if "--spawned" in words else sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    # who started it reads no more, or is gone already: then the guard is there for the next one
    with contextlib.suppress(OSError):
        print(f"ready {guard.port}", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return guard.run()


def _open(args: argparse.Namespace, arguments: Sequence[str], opened: list[Guard]) -> Guard:
    """The guard, which is put into `opened` as well. Raises InputError."""
    with contextlib.ExitStack() as undo:
        door = Door(args.port, args.record)
        undo.callback(door.close)
        if args.lock is not None:
            os.close(args.lock)  # the next controller finds the record
        if args.sumo:
            link = start.attach(*address(args.sumo, "--sumo"), hurried=lambda: False, order=args.order)
        else:
            link = start.start(arguments, args.clients, lambda: False, args.order, args.sumo_port)
        undo.callback(link.close)
        try:
            guard = Guard(link, door, args.watchdog_s, args.first_s, args.idle_s, leaves=args.spawned)
        except (SumoGone, link.lost, OSError) as error:
            raise InputError(f"SUMO ended before the simulation began: {link.why() or error}") from None
        opened.append(guard)
        undo.pop_all()
        return guard


if __name__ == "__main__":
    sys.exit(main())
