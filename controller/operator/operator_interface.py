"""The operator interface of a run; the daemon calls it before each step, and at the end."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from city.errors import InputError
from city.ledger_file import FILE as LEDGER
from city.network import StreetNetwork
from controller.alarms import Alarms
from controller.assembly import Start
from controller.config import ControllerConfig
from controller.control_address import ControlAddress, listen
from controller.decision_step import DecisionLoop
from controller.operator import operator_token
from controller.operator.command_queue import CommandQueue
from controller.operator.control_server import ControlServer
from controller.operator.open_rollouts import OpenRollouts
from controller.operator.operator_token import OperatorToken
from controller.operator.run_state import RunState
from controller.operator.saved_modes import SavedModes, path_of
from controller.operator.service import OperatorService
from controller.pace import Pace
from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_policies import ServedPolicies
from controller.release import Stop
from controller.sumo.connection import OperatedConnection, SumoConnection
from controller.telemetry.health import Health
from controller.telemetry.metrics import ControllerMetrics
from controller.telemetry.traffic import TrafficMeter
from protos import policy_pb2 as pb
from serving.client.tls_files import ChangingTls
from signals.movement_names import MovementNames

if TYPE_CHECKING:  # the extra `page` is not installed everywhere
    from controller.operator.page.live import LivePage

log = logging.getLogger("controller")

WAIT_INTERVAL_S = 0.2
"""Wall time after which a wait looks for a stop request and shows that the process is alive."""
KEEP_ALIVE_INTERVAL_S = 1.0
"""Wall time between two messages to the guard while the run waits; less for a short watchdog."""
CERTIFICATE_INTERVAL_S = 60.0
"""Wall time between two looks at the expiry of the control API's certificates."""


