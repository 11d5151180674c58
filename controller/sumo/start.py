"""Start a SUMO program, or attach to a running one."""

import contextlib
import logging
import socket
import subprocess
import time
from typing import Any

import traci

from city.errors import InputError
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.programs import StderrReader, sumo_gui_program, sumo_program
from controller.sumo.traci_connection import TraciConnection, traci_errors

log = logging.getLogger("controller")

ATTACH_TIMEOUT_S = 10.0
"""Wall time within which a running SUMO must accept the connection."""
START_TIMEOUT_S = 60.0
"""Wall time within which a started SUMO must listen."""
CLOSE_TIMEOUT_S = 5.0
"""Wall time for closing a connection that is not used."""
GUI_OPTIONS = ("--start", "--quit-on-end")
"""sumo-gui waits for a click on its play button without the first, and after the end of a simulation without the
second."""
CONNECT_INTERVAL_S = 0.01
"""Wall time between two attempts to connect."""


def _close(connection: Any) -> None:
    """Close a connection cleanly: SUMO ends for all its clients if one connection is lost."""
    if connection._socket is None:
        return  # SUMO has closed it
    with contextlib.suppress(OSError, traci.TraCIException, traci.FatalTraCIError):
        connection._socket.settimeout(CLOSE_TIMEOUT_S)
        connection.close(False)


def free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_clients(port: int, clients: int) -> None:
    """Log the port at which SUMO waits for other clients, if it does."""
    if clients > 1:
        log.info("SUMO listens at 127.0.0.1:%d and begins when %d more clients have connected", port, clients - 1)


def connect(sumo: SumoAccess, interrupts: Interrupts) -> TraciConnection:
    """Connect to a running SUMO, or start one. Raises InputError. `interrupts`: the operator's requests."""
    if sumo.attach is not None:
        return attach(sumo.attach, interrupts, sumo.order)
    if sumo.port:
        _check_free(sumo.port)
        return _start(sumo, sumo.port, interrupts)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        # The port stays bound until SUMO is connected. Otherwise another program that starts a SUMO at this moment may
        # be given the same port, and each of the two is connected to the other's simulation.
        # SUMO may listen all the same: it sets SO_REUSEADDR too, and this socket does not listen.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _start(sumo, held.getsockname()[1], interrupts)


def _start(sumo: SumoAccess, port: int, interrupts: Interrupts) -> TraciConnection:
    program = sumo_gui_program() if sumo.gui else sumo_program()
    log_clients(port, sumo.clients)
    command = [program, *sumo.arguments, "--remote-port", str(port), "--num-clients", str(sumo.clients)]
    command += GUI_OPTIONS if sumo.gui else ()
    # a process group of its own: Ctrl-C at the terminal must reach only the controller, which releases first
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        return attach(("127.0.0.1", port), interrupts, sumo.order, process)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _check_free(port: int) -> None:
    """Raise InputError if another program listens on the port: it would be mistaken for the started SUMO."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"--sumo-port {port}: cannot listen on it ({error.strerror}); choose another port"
            ) from None


def attach(
    address: tuple[str, int],
    interrupts: Interrupts,
    order: int | None = None,
    process: subprocess.Popen[bytes] | None = None,
    through_guard: bool = False,
) -> TraciConnection:
    """Connect to a SUMO, or to a guard. Raises InputError.

    Args:
        address: (host, port) of SUMO or of the guard.
        interrupts: the operator's requests.
        order: TraCI order of this client, if there are several.
        process: the SUMO or the guard, if this process started it.
        through_guard: whether the address is a guard's.
    """
    stderr = StderrReader(process.stderr if process is not None else None)
    connection = _connected(address, process, stderr)
    where = f"{address[0]}:{address[1]}"

    def ended(error: Exception) -> InputError:
        if process is not None:
            return InputError(f"SUMO ended before the simulation began: {stderr.error() or error}")
        return InputError(
            f"{where} closed the connection ({error}): SUMO ended, or it is not a SUMO server, or it is a guard that "
            "has a controller"
        )

    try:
        with traci_errors(ended):
            if order is not None:
                _set_order(connection, order, where)
    except BaseException:
        _close(connection)
        raise
    return TraciConnection(connection, process, stderr, interrupts, through_guard)


def _set_order(connection: Any, order: int, where: str) -> None:
    """Set this client's TraCI order; SUMO answers once all its clients have connected. Raises InputError."""
    try:
        connection.setOrder(order)
    except traci.TraCIException as error:
        raise InputError(
            f"SUMO at {where} rejects order {order} for this client: {error}; pass another --order"
        ) from None


def _connected(address: tuple[str, int], process: subprocess.Popen[bytes] | None, stderr: StderrReader) -> Any:
    """traci's connection, once the other side accepts one. Raises InputError."""
    host, port = address
    deadline_s = time.monotonic() + (ATTACH_TIMEOUT_S if process is None else START_TIMEOUT_S)
    while True:
        try:
            with contextlib.redirect_stdout(None):
                return traci.connect(port, numRetries=0, host=host)
        except (traci.FatalTraCIError, OSError) as error:
            if process is not None and process.poll() is not None:
                raise InputError(
                    f"SUMO ended before the simulation began: {stderr.error() or 'it gave no reason'}"
                ) from None
            if time.monotonic() > deadline_s:
                raise InputError(
                    f"no SUMO listens at {host}:{port} ({error}); start it with --remote-port {port}"
                ) from None
            time.sleep(CONNECT_INTERVAL_S)
