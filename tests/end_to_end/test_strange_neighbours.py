"""Other clients of the same simulation that set the controller's signals."""

import contextlib
import re
import socket

import pytest

from controller.sumo.connection import OWNER_KEY
from tests.end_to_end.programs import ModelServer, connect, controller, guard_log, sumo
from tests.end_to_end.signal_history import SIGNALS, step_until

GUARDED = pytest.mark.parametrize("flags", [(), ("--no-guard",)], ids=["guard", "no guard"])
GUARDED_DAILY = pytest.mark.parametrize(
    "flags", [(), pytest.param(("--no-guard",), marks=pytest.mark.slow)], ids=["guard", "no guard"]
)


@contextlib.contextmanager
def attached(server, *flags, tls="SA101", end="300", sumo_flags=()):
    """A controller of some TLs; yields (its process, another client of the simulation, the states so far)."""
    with sumo(2, *sumo_flags) as (port, _):
        address = ("--sumo", f"127.0.0.1:{port}", "--order", "2")
        with controller(*address, "--infer-tl", tls, "--end", end, "--server", server, *flags) as process:
            client = connect(port, 1)
            yield process, client, []
            client.close()


def log_after_end(process, client, history):
    """Simulate until a controller has ended in order; return what it has logged."""
    while process.poll() is None and len(history) < 400:
        step_until(client, client.simulation.getTime() + 1, history)
    assert process.wait(30) == 0
    return process.stderr.read()


@GUARDED
def test_state_of_another_client_is_reported_and_set_right(grid_server, flags):
    with attached(grid_server, *flags) as (process, client, history):
        step_until(client, 100, history)
        links = len(history[-1]["A0"])
        client.trafficlight.setRedYellowGreenState("A0", "G" * links)
        step_until(client, 130, history)
        left = [k for k, states in enumerate(history) if k >= 100 and states["A0"] != "G" * links]
        assert left and left[0] <= 112, "left within one decision and min green"
        before, after = history[left[0] - 1]["A0"], history[left[0]]["A0"]
        assert all(b in "Gy" for a, b in zip(before, after, strict=True) if a == "G"), (before, after)
        log = log_after_end(process, client, history)
        assert (
            log.count("unexpected_state") == 1
            and f" right ({'G' * links}), but" in log
            and "another client sets this signal" in log
        )
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        assert len({states["A0"] for states in history[130:]}) > 2, "not frozen"


@GUARDED_DAILY
def test_state_of_another_client_is_left_while_the_fallback_plan_runs(grid_models, tmp_path, flags):
    server = ModelServer(grid_models, tmp_path / "socket")
    with attached(server.address, *flags) as (process, client, history):
        step_until(client, 50, history)
        server.stop()
        step_until(client, 120, history)
        assert client.trafficlight.getProgram("A0") == "adapted"
        green = "G" * len(history[-1]["A0"])
        client.trafficlight.setRedYellowGreenState("A0", green)
        step_until(client, 150, history)
        assert client.trafficlight.getProgram("A0") == "adapted"
        states = [states["A0"] for states in history]
        left = max(k for k, state in enumerate(states) if state == green) + 1
        assert states[left] == green.replace("G", "y") and green.replace("G", "r") in states[left:]
        log = log_after_end(process, client, history)
        assert log.count("unexpected_state") == 1
        assert f" right ({green}), which another client set in place of its program" in log


@GUARDED_DAILY
@pytest.mark.parametrize("links", [-1, 1], ids=["too short", "too long"])
def test_state_of_the_wrong_length_is_reported_and_set_right(grid_server, flags, links):
    with attached(grid_server, *flags, tls="SA101,SA102", end="200") as (process, client, history):
        step_until(client, 100, history)
        client.trafficlight.setRedYellowGreenState("A0", "r" * (len(history[-1]["A0"]) + links))
        log = log_after_end(process, client, history)
        assert "ALARM: A0 at" in log and "unexpected_state" in log and "A1" not in "".join(re.findall("ALARM: .*", log))
        assert len({states["A0"] for states in history[130:200]}) > 2, "not frozen"


def test_alarms_of_a_client_that_sets_a_signal_again_and_again_are_limited(grid_server):
    with attached(grid_server) as (process, client, history):
        step_until(client, 50, history)
        while client.simulation.getTime() < 250:
            client.trafficlight.setRedYellowGreenState("A0", "r" * len(history[-1]["A0"]))
            step_until(client, client.simulation.getTime() + 1, history)
        log = log_after_end(process, client, history)
        lines = [line for line in log.splitlines() if "unexpected_state" in line]
        assert 2 <= len(lines) <= 5 and "more since second" in lines[-1]


@GUARDED_DAILY
def test_second_controller_of_the_same_signals_is_refused(grid_server, flags):
    with sumo(3) as (port, _):
        shared = ("--sumo", f"127.0.0.1:{port}", "--end", "200", "--server", grid_server, *flags)
        with controller(*shared, "--order", "2", "--infer-tl", "SA101,SA108") as first:
            with controller(*shared, "--order", "3", "--infer-tl", "SA101") as second:
                client, history = connect(port, 1), []
                while second.poll() is None and len(history) < 100:
                    step_until(client, client.simulation.getTime() + 1, history)
                assert second.wait(30) == 2
                assert "error: signal A0 is controlled by another controller, process" in second.stderr.read()
            while first.poll() is None and len(history) < 300:
                step_until(client, client.simulation.getTime() + 1, history)
            assert first.wait(30) == 0
            assert "unexpected_state" not in first.stderr.read()
            assert client.simulation.getParameter("", f"{OWNER_KEY}.A0") == "", "it has ended"
            client.close()


def test_full_disk_is_one_error_line_for_each_output_and_exit_code_1(grid_server):
    outputs = ("--tripinfo", "/dev/full", "--summary", "/dev/full")
    with controller("--end", "120", *outputs, "--server", grid_server) as process:
        assert process.wait(120) == 1
        errors = [line for line in process.stderr.read().splitlines() if "ERROR" in line]
        assert len(errors) == 2 and "--summary /dev/full: cannot be written (No space left on device)" in errors[0]
        assert "--tripinfo /dev/full: is not a complete tripinfo file" in errors[1]


@pytest.mark.parametrize(
    "name",
    [
        "trips.csv.gz",
        "/dev/null",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("trips.xml.gz", "trips.csv", "trips")),
    ],
)
def test_every_format_of_tripinfo_is_accepted(grid_server, tmp_path, name):
    path = tmp_path / name
    with controller("--end", "60", "--tripinfo", str(path), "--server", grid_server) as process:
        assert process.wait(60) == 0, process.stderr.read()
    assert path.exists()


def test_guard_of_a_killed_controller_ends_at_the_controllers_end(grid_server):
    with attached(grid_server, end="100", sumo_flags=("--end", "1000000")) as (process, client, history):
        step_until(client, 50, history)
        assert client.trafficlight.getProgram("A0") == "online"
        process.kill()
        log = process.stderr.read()
        step_until(client, 150, history)
        assert client.trafficlight.getProgram("A0") == "adapted"
        guard_port = int(re.search(r"--no-guard --sumo 127\.0\.0\.1:(\d+)", log)[1])
        with pytest.raises(ConnectionRefusedError):
            for _ in range(1000):
                socket.create_connection(("127.0.0.1", guard_port), timeout=10).close()
                step_until(client, client.simulation.getTime() + 1, history)
        assert "no controller has connected before the simulation's end, second 10" in guard_log(log)
