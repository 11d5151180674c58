"""The controller beside another client of the same simulation, and its ways out."""

import itertools
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from city import network
from controller.safety.signal_safety import ConflictRules
from tests.conftest import GRID
from tests.end_to_end.programs import connect, controller, free_port, sumo

SIGNALS = ("A0", "A1", "A2", "B0", "B1", "B2", "C0", "C1", "C2")


def watch(client, until_s, history):
    """Step second by second as the other client, and note what every signal shows."""
    while client.simulation.getTime() < until_s:
        client.simulationStep()
        history.append({s: client.trafficlight.getRedYellowGreenState(s) for s in SIGNALS})


def test_only_infer_tls_are_touched_and_all_are_released_safely_on_sigterm(grid_server):
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--infer-tl", "SA101,SA108", "--server", grid_server) as ours,
    ):
        client = connect(port, 1)
        history = []
        watch(client, 120, history)
        running = {s: client.trafficlight.getProgram(s) for s in SIGNALS}
        assert {s for s, program in running.items() if program == "online"} == {"A0", "C1", "C2"}
        ours.send_signal(signal.SIGTERM)
        while ours.poll() is None and len(history) < 400:
            watch(client, client.simulation.getTime() + 1, history)
        assert ours.wait(30) == 0, ours.stderr.read()
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        assert "released all signals" in ours.stderr.read()
        # the plans go on by themselves, and the other client was never disturbed
        before = len(history)
        watch(client, client.simulation.getTime() + 100, history)
        for s in SIGNALS:
            assert len({states[s] for states in history[before:]}) > 2, f"{s} is frozen"
        assert_in_step(client)
        client.close()
    assert_safe(history, ("A0", "C1", "C2"))


def assert_in_step(client):
    """Every signal is where its plan would be had nobody ever touched it."""
    now = client.simulation.getTime()
    for s in SIGNALS:
        plan = network.of_sumocfg(GRID / "grid.sumocfg").signals[s].plan
        seconds = [phase.state for phase in plan.phases for _ in range(int(phase.duration_s))]
        assert client.trafficlight.getRedYellowGreenState(s) == seconds[int(now - 1 - plan.offset_s) % len(seconds)], s


def assert_safe(history, signals):
    street = network.of_sumocfg(GRID / "grid.sumocfg")
    for s in signals:
        rules = ConflictRules(street.signals[s])
        for before, after in itertools.pairwise(history):
            assert rules.conflicts(after[s]) == []
            for a, b in zip(before[s], after[s], strict=True):
                assert not (a in "Gg" and b == "r"), f"{s} went from {before[s]} to {after[s]}"


def test_the_end_asked_for_releases_too(grid_server):
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--end", "60", "--server", grid_server) as ours,
    ):
        client = connect(port, 1)
        history = []
        while ours.poll() is None and len(history) < 200:
            watch(client, client.simulation.getTime() + 1, history)
        assert ours.wait(30) == 0, ours.stderr.read()
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        client.close()
    assert_safe(history, SIGNALS)


def test_the_death_of_sumo_is_one_line_and_exit_code_1(grid_server):
    with (
        sumo(2) as (port, process),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        client = connect(port, 1)
        watch(client, 30, [])
        process.kill()
        assert ours.wait(30) == 1
        lines = ours.stderr.read().splitlines()
        assert [line for line in lines if "SUMO is gone at second" in line]
        assert not [line for line in lines if "Traceback" in line]


def test_ctrl_c_before_control_begins_leaves_at_once(grid_server):
    # the second client never comes, so SUMO keeps the controller waiting
    with sumo(2) as (port, _), controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours:
        with pytest.raises(subprocess.TimeoutExpired):
            ours.wait(4)
        ours.send_signal(signal.SIGINT)
        assert ours.wait(20) == 1
        assert "interrupted before any signal was touched" in ours.stderr.read()


def test_an_order_that_is_taken_is_refused_and_the_other_client_goes_on(grid_server):
    with sumo(2) as (port, _):
        # SUMO answers the first client once the second is there
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, port, 1)
            with controller("--sumo", f"127.0.0.1:{port}", "--order", "1", "--server", grid_server) as ours:
                assert ours.wait(20) == 2
                assert "refuses this client as number 1" in ours.stderr.read()
            client = connecting.result(20)
        watch(client, 30, [])
        client.close()


def test_nobody_gives_up_on_a_sumo_that_waits_for_another_client(grid_server):
    """Two ways to wait for longer than an answer may take, both at once: a test waits as long as they."""
    with ThreadPoolExecutor(2) as pool:
        for way in [pool.submit(way, grid_server) for way in (_stopped_while_another_computes, _stopped_as_one_of_two)]:
            way.result()


def _stopped_while_another_computes(grid_server):
    """SIGTERM while another client computes: the controller waits for its turn, then releases."""
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        client = connect(port, 1)
        history = []
        watch(client, 40, history)
        ours.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            ours.wait(12)
        while ours.poll() is None and len(history) < 300:
            watch(client, client.simulation.getTime() + 1, history)
        assert ours.wait(30) == 0, ours.stderr.read()
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        watch(client, client.simulation.getTime() + 20, history)
        client.close()
    assert_safe(history, SIGNALS)


def _stopped_as_one_of_two(grid_server):
    """A SUMO that the controller started for two goes on for the other when the controller is stopped."""
    port = str(free_port())
    with controller("--clients", "2", "--order", "1", "--server", grid_server, "--sumo-port", port) as ours:
        client = connect(int(port), 2)
        watch(client, 40, [])
        ours.send_signal(signal.SIGTERM)
        watch(client, 120, [])
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        with pytest.raises(subprocess.TimeoutExpired):
            ours.wait(11)
        watch(client, 160, [])
        client.close()
        assert ours.wait(30) == 0


def test_after_a_second_signal_the_guard_hands_back_and_nobody_waits_for_the_other_client(grid_server):
    history = []
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        client = connect(port, 1)
        watch(client, 40, history)
        ours.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        ours.send_signal(signal.SIGTERM)
        assert ours.wait(5) == 1  # though SUMO waits for the other client
        watch(client, client.simulation.getTime() + 40, history)
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        client.close()
        assert "left to the guard" in ours.stderr.read()  # to its end: the guard writes there too
    assert_safe(history, SIGNALS)


def test_without_a_guard_a_second_signal_hands_back_at_once(grid_server):
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server, "--no-guard") as ours,
    ):
        client = connect(port, 1)
        watch(client, 40, [])
        ours.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        ours.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            ours.wait(3)  # it has asked, and stays until SUMO has answered: leaving would end the simulation
        watch(client, client.simulation.getTime() + 10, [])
        assert ours.wait(30) == 1
        assert "without a safe transition" in ours.stderr.read()
        watch(client, client.simulation.getTime() + 30, [])
        assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
        client.close()
