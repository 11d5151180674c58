"""The operator interface of a run; the daemon calls it before each step, and at the end."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.alarms import Alarms
from controller.config import ControllerConfig
from controller.decision_step import DecisionLoop
from controller.operator.command_queue import CommandQueue
from controller.operator.control_server import ControlServer
from controller.operator.control_service import ControlService
from controller.operator.run_state import RunState
from controller.operator.saved_modes import SavedModes, path_of
from controller.operator.watchers import Watchers
from controller.pace import Pace
from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_policies import ServedPolicies
from controller.release import Stop
from controller.sumo.connection import OperatedConnection
from controller.telemetry.health import Health
from controller.telemetry.metrics import ControllerMetrics
from protos import policy_pb2 as pb
from serving.client.tls_files import ChangingTls

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
    """Commands, pace, state and control API of one run."""

    def __init__(
        self,
        config: ControllerConfig,
        contracts: Sequence[pb.PolicyContract],
        policies: ServedPolicies | None,
        alarms: Alarms,
        metrics: ControllerMetrics,
        health: Health,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the interface, and bind the control API's port. Raises InputError.

        Args:
            config: of the controller.
            contracts: of the controlled TLs.
            policies: policies whose models can be pinned; None: no model is asked.
            alarms: of the run.
            metrics, health: of the process.
            clock: wall time in s.
        """
        self._closing = contextlib.ExitStack()
        self._health, self._clock, self.alarms, self.policies = health, clock, alarms, policies
        self._keep_alive_interval_s = min(KEEP_ALIVE_INTERVAL_S, config.city.controller.watchdog_s / 4)
        self.state = RunState(contracts, Watchers())
        self.pace = Pace(config.speed)
        metrics.report_pace(lambda: self.pace.state)
        self._server: ControlServer | None = None
        if config.control is not None:
            self._server = self._bound(config, metrics)
        try:
            saved = SavedModes(_path(config) if config.control is not None or config.page is not None else None)
        except BaseException:
            self._closing.close()
            raise
        self._closing.callback(saved.close)
        self.queue = CommandQueue(self.state, self.pace, alarms, saved, policies)
        self.page: LivePage | None = None
        """The live page, once it begins."""
        self._service = ControlService(
            self.state, self.queue, self.pace, alarms, policies, config.policy, config.sumo.attach
        )

    def _bound(self, config: ControllerConfig, metrics: ControllerMetrics) -> ControlServer:
        assert config.control is not None
        tls = ChangingTls(config.control.tls) if config.control.tls is not None else None
        server = ControlServer(config.control.address, tls)
        self._closing.callback(server.stop)
        if tls is not None:
            metrics.report_certificates(lambda: _expiries_s(tls))
            self.alarms.note_certificates("control", _expiries_s(tls))
            checking = PeriodicThread(
                "the check of the control API's certificates",
                CERTIFICATE_INTERVAL_S,
                lambda: self.alarms.note_certificates("control", _expiries_s(tls)),
            )
            checking.start()
            self._closing.callback(checking.stop)
        return server

    @property
    def port(self) -> int:
        """Port of the control API; 0 without one."""
        return self._server.port if self._server is not None else 0

    def begin(self, loop: DecisionLoop) -> None:
        """Apply what operators set before this start, and answer calls from now on."""
        self.state.second = loop.now
        self.queue.restore(loop)
        if self._server is not None:
            self._server.start(self._service)
            log.info("the control API listens on port %d", self._server.port)

    def before_step(self, loop: DecisionLoop, end_s: float, connection: OperatedConnection, stop: Stop) -> float:
        """Apply commands, and wait until the step may begin; return the simulated second at which it ends at the
        latest.

        Returns early after a stop request. Raises SumoConnectionLost, WaitAborted.
        """
        self.state.second = loop.now
        waited_since_s: float | None = None
        while True:
            self.queue.apply(loop)
            has_collected = self.page is not None and self.page.collect(connection, loop.now)
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
        self.alarms.note_pace(self.pace.state)
        if waited_since_s is not None or has_collected:
            loop.renew_readings()
        return min(end_s, self.pace.step_end_s(loop.now), self.queue.next_s)

    def end(self) -> None:
        """Refuse commands from now on: the signals are released."""
        self.queue.close("the controller hands its signals back and ends")

    def close(self) -> None:
        """End the control API; its calls in flight are answered first."""
        self.end()
        self.state.watchers.close()
        self._closing.close()


def _path(config: ControllerConfig) -> Path | None:
    """The file of the modes; None, with a warning, if there can be none. Raises InputError if another user owns its
    folder."""
    try:
        return path_of(config.city.path, config.sumo.attach, config.sumo.order)
    except OSError as error:
        log.warning("%s; a restart forgets the modes that operators set; set TMPDIR to a writable folder", error)
        return None


def _expiries_s(tls: ChangingTls) -> dict[str, float]:
    return {f"control_{file}": expiry_s for file, expiry_s in tls.expiries_s().items()}
