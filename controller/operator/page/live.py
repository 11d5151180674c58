"""The live page of a running controller: its vehicles, models and server put together."""

import logging

from city import street_shapes
from city.errors import InputError
from city.network import StreetNetwork
from controller.config import ControllerConfig
from controller.operator import saved_modes
from controller.operator.page import security
from controller.operator.page.collector import Collector
from controller.operator.page.exports import Exports
from controller.operator.page.server import PageServer
from controller.operator.page.site import Site, listen
from controller.operator.page.street_data import StreetData
from controller.operator.service import OperatorService
from controller.operator.tl_layout import TlLayout
from controller.sumo.connection import SumoConnection, ViewConnection

log = logging.getLogger("controller")


class LivePage:
    """The page of one run."""

    def __init__(self, config: ControllerConfig, address: tuple[str, int], service: OperatorService) -> None:
        """Listen on the address. Raises InputError if it cannot be used."""
        self._config, self._service = config, service
        self._socket = listen(*address)
        self._collector: Collector | None = None
        self._server: PageServer | None = None

    def begin(self, street: StreetNetwork, connection: SumoConnection) -> None:
        """Answer browsers from now on. Raises InputError."""
        city, service = self._config.city, self._service
        layout = TlLayout(service.state.layout.contracts.values(), connection.lanes)
        shapes = street_shapes.read(street.net_file)
        data = StreetData(layout, street, shapes, city.path.resolve().parent.name, self._config.driver or "")
        self._collector = Collector(data, set(connection.api.trafficlight.getIDList()))
        self._server = PageServer(
            Site(self._socket, data, _token(self._config)),
            service,
            Exports(service.policies, city.serving.models_dir),
            self._collector,
        )
        self._server.start()
        log.info("the live page: %s", self._server.url)

    def collect(self, connection: ViewConnection, now: float) -> bool:
        """Read what only the page needs between two steps, if a watcher waits; return whether that was read."""
        return self._collector is not None and self._collector.collect(connection, now)

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
    if security.is_token(token):
        return token
    token = security.new_token()
    try:
        path.unlink(missing_ok=True)
        path.touch(mode=0o600, exist_ok=False)  # readable by this user alone
        path.write_text(token, encoding="ascii")
    except OSError as error:
        log.warning(
            "%s: cannot be written (%s); pages that are open need the new address after a restart", path, error.strerror
        )
    return token
