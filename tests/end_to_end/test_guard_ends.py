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
from tests.end_to_end.trainer import SIGNALS, Trainer
from tests.waiting import wait_until

TIMES = SafetyTimes(3.0, 5.0)
AT_ONCE = ("--first-controller-timeout-s", 0)
"""The simulation does not wait for a controller."""


@contextlib.contextmanager
def held(*flags, sumo_flags=()):
    """(the other client, the guard's process) on one SUMO."""
    with sumo(2, *sumo_flags) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--order", 2, *flags) as process:
        trainer = Trainer(port)
        yield trainer, process
        trainer.step(5)  # it continues
        trainer.client.close()


def control_by_hand(listener, end):
    """A minimal controller: set every signal, step five times, then call `end`."""
    street = network.of_sumocfg(GRID / "grid.sumocfg")
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


@pytest.mark.parametrize(("spawned", "closes"), [(True, True), (True, False), (False, True)])
def test_signals_that_a_controller_leaves_set_are_handed_back(closes, spawned, tmp_path):
    pid_file, listener = tmp_path / "pid_file.json", free_port()
    flags = ("--port", listener, "--pid-file", pid_file, *(("--spawned",) if spawned else ()))
    with held(*flags) as (trainer, process), ThreadPoolExecutor() as pool:

        def control_until(end):
            trainer.programs.clear()
            controller = pool.submit(control_by_hand, listener, end)
            trainer.until(controller.done, 100_000)
            trainer.until(lambda: not trainer.online(), 30)
            assert set(SIGNALS) in [{s for s, p in programs.items() if p == "online"} for programs in trainer.programs]
            return controller.result()

        control_until(lambda client: client.close(False) if closes else socket_of(client).close())
        if not (spawned and closes):
            assert record_of(pid_file)["port"] == listener
            trainer.step(30)
            client = control_until(lambda client: process.terminate())  # it hands back what the client has set
            socket_of(client).close()
        trainer.log_after_end(process)
        assert not pid_file.exists() and not trainer.online()


def test_a_guard_outlives_a_parent_that_ends_before_it_is_ready():
    with held("--first-controller-timeout-s", 0.2, "--spawned") as (trainer, process):
        process.stdout.close()
        trainer.step(100)
        assert process.poll() is None


def listens(port):
    # SUMO would count a connection as a client
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def test_a_guard_stopped_before_other_clients_connect_ends_its_sumo():
    port = free_port()
    arguments = ("-c", GRID / "grid.sumocfg", "--no-step-log", "--no-warnings")
    with guard("--clients", 2, "--order", 1, "--sumo-port", port, "--", *arguments) as process:
        wait_until(lambda: listens(port))
        time.sleep(0.5)  # it has connected and waits for the other client
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        assert "Traceback" not in process.stderr.read()
    assert not listens(port)


@pytest.mark.parametrize(
    ("flags", "sumo_flags", "message"),
    [
        (("--idle-timeout-s", 0.3), (), "leaving the simulation to the other clients"),
        ((), ("--end", "40"), "before the simulation's end, second 40"),
    ],
)
def test_an_idle_guard_leaves_the_simulation_to_other_clients(flags, sumo_flags, message):
    with held(*AT_ONCE, *flags, sumo_flags=sumo_flags) as (trainer, process):
        assert message in trainer.log_after_end(process)


def test_an_idle_guard_ends_an_endless_simulation_once_no_other_client_is_left():
    port = free_port()
    arguments = ("-n", GRID / "grid.net.xml", "--no-step-log", "--no-warnings")
    with guard("--clients", 2, "--order", 2, "--sumo-port", port, *AT_ONCE, "--", *arguments) as process:
        trainer = Trainer(port)
        trainer.step(50)
        assert process.poll() is None
        trainer.client.close()
        assert process.wait(60) == 0
        assert "no other client is connected; ending the simulation" in process.stderr.read()
    assert not listens(port)


def test_guard_leaves_a_sumo_that_it_did_not_start_to_other_clients():
    flags = (*AT_ONCE, "--idle-timeout-s", 0.5)
    with sumo(1, "--end", "-1") as (port, _), guard("--sumo", f"127.0.0.1:{port}", *flags) as process:
        # clients of other machines are not in this machine's table of connections
        assert process.wait(60) == 0
        assert "leaving the simulation to the other clients" in process.stderr.read()


def test_connections_that_are_not_a_controllers_are_closed():
    with held(*AT_ONCE) as (trainer, process):
        trainer.step(5)
        listener = int(process.stdout.readline().split()[1])
        for sent in (b"", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", listener)) as client:
                client.sendall(sent)
                trainer.step(60)
                client.settimeout(20)
                with contextlib.suppress(ConnectionResetError):  # the guard had unread bytes of this client
                    assert client.recv(1) == b""
        assert process.poll() is None
        with guard("--sumo", f"127.0.0.1:{listener}") as second:
            assert "--no-guard" in trainer.log_after_end(second, exit_code=2), "a guard behind a guard"
        process.terminate()  # it closes its connection cleanly
        assert trainer.log_after_end(process).count("a controller has connected at") == 1, "the second guard"


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
