"""The live page of a running controller: its feed, vehicles, controls and server put together."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from city import street_shapes
from city.errors import InputError
from city.network import StreetNetwork
from controller.assembly import Start
from controller.config import SERVED, ControllerConfig
from controller.operator import saved_modes
from controller.operator.page import security
from controller.operator.page.collector import Collector
from controller.operator.page.controls import LiveControls
from controller.operator.page.exports import Exports
from controller.operator.page.feed import Feed
from controller.operator.page.server import PageServer
from controller.operator.page.site import listen
from controller.operator.page.street_data import StreetData
from controller.recording.messages import Encoder
from controller.recording.run_start import RunStart
from controller.sumo.connection import ViewConnection
from protos import policy_pb2 as pb

if TYPE_CHECKING:
    from controller.operator.operator_interface import OperatorInterface

log = logging.getLogger("controller")


class LivePage:
    """What the daemon has of the page."""

    def __init__(
        self,
        config: ControllerConfig,
        address: tuple[str, int],
        contracts: Sequence[pb.PolicyContract],
        interface: "OperatorInterface",
    ) -> None:
        """Listen on the address. Raises InputError if it cannot be used."""
        self.feed = Feed(contracts)
        """The subscriber of the decision event."""
        self._config, self._contracts = config, tuple(contracts)
        exports = Exports(interface.policies, config.city.serving.models_dir)
        self._controls = LiveControls(interface.state, interface.queue, interface.pace, interface.alarms, exports)
        self._socket = listen(*address)
        self._collector: Collector | None = None
        self._server: PageServer | None = None

    def begin(self, street: StreetNetwork, lanes: Sequence[str], signals: Sequence[str], now: float) -> None:
        """Answer browsers from now on. Raises InputError.

        Args:
            street: of the run.
            lanes: of the readings, in their order.
            signals: all that SUMO has.
            now: simulated second.
        """
        config = self._config
        driver = "" if config.policy == SERVED else config.policy
        self.feed.track(lanes)
        shapes = street_shapes.read(street.net_file)
        data = StreetData(self.feed, street, shapes, config.city.path.resolve().parent.name, driver)
        start = Start(now, 1.0, False, {})  # sentences say nothing of it
        run = RunStart(street, self._contracts, start, config.city.safety, config.city.controller, driver or None)
        self._collector = Collector(self.feed, data, shapes.junctions, signals)
        self._server = PageServer(
            self._socket, self.feed, data, self._controls, self._collector, lambda: Encoder(run), _token(config)
        )
        self._server.start()
        log.info("the live page: %s", self._server.url)

    def collect(self, source: ViewConnection, now: float) -> bool:
        """Read what only the page needs between two steps, if a watcher waits; return whether that was read."""
        return self._collector is not None and self._collector.collect(source, now)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
        else:
            self._socket.close()


def _token(config: ControllerConfig) -> str:
    """The token of commands: that of the controller before this one, so that a page that is open stays in command."""
    try:
        path = saved_modes.path_of(config.city.path, config.sumo.attach, config.sumo.order).with_suffix(".token")
        token = path.read_text(encoding="ascii").strip() if path.exists() else ""
    except (OSError, ValueError, InputError) as error:
        log.warning("the live page: its token cannot be kept over a restart: %s", error)
        return security.new_token()
    if not security.is_token(token):
        token = security.new_token()
        _write(path, token)
    return token


def _write(path: Path, token: str) -> None:
    """Write the token for the next start, readable by this user alone."""
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(token, encoding="ascii")
    except OSError as error:
        log.warning(
            "%s: cannot be written (%s); pages that are open need the new address after a restart", path, error.strerror
        )
