"""Starting a SUMO program, and attaching to one that runs already."""

import contextlib
import logging
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import traci

from city.errors import InputError
from controller.sumo.link import Interrupts
from controller.sumo.programs import StderrReader, sumo_program
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller")

ATTACH_TIMEOUT_S, START_TIMEOUT_S = 10.0, 60.0
"""Wall time until SUMO listens: one that runs already, one that is started here."""
CLOSE_TIMEOUT_S = 5.0
CONNECT_INTERVAL_S = 0.05


def _leave(connection: Any) -> None:
    """Close a connection cleanly: SUMO ends for all its clients when one just drops."""
    if connection._socket is None:
        return  # SUMO has closed it
    with contextlib.suppress(OSError, traci.TraCIException, traci.FatalTraCIError):
        connection._socket.settimeout(CLOSE_TIMEOUT_S)
        connection.close(False)


def start(arguments: Sequence[str], clients: int, interrupts: Interrupts, order: int | None = None, port: int = 0) -> TraciLink:
    """Start the sumo program on a loopback port (0: a free one) and connect to it. Raises InputError."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    else:
        # another program on this port would be taken for the SUMO that is started
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise InputError(f"--sumo-port {port}: cannot be listened on ({error.strerror}); choose another") from None
    if clients > 1:
        log.info("SUMO listens at 127.0.0.1:%d and begins when %d more clients have connected", port, clients - 1)
    command = [sumo_program(), *arguments, "--remote-port", str(port), "--num-clients", str(clients)]
    # a process group of its own: Ctrl-C at the terminal must reach only the controller, which releases first
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        return attach("127.0.0.1", port, interrupts, order, process)
    except BaseException:
        process.kill()
        process.wait()
        raise


def attach(
    host: str,
    port: int,
    interrupts: Interrupts,
    order: int | None = None,
    process: subprocess.Popen[bytes] | None = None,
    through_guard: bool = False,
) -> TraciLink:
    """Connect to a SUMO that listens, or to the guard of one. Raises InputError."""
    stderr = StderrReader(process.stderr if process is not None else None)
    limit = time.monotonic() + (ATTACH_TIMEOUT_S if process is None else START_TIMEOUT_S)
    while True:
        try:
            with contextlib.redirect_stdout(None):
                connection = traci.connect(port, numRetries=0, host=host)
            break
        except (traci.FatalTraCIError, OSError) as error:
            if process is not None and process.poll() is not None:
                raise InputError(f"SUMO ended before the simulation began: {stderr.error() or 'it gave no reason'}") from None
            if time.monotonic() > limit:
                raise InputError(f"no SUMO listens at {host}:{port} ({error}); start it with --remote-port {port}") from None
            time.sleep(CONNECT_INTERVAL_S)
    if order is not None:
        try:
            connection.setOrder(order)
        except KeyboardInterrupt:
            _leave(connection)
            raise
        except traci.TraCIException as error:
            _leave(connection)
            raise InputError(
                f"SUMO at {host}:{port} refuses this client as number {order}: {error}; choose another --order"
            ) from None
        except (traci.FatalTraCIError, OSError) as error:
            _leave(connection)
            if process is not None:
                raise InputError(f"SUMO ended before the simulation began: {stderr.error() or error}") from None
            raise InputError(
                f"{host}:{port} closed the connection ({error}): SUMO ended, or it is not a SUMO server, "
                "or it is a guard that has a controller"
            ) from None
    return TraciLink(connection, traci.FatalTraCIError, process, stderr, interrupts, through_guard)
