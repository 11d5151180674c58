"""Other clients of the same simulation that set the controller's signals."""

import contextlib
import re
import socket

import pytest

from controller.sumo.connection import OWNER_KEY
from tests.end_to_end.programs import ModelServer, controller, guard_log, sumo
from tests.end_to_end.trainer import Trainer, beside_another_client

GUARDED = pytest.mark.parametrize("flags", [(), ("--no-guard",)], ids=["guard", "no guard"])
GUARDED_DAILY = pytest.mark.parametrize(
    "flags", [(), pytest.param(("--no-guard",), marks=pytest.mark.slow)], ids=["guard", "no guard"]
)


def attached(*flags, end=200, **options):
    """A controller of A0; yields (the other client, the controller's process)."""
    return beside_another_client("--infer-tl", "SA101", "--end", end, *flags, **options)


@GUARDED
def test_state_of_another_client_is_reported_and_set_right(flags):
    with attached(*flags) as (trainer, process):
        trainer.step(50)
        green = "G" * len(trainer.history[-1]["A0"])
        trainer.client.trafficlight.setRedYellowGreenState("A0", green)
        trainer.step(30)
        left = next(k for k, states in enumerate(trainer.history) if k >= 50 and states["A0"] != green)
        assert left <= 62, "left within one decision and min green"
        before, after = trainer.history[left - 1]["A0"], trainer.history[left]["A0"]
        assert all(b in "Gy" for a, b in zip(before, after, strict=True) if a == "G"), (before, after)
        log = trainer.log_after_end(process)
        assert log.count("unexpected_state") == 1 and f" right ({green}), but" in log
        assert "another client sets this signal" in log
        assert set(trainer.programs[-1].values()) == {"adapted"} and not trainer.is_frozen("A0", 80)


@GUARDED_DAILY
def test_state_of_another_client_is_left_while_the_fallback_plan_runs(grid_models, tmp_path, flags):
    server = ModelServer(grid_models, tmp_path / "socket")
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", 2, "--infer-tl", "SA101", "--end", 200,
                   "--server", server.address, *flags) as process,
    ):  # fmt: skip
        trainer = Trainer(port)
        trainer.step(50)
        server.stop()
        trainer.step(70)
        assert trainer.programs[-1]["A0"] == "adapted"
        green = "G" * len(trainer.history[-1]["A0"])
        trainer.client.trafficlight.setRedYellowGreenState("A0", green)
        trainer.step(30)
        assert trainer.programs[-1]["A0"] == "adapted"
        states = [states["A0"] for states in trainer.history]
        left = max(k for k, state in enumerate(states) if state == green) + 1
        assert states[left] == green.replace("G", "y") and green.replace("G", "r") in states[left:]
        log = trainer.log_after_end(process)
        assert log.count("unexpected_state") == 1
        assert f" right ({green}), which another client set in place of its program" in log
        trainer.client.close()


@GUARDED_DAILY
def test_states_of_the_wrong_length_are_reported_and_set_right(flags):
    with attached(*flags, "--infer-tl", "SA102", end=150) as (trainer, process):
        trainer.step(50)
        for links in (-1, 1):
            trainer.client.trafficlight.setRedYellowGreenState("A0", "r" * (len(trainer.history[49]["A0"]) + links))
            trainer.step(40)
            assert not trainer.is_frozen("A0", -25)
        alarms = re.findall(r"ALARM: (\S+) at \d+: (\w+)", trainer.log_after_end(process))
        assert set(alarms) == {("A0", "unexpected_state"), ("A0", "invalid_state")}


def test_alarms_of_a_client_that_sets_a_signal_again_and_again_are_limited():
    with attached() as (trainer, process):
        trainer.step(20)
        for _ in range(150):
            trainer.client.trafficlight.setRedYellowGreenState("A0", "r" * len(trainer.history[-1]["A0"]))
            trainer.step()
        lines = [line for line in trainer.log_after_end(process).splitlines() if "unexpected_state" in line]
        assert 2 <= len(lines) <= 5 and "more since second" in lines[-1]


@GUARDED_DAILY
def test_second_controller_of_the_same_signals_is_refused(flags):
    with sumo(3) as (port, _):
        shared = ("--policy", "max-pressure", "--sumo", f"127.0.0.1:{port}", "--end", 200, *flags)
        with (
            controller(*shared, "--order", 2, "--infer-tl", "SA101,SA108") as first,
            controller(*shared, "--order", 3, "--infer-tl", "SA101") as second,
        ):
            trainer = Trainer(port)
            refusal = trainer.log_after_end(second, exit_code=2)
            assert "error: signal A0 is controlled by another controller, process" in refusal
            assert "unexpected_state" not in trainer.log_after_end(first)
            assert trainer.client.simulation.getParameter("", f"{OWNER_KEY}.A0") == "", "it has ended"
            trainer.client.close()


def test_guard_of_a_killed_controller_ends_at_the_controllers_end():
    with attached(end=100, sumo_flags=("--end", "1000000")) as (trainer, process):
        trainer.step(50)
        assert trainer.online() == {"A0"}
        process.kill()
        log = process.stderr.read()
        trainer.step(100)
        assert not trainer.online()
        guard_port = int(re.search(r"--no-guard --sumo 127\.0\.0\.1:(\d+)", log)[1])
        with contextlib.suppress(ConnectionRefusedError):
            for _ in range(1000):
                socket.create_connection(("127.0.0.1", guard_port), timeout=10).close()
                trainer.step()
            pytest.fail("the guard still listens")
        assert "no controller has connected before the simulation's end, second 10" in guard_log(log)
