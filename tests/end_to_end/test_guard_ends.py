"""The guard with a minimal controller or none: however either ends, the signals run their programs and other clients
continue."""

import contextlib
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from city import network
from controller.guard import handover
from controller.guard.listener import TraciListener, record_of
from controller.sumo import wire
from controller.sumo.network import fallback_schedule, running_signals
from signals.safety.safety_times import SafetyTimes
from tests.conftest import GRID
from tests.end_to_end.programs import connect, free_port, guard, socket_of, sumo
from tests.end_to_end.signal_history import SIGNALS
from tests.end_to_end.trainer import Trainer

TIMES = SafetyTimes(3.0, 5.0)


@pytest.fixture(scope="module")
def street():
    return network.of_sumocfg(GRID / "grid.sumocfg")


def control_by_hand(listener, street, end):
    """A minimal controller: set every signal, step five times, then call `end`."""
    client = connect(listener, 1)  # its order is the guard's
    running = running_signals(client, street, SIGNALS)
    handovers = [
        handover.handover_of(signal, TIMES, fallback_schedule(running[s], signal, 0.0))
        for s, signal in street.signals.items()
    ]
    socket_of(client).sendall(wire.message([wire.command(wire.HANDOVER, handover.encode(handovers))]))
    assert socket_of(client).recv(100) == wire.ok(wire.HANDOVER)
    for s in SIGNALS:
        client.trafficlight.setRedYellowGreenState(s, "r" * len(street.signals[s].links))
    for _ in range(5):
        client.simulationStep()
    end(client)
    return client


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("spawned", [True, False])
def test_signals_that_a_controller_leaves_set_are_handed_back(street, closes, spawned, tmp_path):
    pid_file, listener = tmp_path / "pid_file.json", free_port()
    flags = ("--order", 2, "--port", listener, "--pid-file", pid_file, *(("--spawned",) if spawned else ()))
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", *flags) as process, ThreadPoolExecutor() as pool:
        trainer = Trainer(port)

        def control_until(end):
            controller = pool.submit(control_by_hand, listener, street, end)
            trainer.until(controller.done, 100_000)
            client = controller.result()
            trainer.until(lambda: not trainer.online(), 30)
            assert set(SIGNALS) in [{s for s, p in programs.items() if p == "online"} for programs in trainer.programs]
            return client

        control_until(lambda client: client.close(False) if closes else socket_of(client).close())
        if not (spawned and closes):
            assert record_of(pid_file)["port"] == listener
            trainer.step(30)
            trainer.programs.clear()
            client = control_until(lambda client: process.terminate())  # it hands back what the client has set
            socket_of(client).close()
        trainer.until(lambda: process.poll() is not None, 100_000)
        assert process.returncode == 0 and not pid_file.exists() and not trainer.online()
        trainer.step(30)
        trainer.client.close()


def test_a_guard_behind_a_guard_is_refused():
    listener = free_port()
    with (
        sumo(2) as (port, _),
        guard(
            "--sumo", f"127.0.0.1:{port}", "--order", 2, "--port", listener, "--first-controller-timeout-s", 0
        ) as process,
    ):
        trainer = Trainer(port)
        trainer.step(5)
        with guard("--sumo", f"127.0.0.1:{listener}") as second:
            trainer.until(lambda: second.poll() is not None, 100_000)
            assert second.returncode == 2 and "--no-guard" in second.stderr.read()
        assert process.poll() is None
        trainer.step(5)


def test_a_guard_outlives_a_parent_that_ends_before_it_is_ready():
    with (
        sumo(2) as (port, _),
        guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-controller-timeout-s", 0.2, "--spawned") as process,
    ):
        process.stdout.close()
        Trainer(port).step(100)
        assert process.poll() is None


def listens(port):
    # SUMO would count a connection as a client
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def test_a_guard_stopped_before_other_clients_connect_ends_its_sumo():
    port = free_port()
    arguments = ("-c", GRID / "grid.sumocfg", "--no-step-log", "--no-warnings")
    with guard("--clients", 2, "--order", 1, "--sumo-port", port, "--", *arguments) as process:
        limit = time.monotonic() + 30
        while not listens(port):
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(0.5)  # it has connected and waits for the other client
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        assert "Traceback" not in process.stderr.read()
    assert not listens(port)


def test_an_idle_guard_leaves_the_simulation_to_other_clients():
    with sumo(2) as (port, _):
        with guard(
            "--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-controller-timeout-s", 0, "--idle-timeout-s", 0.3
        ) as process:
            trainer = Trainer(port)
            trainer.until(lambda: process.poll() is not None, 100_000)
            assert process.returncode == 0 and "leaving the simulation to the other clients" in process.stderr.read()
        trainer.step(30)
        trainer.client.close()


def test_an_idle_guard_ends_with_the_simulation():
    with (
        sumo(2, "--end", "40") as (port, _),
        guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-controller-timeout-s", 0) as process,
    ):
        trainer = Trainer(port)
        trainer.until(lambda: process.poll() is not None, 100_000)
        assert process.returncode == 0 and "before the simulation's end, second 40" in process.stderr.read()
        trainer.client.close()


def test_an_idle_guard_ends_an_endless_simulation_once_no_other_client_is_left(tmp_path):
    port = free_port()
    arguments = ("-n", GRID / "grid.net.xml", "--no-step-log", "--no-warnings")
    flags = ("--clients", 2, "--order", 2, "--sumo-port", port, "--first-controller-timeout-s", 0.2)
    with guard(*flags, "--", *arguments) as process:
        trainer = Trainer(port)
        trainer.step(50)
        assert process.poll() is None
        trainer.client.close()
        assert process.wait(60) == 0
        assert "no other client is connected; ending the simulation" in process.stderr.read()
    assert not listens(port)


def test_guard_leaves_a_sumo_that_it_did_not_start_to_other_clients():
    flags = ("--first-controller-timeout-s", 0, "--idle-timeout-s", 2.5)
    with sumo(1, "--end", "-1") as (port, _), guard("--sumo", f"127.0.0.1:{port}", *flags) as process:
        # clients of other machines are not in this machine's table of connections
        assert process.wait(60) == 0
        assert "leaving the simulation to the other clients" in process.stderr.read()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.0\r\n\r\n"])
def test_a_connection_that_is_not_traci_is_closed(sent):
    with (
        sumo(2) as (port, _),
        guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-controller-timeout-s", 0) as process,
    ):
        trainer = Trainer(port)
        trainer.step(5)
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline().split()[1]))) as client:
            client.sendall(sent)
            trainer.step(60)
            client.settimeout(20)
            with contextlib.suppress(ConnectionResetError):  # the guard had unread bytes of this client
                assert client.recv(1) == b""
        trainer.step(5)
        assert process.poll() is None
        trainer.client.close()
        process.terminate()
        process.wait(60)
        assert "a controller has connected at" not in process.stderr.read()


def test_a_pid_file_gives_a_port_only_while_its_guard_listens(tmp_path):
    pid_file = tmp_path / "pid_file.json"
    assert record_of(pid_file) is None
    listener = TraciListener(0, pid_file)
    assert record_of(pid_file)["port"] == listener.port
    listener.close()
    listener.close()
    assert record_of(pid_file) is None and not pid_file.exists()
    pid_file.write_text("not JSON")
    assert record_of(pid_file) is None
