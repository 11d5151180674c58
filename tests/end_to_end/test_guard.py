"""The guard: a controller is killed, hangs and reconnects while the simulation's other clients continue."""

import signal
import subprocess
import sys
import time

import pytest

from tests.end_to_end.programs import CITY, controller, free_port, guard, guard_log, socket_of, started, sumo
from tests.end_to_end.trainer import SIGNALS, Trainer, beside_another_client
from tests.sample_city import write_city


def test_a_trainer_continues_while_the_controller_is_killed_and_restarted():
    with sumo(2) as (port, _):
        flags = ("--sumo", f"127.0.0.1:{port}", "--order", 2, "--policy", "max-pressure")
        with controller(*flags) as process:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
            trainer.step(60)
            process.kill()
            assert "; its log is" in process.stderr.read()  # up to its end, although the guard still runs
            trainer.until(lambda: not trainer.online(), 60)
            # the programs run, synchronised with the simulation's clock
            trainer.step(90)
            trainer.assert_in_step()
        with controller(*flags, "--end", 1) as misconfigured:
            # a controller that reconnects and cannot start does not end the guard
            refusal = trainer.log_after_end(misconfigured, exit_code=2)
            assert "--end 1: the simulation is already at second" in refusal
        with controller(*flags) as again:
            trainer.until(lambda: trainer.online() == set(SIGNALS), 20_000)
            trainer.step(60)
            assert trainer.online() == set(SIGNALS)
            again.send_signal(signal.SIGTERM)
            trainer.until(lambda: not trainer.online(), 90)
            assert "holds the connection to SUMO; continuing through it" in trainer.log_after_end(again)
        trainer.step(30)
        trainer.client.close()
    trainer.assert_safe()


def test_a_controller_that_hangs_loses_its_signals_and_ends_later(tmp_path):
    city = write_city(tmp_path, ("[controller]\n", "[controller]\nwatchdog_s = 1\n"))
    with beside_another_client("--city", city) as (trainer, process):
        trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
        process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        trainer.until(lambda: not trainer.online(), 90)
        assert time.monotonic() - begin < 15
        trainer.step(50)
        process.send_signal(signal.SIGCONT)
        trainer.step(5)
        assert process.wait(30) == 1
        assert not trainer.online()
    trainer.assert_safe()


@pytest.mark.parametrize("crashed", ["SUMO", "another client"])
def test_a_crash_of_sumo_or_of_a_client_gives_one_line_per_program(crashed):
    with sumo(2) as (port, sumo_process), controller("--policy", "max-pressure", "--sumo", f"127.0.0.1:{port}",
                                                     "--order", 2) as process:  # fmt: skip
        trainer = Trainer(port)
        trainer.step(20)
        if crashed == "SUMO":
            sumo_process.kill()
        else:
            socket_of(trainer.client).close()  # without CLOSE: SUMO ends for all its clients
        assert process.wait(30) == 1
        text = process.stderr.read()
        lines = text.splitlines() + guard_log(text).splitlines()
        assert [line for line in lines if "was lost at second" in line and "or the guard" in line]
        assert [line for line in lines if "guard: SUMO has ended" in line]
        assert not [line for line in lines if "Traceback" in line]


def test_simulation_of_an_only_client_waits_for_the_next_controller():
    """Else the guard would step to the end as fast as SUMO does, while a container is restarted."""
    with sumo(1, "--end", "100000") as (port, sumo_process):
        held = free_port()
        flags = ("--sumo", f"127.0.0.1:{held}", "--no-guard", "--policy", "max-pressure", "--log-level", "debug")
        with guard("--sumo", f"127.0.0.1:{port}", "--port", held, "--only-client") as holder:
            with controller(*flags) as process:
                wait_for_line(process.stderr, "second 60")
            at_s = float(wait_for_line(holder.stderr, "handed 9 signals back").rpartition("second ")[2])
            wait_for_line(holder.stderr, "no other client is connected; the simulation waits")
            with controller(*flags) as process:
                line = wait_for_line(process.stderr, "controlling SA101")
                assert float(line.partition("from second ")[2].partition(",")[0]) < at_s + 60
                wait_for_line(process.stderr, "SA101, SA102")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            assert sumo_process.poll() is None


def wait_for_line(stream, text):
    return next(line for line in stream if text in line)


def test_of_two_controllers_started_at_once_only_one_controls():
    with sumo(2) as (port, _):
        flags = ("--sumo", f"127.0.0.1:{port}", "--order", 2, "--policy", "max-pressure")
        with controller(*flags) as first, controller(*flags) as second:
            trainer = Trainer(port)
            trainer.until(lambda: 2 in (first.poll(), second.poll()), 20_000)
            refused, controlling = (first, second) if first.poll() == 2 else (second, first)
            assert "has a controller already" in refused.stderr.read()
            trainer.until(lambda: trainer.online() == set(SIGNALS), 20_000)
            trainer.step(60)
            assert controlling.poll() is None and trainer.online() == set(SIGNALS)
            trainer.client.close()


FAILING = """
import sys
from controller.__main__ import main
from controller.decision_step import DecisionLoop
from controller.sumo.connection import {error}

step = DecisionLoop.step

def failing(self, end_s):
    step(self, end_s)
    if self.now > 60:
        DecisionLoop.step = step
        raise {raised}("an unexpected failure")

class Unexpected(Exception):
    pass

DecisionLoop.step = failing
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "error",
    [
        "WaitAborted",
        "SumoConnectionLost as Unexpected",
        *(pytest.param(error, marks=pytest.mark.slow) for error in ("CommandRejected", "SumoConnectionLost")),
    ],
)
def test_the_guard_hands_back_the_signals_of_a_controller_that_fails(error):
    """Whatever the error is, although SUMO still runs."""
    code = FAILING.format(error=error, raised=error.rpartition(" ")[2])
    with sumo(2) as (port, _):
        flags = ("--sumo", f"127.0.0.1:{port}", "--order", 2, "--policy", "max-pressure", "--city", CITY)
        with started([sys.executable, "-c", code, *flags], stderr=subprocess.PIPE, text=True) as process:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
            trainer.until(lambda: not trainer.online(), 150)
            log = trainer.log_after_end(process, exit_code=1)
            assert ("an unexpected failure" in log) is (error != "WaitAborted")
            trainer.step(60)
            trainer.client.close()
    trainer.assert_safe()
