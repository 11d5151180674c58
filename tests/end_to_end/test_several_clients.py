"""The controller beside another client of the same simulation, and every way it can end."""

import contextlib
import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.sumo.start import CLOSE_TIMEOUT_S
from tests.conftest import GRID
from tests.end_to_end.programs import ModelServer, connect, controller, free_port, sumo
from tests.end_to_end.trainer import SIGNALS, Trainer, beside_another_client
from tests.sample_city import DISTRICTS, districts, write_city

OWN_PROGRAMS = dict.fromkeys(SIGNALS, "adapted")
ALONE = ("--policy", "max-pressure")


def test_only_infer_tls_are_touched_and_all_are_released_safely_on_sigterm():
    with beside_another_client("--infer-tl", "SA101,SA108") as (trainer, process):
        trainer.step(60)
        assert trainer.online() == {"A0", "C1", "C2"}
        process.send_signal(signal.SIGTERM)
        assert "released all signals" in trainer.log_after_end(process)
        # the programs run, and the other client was never disturbed
        trainer.step(100)
        assert trainer.programs[-1] == OWN_PROGRAMS and not any(trainer.is_frozen(s, -100) for s in SIGNALS)
        trainer.assert_in_step()
    trainer.assert_safe("A0", "C1", "C2")


def in_parallel(*cases):
    """Run cases beside each other: each waits as long as a connection's time-out, in wall time."""
    with ThreadPoolExecutor(len(cases)) as pool:
        for case in [pool.submit(case) for case in cases]:
            case.result()


def test_a_start_that_waits_for_sumo_is_interrupted_or_refused():
    in_parallel(_interrupted_before_control_begins, _with_an_order_in_use)


def _interrupted_before_control_begins():
    # the second client never connects, so SUMO lets the controller wait
    with sumo(2) as (port, _), controller(*ALONE, "--sumo", f"127.0.0.1:{port}", "--order", 2) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 1
        assert "interrupted before any signal was touched" in process.stderr.read()


def _with_an_order_in_use():
    """The other client of this order continues."""
    with sumo(2) as (port, _), ThreadPoolExecutor(1) as pool:
        # SUMO answers the first client once the second has connected
        connecting = pool.submit(Trainer, port)
        with controller(*ALONE, "--sumo", f"127.0.0.1:{port}", "--order", 1) as process:
            assert process.wait(20) == 2
            assert "rejects order 1 for this client" in process.stderr.read()
        trainer = connecting.result(20)
        trainer.step(30)
        trainer.client.close()


@pytest.mark.slow
def test_the_controller_waits_while_sumo_waits_for_another_client():
    in_parallel(_stopped_while_another_client_computes, _stopped_as_one_of_two)


def _stopped_while_another_client_computes():
    """SIGTERM while another client computes: the controller waits until SUMO steps, then releases."""
    with beside_another_client() as (trainer, process):
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(CLOSE_TIMEOUT_S + 1)
        trainer.log_after_end(process)
        trainer.step(20)
        assert trainer.programs[-1] == OWN_PROGRAMS
    trainer.assert_safe()


def _stopped_as_one_of_two():
    """A SUMO that the controller started for two clients continues for the other one when the controller is stopped."""
    port = free_port()
    with controller(*ALONE, "--clients", 2, "--order", 2, "--sumo-port", port) as process:
        trainer = Trainer(port)
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        trainer.step(80)
        assert trainer.programs[-1] == OWN_PROGRAMS
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(CLOSE_TIMEOUT_S + 1)
        trainer.step(40)
        trainer.client.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("flags", [(), ("--no-guard",)], ids=["guard", "no guard"])
def test_a_second_signal_hands_back_without_a_safe_transition(flags):
    with beside_another_client(*flags) as (trainer, process):
        trainer.step(40)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        if flags:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(
                    1.5
                )  # it waits for SUMO's answer, because dropping the connection would end the simulation
            trainer.step(10)
        assert process.wait(30) == 1  # with a guard, although SUMO waits for the other client
        assert ("without a safe transition" if flags else "left to the guard") in process.stderr.read()
        trainer.step(40)
        assert trainer.programs[-1] == OWN_PROGRAMS
    if not flags:
        trainer.assert_safe()


@pytest.mark.parametrize(("order", "flags"), [(1, ()), (1, ("--no-guard",)), (2, ())], ids=["guard", "alone", "later"])
def test_another_clients_load_ends_the_control_and_leaves_no_signal_frozen(order, flags):
    """If a later client loads, SUMO 1.28 answers none of its clients any more: the controller leaves at once."""
    own = (*ALONE, "--order", 3 - order, *flags)
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


def test_district_whose_server_is_lost_leaves_the_other_untouched(grid_server, grid_models, tmp_path):
    lost = ModelServer(grid_models, tmp_path / "socket")
    city, controllers = write_city(tmp_path, more=districts(grid_server, lost.address)), []
    with sumo(2) as (port, _), contextlib.ExitStack() as closing:
        for order, name in enumerate(DISTRICTS, 1):
            arguments = ["--city", city, "--district", name, "--sumo", f"127.0.0.1:{port}", "--order", order]
            # answers may be late if other tests run beside this one
            arguments += ["--summary", tmp_path / name, "--end", 150, "--deadline-ms", 4000, "--no-guard"]
            controllers.append(closing.enter_context(controller(*arguments)))
        for process in controllers:
            # SUMO begins when both clients are there
            assert any("controlling" in line for line in process.stderr)
        lost.stop()
        for process in controllers:
            log = process.stderr.read()
            assert process.wait(120) == 0, log
    north, south = (json.loads((tmp_path / name).read_text()) for name in DISTRICTS)
    assert north["missing_answers"] == 0 and north["decisions"] > 75 and north["alarms"] == 0
    assert south["missing_answers"] > 0 and south["fallbacks"] > 0 and south["alarms"] == 0
