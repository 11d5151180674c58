"""`python -m controller.guard`: SUMO's client on behalf of a controller, which connects to the guard.

A run: connect to SUMO (or start one) -> wait for a controller -> relay -> when its
connection ends, hand its signals back and keep stepping until the next one connects.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from city import config as city_config
from city import logs, program
from city.arguments import Parser, host_and_port, simulated_second, split_arguments
from city.errors import InputError
from controller.guard.handover import SignalHandover, hand_back
from controller.guard.listener import TraciListener, settings
from controller.guard.relay import POLL_INTERVAL_S, End, Relay
from controller.sumo import access, start, wire
from controller.sumo.access import SumoAccess
from controller.sumo.connection import CommandRejected, Interrupts, LanesToRead, SumoConnectionLost
from controller.sumo.traci_connection import TraciConnection, traci_errors

log = logging.getLogger("controller.guard")

ALONE_CHECK_INTERVAL_S = 1.0
"""Wall time between two checks for other clients."""
MIN_STEP_S = 1.0
"""Simulated seconds per step while no controller is connected."""
CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"


class Observers(NamedTuple):
    """Functions that the guard calls to report its state."""

    beat: Callable[[], None] = lambda: None
    """Called at every pass of the guard's loops, also while it waits for SUMO."""
    set_connected: Callable[[bool], None] = lambda _: None
    """Called when a controller connects (true) or is disconnected (false)."""


@dataclass(frozen=True)
class GuardConfig:
    """Settings of one guard, from city.toml and the flags of the same names, which explain them."""

    sumo: SumoAccess
    watchdog_s: float
    first_controller_timeout_s: float
    idle_timeout_s: float
    end_s: float
    is_only_client: bool
    ends_with_controller: bool
    """True if the guard ends after a controller that closes its connection."""
    port: int
    pid_file: Path | None
    lock: int | None
    """Descriptor of the lock under which a controller has started the guard."""
    http: tuple[str, int] | None


