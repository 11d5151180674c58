"""The controller beside another client of the same simulation, and every way it can end."""

import contextlib
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.sumo.start import CLOSE_TIMEOUT_S
from tests.conftest import GRID
from tests.end_to_end.programs import connect, controller, free_port, sumo
from tests.end_to_end.signal_history import SIGNALS, assert_in_step, assert_safe
from tests.end_to_end.trainer import Trainer


@contextlib.contextmanager
def beside_another_client(grid_server, *flags):
    """(the other client, the controller's process) on one SUMO."""
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server, *flags) as process,
    ):
        trainer = Trainer(port)
        yield trainer, process
        trainer.client.close()


def programs_of(trainer):
    return {trainer.client.trafficlight.getProgram(s) for s in SIGNALS}


def step_until_it_ends(trainer, process):
    """Step until the controller has ended; return its stderr."""
    while process.poll() is None and len(trainer.history) < 400:
        trainer.step()
    exit_code, log = process.wait(30), process.stderr.read()
    assert exit_code == 0, log
    assert programs_of(trainer) == {"adapted"}
    return log


def test_only_infer_tls_are_touched_and_all_are_released_safely_on_sigterm(grid_server):
    with beside_another_client(grid_server, "--infer-tl", "SA101,SA108") as (trainer, process):
        trainer.step(120)
        assert trainer.online() == {"A0", "C1", "C2"}
        process.send_signal(signal.SIGTERM)
        assert "released all signals" in step_until_it_ends(trainer, process)
        # the programs run, and the other client was never disturbed
        trainer.step(100)
        for s in SIGNALS:
            assert len({states[s] for states in trainer.history[-100:]}) > 2, f"{s} is frozen"
        assert_in_step(trainer.client)
    assert_safe(trainer.history, ("A0", "C1", "C2"))


def test_signals_are_released_at_the_requested_end(grid_server):
    with beside_another_client(grid_server, "--end", "60") as (trainer, process):
        step_until_it_ends(trainer, process)
    assert_safe(trainer.history, SIGNALS)


def in_parallel(grid_server, *cases):
    """Run cases beside each other: each waits as long as a connection's time-out, in wall time."""
    with ThreadPoolExecutor(len(cases)) as pool:
        for case in [pool.submit(case, grid_server) for case in cases]:
            case.result()


def test_a_start_that_waits_for_sumo_is_interrupted_or_refused(grid_server):
    in_parallel(grid_server, _interrupted_before_control_begins, _with_an_order_in_use)


def _interrupted_before_control_begins(grid_server):
    # the second client never connects, so SUMO lets the controller wait
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as process,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 1
        assert "interrupted before any signal was touched" in process.stderr.read()


def _with_an_order_in_use(grid_server):
    """The other client of this order continues."""
    with sumo(2) as (port, _):
        # SUMO answers the first client once the second has connected
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, port, 1)
            with controller("--sumo", f"127.0.0.1:{port}", "--order", "1", "--server", grid_server) as process:
                assert process.wait(20) == 2
                assert "rejects order 1 for this client" in process.stderr.read()
            client = connecting.result(20)
        for _ in range(30):
            client.simulationStep()
        client.close()


@pytest.mark.slow
def test_the_controller_waits_while_sumo_waits_for_another_client(grid_server):
    in_parallel(grid_server, _stopped_while_another_client_computes, _stopped_as_one_of_two)


def _stopped_while_another_client_computes(grid_server):
    """SIGTERM while another client computes: the controller waits until SUMO steps, then releases."""
    with beside_another_client(grid_server) as (trainer, process):
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(CLOSE_TIMEOUT_S + 1)
        step_until_it_ends(trainer, process)
        trainer.step(20)
    assert_safe(trainer.history, SIGNALS)


def _stopped_as_one_of_two(grid_server):
    """A SUMO that the controller started for two clients continues for the other one when the controller is stopped."""
    port = str(free_port())
    with controller("--clients", "2", "--order", "2", "--server", grid_server, "--sumo-port", port) as process:
        trainer = Trainer(int(port))
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        trainer.step(80)
        assert programs_of(trainer) == {"adapted"}
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(CLOSE_TIMEOUT_S + 1)
        trainer.step(40)
        trainer.client.close()
        assert process.wait(30) == 0


def test_after_a_second_signal_the_guard_hands_back_without_waiting(grid_server):
    with beside_another_client(grid_server) as (trainer, process):
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 1  # although SUMO waits for the other client
        trainer.step(40)
        assert programs_of(trainer) == {"adapted"}
        assert "left to the guard" in process.stderr.read()
    assert_safe(trainer.history, SIGNALS)


def test_without_a_guard_a_second_signal_hands_back_at_once(grid_server):
    with beside_another_client(grid_server, "--no-guard") as (trainer, process):
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)  # it waits for SUMO's answer, because dropping the connection would end the simulation
        trainer.step(10)
        assert process.wait(30) == 1
        assert "without a safe transition" in process.stderr.read()
        trainer.step(30)
        assert programs_of(trainer) == {"adapted"}


@pytest.mark.parametrize(("order", "flags"), [(1, ()), (1, ("--no-guard",)), (2, ())], ids=["guard", "alone", "later"])
def test_another_clients_load_ends_the_control_and_leaves_no_signal_frozen(order, flags):
    """If a later client loads, SUMO 1.28 answers none of its clients any more: the controller leaves at once."""
    own = ("--policy", "max-pressure", "--order", str(3 - order), *flags)
    with sumo(2) as (port, process), controller("--sumo", f"127.0.0.1:{port}", *own) as controlling:
        client = connect(port, order)
        for _ in range(60):
            client.simulationStep()
        client.load(["-c", str(GRID / "grid.sumocfg")])
        for _ in range(100 if order == 1 else 0):
            client.simulationStep()
        assert controlling.wait(30) == 1
        log = controlling.stderr.read()
        assert log.count(" ERROR ") == 1 and "another client has loaded another simulation" in log
        if order == 1:
            assert {client.trafficlight.getProgram(s) for s in SIGNALS} == {"adapted"}
            client.close()
        else:
            process.kill()  # it hangs
