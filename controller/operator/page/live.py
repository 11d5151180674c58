"""The live page of a running controller: its vehicles, models and server put together."""

import logging
import shlex
import socket
import sys
from datetime import date
from pathlib import Path

from city import street_shapes
from city.network import StreetNetwork
from controller.assembly import Start
from controller.config import ControllerConfig
from controller.operator.operator_token import OperatorToken
from controller.operator.page.collector import Collector
from controller.operator.page.exports import Exports
from controller.operator.page.server import PageServer
from controller.operator.page.site import Site
from controller.operator.page.street_data import StreetData
from controller.operator.service import OperatorService
from controller.operator.tl_layout import TlLayout
from controller.recording.run_start import encode_signal, plan_digest
from controller.recording.traffic_minutes import Minutes, path_of, read
from controller.sumo.connection import SumoConnection
from controller.telemetry.traffic import TrafficMeter
from signals.movement_names import MovementNames

log = logging.getLogger("controller")


class LivePage:
    """The page of one run."""

    def __init__(
        self,
        config: ControllerConfig,
        listener: socket.socket,
        service: OperatorService,
        token: OperatorToken,
        traffic: TrafficMeter,
        street: StreetNetwork,
        connection: SumoConnection,
        start: Start,
    ) -> None:
        """Answer browsers from now on. Raises InputError.

        Args:
            config: of the controller.
            listener: listens at the page's address.
            service: of the run.
            token: of commands.
            traffic: of the run.
            street: the network.
            connection: to SUMO.
            start: of the run.
        """
        city = config.city
        known = service.state.layout
        layout = TlLayout(known.contracts.values(), connection.lanes, known.names)
        shapes = street_shapes.read(street.net_file)
        data = StreetData(
            layout,
            street,
            shapes,
            city.path.resolve().parent.name,
            config.driver or "",
            server=service.alarms.server,
            if_lost=_if_lost(config),
        )
        self.collector = Collector(data, set(connection.api.trafficlight.getIDList()))
        self._server = PageServer(
            Site(listener, data, token.value),
            service,
            Exports(service.policies, city.serving.models_dir),
            self.collector,
            traffic,
            _earlier_traffic(config.record, layout, start),
        )
        self._server.start()
        value, file = token
        # a log may be readable by other users, a terminal is the operator's
        shown = value if sys.stderr.isatty() else f"$(cat {shlex.quote(str(file))})" if file else ""
        log.info("the live page: %s%s", self._server.site.url, shown and f"#token={shown}")

    def close(self) -> None:
        self._server.stop()


def _earlier_traffic(folder: Path | None, layout: TlLayout, start: Start) -> Minutes:
    """The traffic of earlier runs of the same plan in the record's folder, by simulated minute."""
    if folder is None:
        return {}
    signals = [encode_signal(id, running, MovementNames()) for id, running in start.signals.items()]
    path = path_of(folder, plan_digest(layout.contracts.values(), signals))
    try:
        minutes, invalid = read(path, date.today())
    except OSError as error:
        log.warning("the page compares traffic with no earlier record (%s)", error)
        return {}
    of = ", ".join(dict.fromkeys(each["of"] for each in minutes.values())) or "no earlier record"
    note = f" ({path}: {invalid} lines are damaged and left out)" if invalid else ""
    log.info("the page compares traffic with %s%s", of, note)
    return minutes


def _if_lost(config: ControllerConfig) -> str:
    """The fate of the signals if the controller ends without releasing them, or hangs."""
    if not config.guard:
        return "If it has ended or hangs, the simulation ends or stands with it, because it has no guard."
    return (
        "If it has ended, or is silent for "
        f"{config.city.controller.watchdog_s:g} s, its guard hands the signals back to their own programs."
    )