class Guard:
    """A connection to SUMO and a listener for controllers."""

    def __init__(
        self,
        connection: TraciConnection,
        listener: TraciListener,
        config: GuardConfig,
        is_alone: Callable[[], bool] = lambda: False,
        observers: Observers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the run.

        Args:
            connection: the connection to SUMO.
            listener: accepts controllers.
            config: the settings.
            is_alone: whether SUMO is known to have no other client.
            observers: report the guard's state, for its --http.
            clock: wall time in s.

        Raises:
            InputError: the connection is to a guard, not to SUMO.
            SumoConnectionLost: SUMO has ended.
        """
        self._connection = connection
        self._listener = listener
        self.port = listener.port
        self._config = config
        self._is_alone = is_alone
        self._beat, self._set_connected = observers or Observers()
        self._clock = clock
        number, text = connection.version()
        if text.endswith(wire.GUARDED):
            raise InputError(
                "--sumo is the address of a guard, not of SUMO; a controller connects to it with --no-guard"
            )
        self._version = wire.version_answer(number, f"{text} {wire.GUARDED}")
        self._step_s = max(MIN_STEP_S, float(connection.api.simulation.getDeltaT()))
        configured_s = float(connection.api.simulation.getEndTime())
        self._end_s = min(config.end_s, configured_s if configured_s > 0 else math.inf)
        self._is_stopped = False
        connection.track(LanesToRead(), {})

    def stop(self) -> None:
        self._is_stopped = True

    def run(self) -> int:
        """Run until the controller closes, SUMO ends or `stop` is called; return the exit code."""
        try:
            self._run()
        except (SumoConnectionLost, self._connection.connection_error, OSError) as error:
            log.info("SUMO has ended: %s", error)
        except CommandRejected as error:
            log.error("%s; the guard ends", error)
            return 1
        finally:
            # in every case, because SUMO ends for the other clients if this connection is lost
            self._listener.close()
            self._connection.close()
        return 0

    def _run(self) -> None:
        # the simulation begins when the controller connects; if it never does, the other clients must not wait forever
        controller = self._wait_for_controller()
        is_first = controller is not None
        if controller is None:
            controller = self._step_until_connected((), has_waited=True)
        while controller is not None:
            relay = Relay(
                controller,
                self._connection.socket,
                self._listener.socket,
                self._version,
                self._config.watchdog_s,
                lambda: self._is_stopped,
                self._clock,
                self._beat,
                self._connection.error_message,
            )
            self._set_connected(True)
            end = relay.run()
            self._set_connected(False)
            if end is End.SUMO_GONE:
                raise SumoConnectionLost(self._connection.error_message() or "SUMO has closed the connection")
            handovers = relay.handovers or ()
            # a controller that reconnects but cannot start because its files do not fit may reconnect after a fix
            has_ended = (
                end is End.CLOSED and self._config.ends_with_controller and (is_first or relay.handovers is not None)
            )
            if has_ended or end is End.STOPPED:
                self._listener.close()
                hand_back(self._connection, handovers, self._step_s)
                return
            reasons = {
                End.LOST: "the connection to the controller was lost"
                + (f" (it sent {relay.error})" if relay.error else ""),
                End.HUNG: f"the controller was silent for {self._config.watchdog_s:g} s and is cut off",
                End.CLOSED: "the controller closed its connection",
            }
            log.warning("%s; its signals run their fallback plans until a controller connects", reasons[end])
            controller, is_first = self._step_until_connected(handovers), False

    def _step_until_connected(
        self, handovers: Sequence[SignalHandover], has_waited: bool = False
    ) -> socket.socket | None:
        """Hand back, then step with the other clients until a controller connects; return its connection.

        Returns None if stop is requested, or no controller connects within idle_s (within
        first_s if no other client is connected).
        """
        hand_back(self._connection, handovers, self._step_s)
        now = self._connection.read(()).time_s
        deadline_s = self._clock() + self._config.idle_timeout_s
        checked_s = -math.inf
        while not self._is_stopped and self._clock() < deadline_s:
            self._beat()
            if controller := self._listener.accept(0.0):
                log.info("a controller has connected at second %g", now)
                return controller
            if self._end_s <= now:
                log.warning("no controller has connected before the simulation's end, second %g", now)
                return None
            if self._clock() - checked_s >= ALONE_CHECK_INTERVAL_S:
                checked_s = self._clock()
                if self._is_alone():
                    controller = None
                    if not has_waited:
                        log.info(
                            "no other client is connected; the simulation waits %g s for a controller",
                            self._config.first_controller_timeout_s,
                        )
                        controller = self._wait_for_controller()
                    if controller is None and not self._is_stopped:
                        log.warning(
                            "no controller has connected and no other client is connected; ending the simulation"
                        )
                    return controller
                has_waited = False
            self._connection.advance(now + self._step_s)
            now = self._connection.read(()).time_s
        if not self._is_stopped:
            log.warning(
                "no controller has connected for %g s; leaving the simulation to the other clients",
                self._config.idle_timeout_s,
            )
        return None

    def _wait_for_controller(self) -> socket.socket | None:
        """Wait without a step for a controller; None if none connects within first_s or stop is requested."""
        deadline_s = self._clock() + self._config.first_controller_timeout_s
        while not self._is_stopped and self._clock() < deadline_s:
            self._beat()
            if controller := self._listener.accept(POLL_INTERVAL_S):
                return controller
        return None


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Hold the TraCI connection, so that the simulation survives a controller crash.",
        epilog="Pass either --sumo, or -- and the arguments of a SUMO to start.",
    )
    access.add_flags(parser, clients=2)
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="loopback port for the controller (default: a free one)"
    )
    parser.add_argument(
        "--watchdog-s",
        type=float,
        metavar="S",
        help="wall time for which a controller may be silent (default: [controller] watchdog_s)",
    )
    parser.add_argument(
        "--first-controller-timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="wall time for which the simulation waits for a controller, at the start or without other clients "
        "(default: 60)",
    )
    parser.add_argument(
        "--idle-timeout-s",
        type=float,
        default=3600.0,
        metavar="S",
        help="wall time for which the guard keeps stepping the simulation without a controller (default: 3600)",
    )
    parser.add_argument(
        "--only-client", action="store_true",
        help="the SUMO at --sumo has no other client: the simulation waits for a controller whenever none is connected",
    )  # fmt: skip
    parser.add_argument(
        "--end", type=simulated_second, default=math.inf, metavar="TIME",
        help="simulated time (s or h:m:s) after which the guard waits for no controller; "
        "a controller passes its --end (default: SUMO's)",
    )  # fmt: skip
    parser.add_argument("--spawned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /healthz and /livez there, for Prometheus and liveness probes",
    )
    logs.add_flag(parser)
    parser.add_argument("--pid-file", type=Path, metavar="FILE", help="write port and process id to this file")
    return parser


def parse(argv: list[str], prog: str = "python -m controller.guard") -> GuardConfig:
    """Read the command line. Raises InputError."""
    flags, sumo_arguments = split_arguments(argv)
    args = parser(prog).parse_args(flags)
    if bool(args.sumo) == bool(sumo_arguments):
        raise InputError("pass --sumo HOST:PORT to attach, or -- and the arguments of a SUMO to start")
    if args.only_client and not args.sumo:
        raise InputError("--only-client is for a SUMO at --sumo; for a SUMO started here pass --clients 1")
    if args.gui and args.sumo:
        raise InputError(f"--gui is for a SUMO started here; start sumo-gui at --sumo {args.sumo} yourself")
    if not args.end >= 0:
        raise InputError(f"--end {args.end:g} must be a simulated second, such as 3600")
    for flag, value in (
        ("--first-controller-timeout-s", args.first_controller_timeout_s),
        ("--idle-timeout-s", args.idle_timeout_s),
    ):
        if not 0 <= value < math.inf:
            raise InputError(f"{flag} {value:g} must be a time in s, such as 60")
    return GuardConfig(
        sumo=access.from_flags(args, sumo_arguments),
        watchdog_s=_watchdog_s(args),
        first_controller_timeout_s=args.first_controller_timeout_s,
        idle_timeout_s=args.idle_timeout_s,
        end_s=args.end,
        is_only_client=args.only_client,
        ends_with_controller=args.spawned,
        port=args.port,
        pid_file=args.pid_file,
        lock=args.lock,
        http=host_and_port(args.http, "--http") if args.http else None,
    )


def _watchdog_s(args: argparse.Namespace) -> float:
    watchdog_s: float | None = args.watchdog_s
    if watchdog_s is None:
        watchdog_s = city_config.load_if_exists(args.city).controller.watchdog_s
    if not 0 < watchdog_s <= city_config.MAX_WATCHDOG_S:
        raise InputError(f"--watchdog-s {watchdog_s:g} must be above 0 and at most {city_config.MAX_WATCHDOG_S}")
    return watchdog_s


def main(argv: list[str] | None = None, prog: str = "python -m controller.guard") -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    logs.configure(argv, "guard")
    opened: list[Guard] = []

    def stop(*_: object) -> None:
        if not opened:
            raise KeyboardInterrupt
        opened[0].stop()

    def relay() -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        guard = _open(parse(argv, prog), opened)
        # if the reader has ended, the guard waits for the next controller
        with contextlib.suppress(OSError):
            print(f"ready {guard.port}", flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return guard.run()

    # a controller that starts the guard reads the error line from its stdout and reports it
    errors = sys.stdout if "--spawned" in argv else None
    return program.run(relay, lambda: "interrupted before SUMO was connected", takes_signals=False, errors=errors)


def _open(config: GuardConfig, opened: list[Guard]) -> Guard:
    """Connect to SUMO; also add the guard to `opened`, for the signal handler. Raises InputError."""
    observers = Observers()

    def beat_and_continue() -> bool:
        observers.beat()  # the guard is alive while SUMO waits for another client
        return False

    with contextlib.ExitStack() as undo:
        # before SUMO is connected, because that may wait for other clients: another controller finds this guard
        listener = TraciListener(config.port, config.pid_file, settings(config.sumo, config.watchdog_s, config.end_s))
        undo.callback(listener.close)
        if config.lock is not None:
            os.close(config.lock)
        if config.http is not None:
            # guards that controllers start have no --http; they start faster without these libraries
            from controller.guard.metrics import GuardMetrics
            from controller.telemetry.health import HttpServer

            metrics = GuardMetrics()
            undo.callback(HttpServer(config.http, metrics.registry, metrics.health).close)
            observers = Observers(metrics.health.beat, metrics.connected.set)
        connection = start.connect(config.sumo, Interrupts(beat_and_continue, beat_and_continue))
        undo.callback(connection.close)
        port = int(connection.socket.getpeername()[1])

        def is_alone() -> bool:
            # a running SUMO may have clients that this machine does not see
            return config.is_only_client if config.sumo.attach is not None else count_connections(port) == 1

        def ended(error: Exception) -> InputError:
            return InputError(f"SUMO ended before the simulation began: {connection.error_message() or error}")

        with traci_errors(ended):
            guard = Guard(connection, listener, config, is_alone, observers)
        opened.append(guard)
        undo.pop_all()
        return guard


def count_connections(port: int, tables: tuple[Path, ...] = CONNECTION_TABLES) -> int | None:
    """Number of established connections to a TCP port of this machine, as TraCI has no command for SUMO's clients; None
    if the system has no table of them."""
    count = None
    for table in tables:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # not Linux, or no IPv6
        ports = [
            int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in map(str.split, rows) if state == ESTABLISHED
        ]
        count = (count or 0) + ports.count(port)
    return count


if __name__ == "__main__":
    sys.exit(main())
