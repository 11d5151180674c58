"""Start and stop the project's programs and SUMO, each in a process of its own."""

import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path

import traci

from controller.sumo.programs import sumo_program
from tests.conftest import GRID
from tests.waiting import wait_until

CITY = str(GRID / "city.toml")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(command, **options):
    """A process, which is killed at the end of the block. `options`: of Popen."""
    with subprocess.Popen(list(map(str, command)), **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def sumo(clients: int, *options: str):
    """Run SUMO on the sample city, waiting for clients; yields (port, process)."""
    port = free_port()
    command = [sumo_program(), "-c", GRID / "grid.sumocfg", "--remote-port", port, "--num-clients", clients]
    with started([*command, "--no-step-log", "--no-warnings", *options], stdout=subprocess.DEVNULL) as process:
        yield port, process


def program(module: str, *arguments: object):
    """Run a program of the project, with readable stdout and stderr."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return started([sys.executable, "-m", module, *arguments], **pipes)


def controller(*arguments: object):
    return program("controller", "--city", CITY, *arguments)


def guard(*arguments: object):
    return program("controller.guard", *arguments)


def guard_log(controller_log: str) -> str:
    """The log of the guard that a controller started; it is a file if the controller's stderr is a pipe."""
    return Path(re.search(r"; its log is (.*)", controller_log)[1]).read_text()


class ModelServer:
    """`python -m serving` over TCP and on a Unix socket; its stderr is the test's own."""

    def __init__(self, models: Path, socket_path: Path, *arguments: str):
        self.models, self.socket_path, self._arguments = models, socket_path, arguments
        self.start()

    def start(self, port: int = 0):
        """Return once it is ready. `port`: 0 for a free one, or the port it had before."""
        command = [sys.executable, "-m", "serving", "--models-dir", self.models, "--port", port, "--city", CITY]
        command += ["--grpc_socket_path", self.socket_path, *self._arguments]
        self._process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        ready = self._process.stdout.readline()
        assert ready.startswith("ready at "), f"the server exited with {self._process.wait()}"
        self.address = ready.removeprefix("ready at ").partition(",")[0].strip()
        self.port = int(self.address.rpartition(":")[2])
        self.pid, self.send_signal = self._process.pid, self._process.send_signal

    def stop(self):
        with self._process:
            self._process.terminate()


def socket_of(client) -> socket.socket:
    """The socket of traci's client, to send what traci does not, or to close it without CLOSE."""
    return client._socket


def connect(port: int, order: int):
    """Connect with traci to a SUMO that is starting, as client number `order`."""
    clients = []

    def is_connected():
        with contextlib.suppress(traci.FatalTraCIError, OSError), contextlib.redirect_stdout(None):
            clients.append(traci.connect(port, numRetries=0, host="127.0.0.1"))
        return clients

    wait_until(is_connected)
    clients[0].setOrder(order)
    return clients[0]
