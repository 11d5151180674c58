"""The guard by itself: whatever a controller leaves behind, and however the guard ends, signals run and the others go on."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from city import network
from controller.guard import handover
from controller.guard.listener import Listener, port_of
from controller.safety.safety_times import SafetyTimes
from controller.sumo import wire
from controller.sumo.network import plan_of, running_signals
from tests.conftest import GRID
from tests.end_to_end.programs import connect, free_port, guard, sumo
from tests.end_to_end.test_guard import Trainer
from tests.end_to_end.test_several_clients import SIGNALS

TIMES = SafetyTimes(3.0, 5.0)


@pytest.fixture(scope="module")
def street():
    return network.of_sumocfg(GRID / "grid.sumocfg")


def control_by_hand(listener, street, end):
    """A controller that sets every signal itself, steps five times and comes to the end that is given."""
    client = connect(listener, 1)  # its order is the guard's
    running = running_signals(client, street, SIGNALS)
    handovers = [
        handover.SignalHandover(s, signal.approach_mps, signal.crossing_m, TIMES, plan_of(running[s], signal))
        for s, signal in street.signals.items()
    ]
    client._socket.sendall(wire.message([wire.command(wire.WILL, handover.write(handovers))]))
    assert client._socket.recv(100) == wire.ok(wire.WILL)
    for s in SIGNALS:
        client.trafficlight.setRedYellowGreenState(s, "r" * len(street.signals[s].links))
    for _ in range(5):
        client.simulationStep()
    end(client)
    return client


@pytest.mark.parametrize("goodbye", [True, False])
@pytest.mark.parametrize("spawned", [True, False])
def test_what_a_controller_leaves_by_hand_is_handed_back(street, goodbye, spawned, tmp_path):
    record, listener = tmp_path / "record.json", free_port()
    words = ("--order", 2, "--port", listener, "--record", record, *(("--spawned",) if spawned else ()))
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", *words) as process, ThreadPoolExecutor() as pool:
        trainer = Trainer(port)

        def left(end):
            controller = pool.submit(control_by_hand, listener, street, end)
            trainer.until(controller.done, 100_000)
            held = controller.result()
            trainer.until(lambda: not trainer.online(), 30)
            assert set(SIGNALS) in [{s for s, p in programs.items() if p == "online"} for programs in trainer.programs]
            return held

        left(lambda client: client.close(False) if goodbye else client._socket.close())
        if not (spawned and goodbye):
            assert port_of(record) == listener
            trainer.step(30)
            trainer.programs.clear()
            held = left(lambda client: process.terminate())  # it hands back what is set by hand
            held._socket.close()
        trainer.until(lambda: process.poll() is not None, 100_000)
        assert process.returncode == 0 and not record.exists() and not trainer.online()
        trainer.step(30)
        trainer.client.close()


def test_a_guard_does_not_stand_behind_a_guard():
    listener = free_port()
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--port", listener, "--first-s", 0) as process:
        trainer = Trainer(port)
        trainer.step(5)
        with guard("--sumo", f"127.0.0.1:{listener}") as second:
            trainer.until(lambda: second.poll() is not None, 100_000)
            assert second.returncode == 2 and "--no-guard" in second.stderr.read()
        assert process.poll() is None
        trainer.step(5)


def test_a_guard_outlives_who_started_it_before_it_was_ready():
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-s", 0.2, "--spawned") as process:
        process.stdout.close()
        trainer = Trainer(port)
        trainer.step(100)
        assert process.poll() is None


def listens(port):
    # a connection would be taken for a client
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(words[1].endswith(f":{port:04X}") and words[3] == "0A" for words in lines)


def test_a_guard_that_is_asked_to_stop_before_the_others_have_come_leaves_no_sumo_behind():
    port = free_port()
    arguments = ("-c", GRID / "grid.sumocfg", "--no-step-log", "--no-warnings")
    with guard("--clients", 2, "--order", 1, "--sumo-port", port, "--", *arguments) as process:
        limit = time.monotonic() + 30
        while not listens(port):
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(0.5)  # it has connected, and waits for the other client
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert "Traceback" not in process.stderr.read()
    assert not listens(port)


def test_a_guard_without_a_controller_leaves_in_the_end_and_the_others_go_on():
    with sumo(2) as (port, _):
        with guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-s", 0, "--idle-s", 0.3) as process:
            trainer = Trainer(port)
            trainer.until(lambda: process.poll() is not None, 100_000)
            assert process.returncode == 0 and "leaving the simulation to the others" in process.stderr.read()
        trainer.step(30)
        trainer.client.close()


def test_a_guard_without_a_controller_ends_with_the_simulation():
    arguments = ("-c", GRID / "grid.sumocfg", "--no-step-log", "--no-warnings", "--end", 40)
    with guard("--clients", 1, "--first-s", 0, "--", *arguments) as process:
        assert process.wait(60) == 0
        assert "up to the simulation's end, second 40" in process.stderr.read()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.0\r\n\r\n"])
def test_a_visitor_that_is_no_controller_is_sent_away_and_the_others_go_on(words):
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-s", 0) as process:
        trainer = Trainer(port)
        trainer.step(5)
        listener = int(process.stdout.readline().split()[1])
        with socket.create_connection(("127.0.0.1", listener)) as visitor:
            visitor.sendall(words)
            trainer.step(60)
            visitor.settimeout(20)
            with contextlib.suppress(ConnectionResetError):  # it had not read what was said
                assert visitor.recv(1) == b""
        trainer.step(5)
        assert process.poll() is None
        trainer.client.close()
        process.terminate()
        process.wait(60)
        assert "a controller has come at" not in process.stderr.read()


def test_a_port_that_is_taken_is_not_taken_for_the_sumo_that_is_started():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "controller.guard", "--sumo-port", str(port), "--", "-c", str(GRID / "grid.sumocfg")],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.startswith(f"error: --sumo-port {port}: cannot be listened on")
        assert len(done.stderr.splitlines()) == 1


def test_a_record_leads_to_a_door_while_it_is_open_only(tmp_path):
    record = tmp_path / "record.json"
    assert port_of(record) is None
    listener = Listener(0, record)
    assert port_of(record) == listener.port
    listener.close()
    listener.close()
    assert port_of(record) is None and not record.exists()
    record.write_text("no json")
    assert port_of(record) is None
