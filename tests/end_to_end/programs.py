"""Start and stop the project's programs and SUMO, each in a process of its own."""

import contextlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from controller.sumo.programs import sumo_program
from tests.conftest import GRID

CITY = str(GRID / "city.toml")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def sumo(clients: int, *options: str):
    """Run SUMO on the sample city, waiting for clients; yields (port, process)."""
    port = free_port()
    command = [
        sumo_program(),
        "-c",
        str(GRID / "grid.sumocfg"),
        "--remote-port",
        str(port),
        "--num-clients",
        str(clients),
    ]
    process = subprocess.Popen([*command, "--no-step-log", "--no-warnings", *options], stdout=subprocess.DEVNULL)
    try:
        yield port, process
    finally:
        process.kill()
        process.wait()


def controller(*arguments: str):
    """Run `python -m controller` on the sample city, with a readable stderr."""
    return program("controller", "--city", CITY, *arguments)


def guard_log(controller_log: str) -> str:
    """The log of the guard that a controller started; it is a file if the controller's stderr is a pipe."""
    return Path(re.search(r"; its log is (.*)", controller_log)[1]).read_text()


def guard(*arguments: object):
    return program("controller.guard", *map(str, arguments))


@contextlib.contextmanager
def program(module: str, *arguments: str):
    """Run a program of the project, with readable stdout and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


class ModelServer:
    """`python -m serving` over TCP and on a Unix socket; its stderr is the test's own."""

    def __init__(self, models: Path, socket_path: Path, *arguments: str):
        self.models, self.socket_path, self._arguments = models, socket_path, arguments
        self.start()

    def start(self, port: int = 0):
        """Return once it is ready. `port`: 0 for a free one, or the port it had before."""
        command = [
            sys.executable,
            "-m",
            "serving",
            "--models-dir",
            str(self.models),
            "--port",
            str(port),
            "--city",
            CITY,
        ]
        command += ["--grpc_socket_path", str(self.socket_path), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self._process.stdout.readline()
        assert ready.startswith("ready at "), f"the server exited with {self._process.wait()}"
        self.address = ready.removeprefix("ready at ").partition(",")[0].strip()
        self.port = int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int):
        self._process.send_signal(number)

    def stop(self):
        self._process.terminate()
        self._process.wait(30)
        self._process.stdout.close()


def socket_of(client) -> socket.socket:
    """The socket of traci's client, to send what traci does not, or to close it without CLOSE."""
    return client._socket


def connect(port: int, order: int):
    """Connect with traci to a SUMO that is starting, as client number `order`."""
    import traci

    limit = time.monotonic() + 30
    while True:
        try:
            with contextlib.redirect_stdout(None):
                client = traci.connect(port, numRetries=0, host="127.0.0.1")
            break
        except (traci.FatalTraCIError, OSError):
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)
    client.setOrder(order)
    return client