class OperatorInterface:
    """Commands, pace, state, control API and page of one run."""

    def __init__(
        self,
        config: ControllerConfig,
        contracts: Sequence[pb.PolicyContract],
        policies: ServedPolicies | None,
        alarms: Alarms,
        metrics: ControllerMetrics,
        health: Health,
        traffic: TrafficMeter,
        names: Mapping[str, MovementNames] = {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the interface, and bind the ports of the control API and the page. Raises InputError.

        Args:
            config: of the controller.
            contracts: of the controlled TLs.
            policies: policies whose models can be pinned; None: no model is asked.
            alarms: of the run.
            metrics, health: of the process.
            traffic: of the run.
            names: by signal, the names of its movements.
            clock: wall time in s.
        """
        self._health = health
        self._clock = clock
        self._alarms = alarms
        self._keep_alive_interval_s = min(KEEP_ALIVE_INTERVAL_S, config.city.controller.watchdog_s / 4)
        self.state = RunState(contracts, keeps_history=config.page is not None, names=names)
        """A subscriber of the decision events."""
        self.pace = Pace(config.speed)
        metrics.report_pace(lambda: self.pace.state)
        self._server: ControlServer | None = None
        self._begin_page: Callable[[StreetNetwork, SumoConnection, Start], LivePage] | None = None
        self._page: LivePage | None = None
        is_reached = config.control is not None or config.page is not None
        token = _token() if is_reached else OperatorToken(operator_token.new_token(), None)
        with contextlib.ExitStack() as closing:
            if config.control is not None:
                self._server = _bound(config.control, token.value, alarms, closing)
            saved = SavedModes(_path(config) if is_reached else None)
            closing.callback(saved.close)
            self.queue = CommandQueue(self.state, self.pace, alarms, saved, policies)
            rollouts = OpenRollouts(config.city.path.parent / LEDGER)
            if is_reached:
                rollouts.lines()  # verifies a long ledger before the first step, not beside one
            self._service = OperatorService(
                self.state, self.queue, self.pace, alarms, policies, config.policy, config.sumo.attach, rollouts
            )
            if config.page is not None:
                self._begin_page = _page(config, config.page, self._service, token, traffic, closing)
            self._closing = closing.pop_all()

    def begin(self, loop: DecisionLoop, street: StreetNetwork, connection: SumoConnection, start: Start) -> None:
        """Apply what operators set before this start, and answer calls and browsers from now on. Raises InputError."""
        self.state.begin(loop.now)
        self.queue.restore(loop)
        if self._server is not None:
            self._server.start(self._service)
            log.info("the control API listens on port %d", self._server.port)
        if self._begin_page is not None:
            self._page = self._begin_page(street, connection, start)
            self._closing.callback(self._page.close)

    def before_step(self, loop: DecisionLoop, end_s: float, connection: OperatedConnection, stop: Stop) -> float:
        """Apply commands, and wait until the step may begin; return the simulated second at which it ends at the
        latest.

        Returns early after a stop request. Raises SumoConnectionLost, WaitAborted.
        """
        self.state.second = loop.now
        waited_since_s: float | None = None
        while True:
            self.queue.apply(loop)
            has_collected = self._page is not None and self._page.collector.collect(connection, loop.now)
            wall_s = self._clock()
            wait_s = self.pace.wait_s(loop.now, wall_s)
            if wait_s <= 0.0 or stop.is_requested():
                break
            if waited_since_s is None:
                waited_since_s = kept_alive_s = wall_s
            self._health.beat()
            connection.check_open()
            if wall_s - kept_alive_s >= self._keep_alive_interval_s:
                connection.keep_alive()
                kept_alive_s = wall_s
            self.queue.wait(min(wait_s, WAIT_INTERVAL_S, self._keep_alive_interval_s))
        self.pace.begin_step(loop.now, self._clock())
        self._alarms.note_pace(self.pace.state)
        if waited_since_s is not None or has_collected:
            loop.renew_readings()
        return min(end_s, self.pace.step_end_s(loop.now), self.queue.next_s)

    def end(self, failure: str = "") -> None:
        """Refuse commands from now on: the signals are released. `failure`: the error that ends the run."""
        self.state.failure = self.state.failure or failure
        self.queue.close("the controller hands its signals back and ends")

    def close(self) -> None:
        """End the page and the control API; calls in flight are answered first."""
        self.end()
        self.state.watchers.close()
        self._closing.close()


def _bound(control: ControlAddress, token: str, alarms: Alarms, closing: contextlib.ExitStack) -> ControlServer:
    """The control API's server, which listens, and its certificates are watched, until `closing` ends."""
    tls = ChangingTls(control.tls) if control.tls is not None else None
    server = ControlServer(control.address, tls, token)
    closing.callback(server.stop)
    if tls is not None:

        def note() -> None:
            expiries_s = {f"control_{file}": expiry_s for file, expiry_s in tls.expiries_s().items()}
            alarms.note_certificates("control", expiries_s)

        note()
        checking = PeriodicThread("the check of the control API's certificates", CERTIFICATE_INTERVAL_S, note)
        checking.start()
        closing.callback(checking.stop)
    return server


def _page(
    config: ControllerConfig,
    address: tuple[str, int],
    service: OperatorService,
    token: OperatorToken,
    traffic: TrafficMeter,
    closing: contextlib.ExitStack,
) -> Callable[[StreetNetwork, SumoConnection, Start], "LivePage"]:
    """Listen for the live page until `closing` ends; return what begins it. Raises InputError."""
    try:
        from controller.operator.page.live import LivePage
    except ImportError as error:
        raise InputError(f"--page needs {error.name}; install greenserve[page], or leave --page out") from None
    listener = listen(*address, "--page")
    closing.callback(listener.close)
    return partial(LivePage, config, listener, service, token, traffic)


def _token() -> OperatorToken:
    """The token of commands; one of this run, with a warning, if it cannot be kept. Raises InputError as `_path`."""
    try:
        return operator_token.kept()
    except OSError as error:
        log.warning(
            "%s; greenserve ctl cannot read the token of commands, and pages that are open need the new address after "
            "a restart; set TMPDIR to a writable folder", error,
        )  # fmt: skip
        return OperatorToken(operator_token.new_token(), None)


def _path(config: ControllerConfig) -> Path | None:
    """The file of the modes; None, with a warning, if there can be none. Raises InputError if another user owns its
    folder."""
    try:
        return path_of(config.city.path, config.sumo.attach, config.sumo.order)
    except OSError as error:
        log.warning("%s; a restart forgets the modes that operators set; set TMPDIR to a writable folder", error)
        return None
