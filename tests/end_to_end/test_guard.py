"""The guard: a controller is killed, hangs and comes back, and the others in its simulation go on undisturbed."""

import signal
import subprocess
import sys
import time

import pytest

from tests.end_to_end.programs import CITY, connect, controller, guard, guard_says, sumo
from tests.end_to_end.test_several_clients import SIGNALS, assert_in_step, assert_safe


class Trainer:
    """The other client of the simulation: steps for as long as it is asked to, and notes what every signal shows."""

    def __init__(self, port):
        self.client = connect(port, 1)
        self.history, self.programs = [], []

    def step(self, seconds=1):
        for _ in range(seconds):
            self.client.simulationStep()
            self.history.append({s: self.client.trafficlight.getRedYellowGreenState(s) for s in SIGNALS})
            self.programs.append({s: self.client.trafficlight.getProgram(s) for s in SIGNALS})

    def online(self):
        return {s for s, program in (self.programs or [{}])[-1].items() if program == "online"}

    def until(self, wanted, within_s):
        begin = len(self.history)
        while not wanted():
            self.step()
            assert len(self.history) - begin < within_s, f"{self.online()} are set by hand at second {len(self.history)}"


def test_a_trainer_goes_on_while_the_controller_is_killed_and_started_again(grid_server):
    with sumo(2) as (port, _):
        words = ("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server)
        with controller(*words) as ours:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
            trainer.step(60)
            ours.kill()
            ours.wait()
            assert "what it says is in" in ours.stderr.read()  # to its end, though the guard goes on
            trainer.until(lambda: not trainer.online(), 60)
            # the plans run, in step with their clock
            trainer.step(90)
            assert_in_step(trainer.client)
        with controller(*words, "--end", "1") as mistaken:
            # what comes back and cannot begin does not take the guard with it
            trainer.until(lambda: mistaken.poll() is not None, 20_000)
            assert mistaken.returncode == 2 and "--end 1 lies before second" in mistaken.stderr.read()
        with controller(*words) as again:
            trainer.until(lambda: trainer.online() == set(SIGNALS), 20_000)
            trainer.step(60)
            assert trainer.online() == set(SIGNALS)
            again.send_signal(signal.SIGTERM)
            trainer.until(lambda: not trainer.online(), 90)
            while again.poll() is None:
                trainer.step()
            assert again.wait(30) == 0, again.stderr.read()
            assert "holds the connection to SUMO; going on through it" in again.stderr.read()
        trainer.step(30)
        trainer.client.close()
    assert_safe(trainer.history, SIGNALS)


def test_a_controller_that_hangs_loses_its_signals_and_ends_when_it_wakes(grid_server, tmp_path):
    from tests.conftest import GRID

    city = tmp_path / "city.toml"
    text = (GRID / "city.toml").read_text().replace("grid.sumocfg", str(GRID / "grid.sumocfg"))
    section = "[controller]\n" if "[controller]" in text else ""
    city.write_text(
        text.replace("[controller]\n", "[controller]\nwatchdog_s = 1\n") if section else text + "\n[controller]\nwatchdog_s = 1\n"
    )
    with sumo(2) as (port, _), controller(
        "--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server, "--city", str(city)
    ) as ours:  # fmt: skip
        trainer = Trainer(port)
        trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
        ours.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        trainer.until(lambda: not trainer.online(), 90)
        assert time.monotonic() - begin < 15
        trainer.step(50)
        ours.send_signal(signal.SIGCONT)
        trainer.step(5)
        assert ours.wait(30) == 1
        assert not trainer.online()
        trainer.client.close()
    assert_safe(trainer.history, SIGNALS)


@pytest.mark.parametrize("who", ["SUMO", "another client"])
def test_the_crash_of_sumo_or_of_another_client_ends_guard_and_controller_with_one_line_each(grid_server, who):
    with (
        sumo(2) as (port, process),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        trainer = Trainer(port)
        trainer.step(20)
        if who == "SUMO":
            process.kill()
        else:
            trainer.client._socket.close()  # without a goodbye: SUMO ends for all
        assert ours.wait(30) == 1
        told = ours.stderr.read()
        lines = told.splitlines() + guard_says(told).splitlines()
        assert [line for line in lines if "SUMO is gone at second" in line and "or the guard" in line]
        assert [line for line in lines if "guard: SUMO has ended" in line]
        assert not [line for line in lines if "Traceback" in line]


def test_the_others_do_not_stand_still_for_a_controller_that_never_comes():
    with sumo(2) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--order", 2, "--first-s", 0.5) as process:
        trainer = Trainer(port)
        trainer.step(60)
        assert process.stdout.readline().startswith("ready ")
        process.terminate()  # it closes in an orderly way: the simulation goes on
        while process.poll() is None:
            trainer.step()
        assert process.wait(30) == 0
        trainer.step(30)
        trainer.client.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--sumo HOST:PORT to attach"),
        (("--sumo", "nowhere"), "must be HOST:PORT"),
        (("--sumo", "127.0.0.1:99999"), "must be HOST:PORT"),
        (("--sumo", "127.0.0.1:1", "--port", "70000"), "cannot be listened on"),
        (("--sumo", "127.0.0.1:1", "--watchdog-s", "0"), "must lie between"),
        (("--sumo", "127.0.0.1:1", "--order", "99999999999"), "--order 99999999999 must be"),
        (("--clients", "0", "--", "-c", "x"), "--clients 0 must be"),
        (("--sumo-port", "99999", "--", "-c", "x"), "--sumo-port 99999 must lie"),
    ],
)
def test_wrong_words_to_a_guard_are_one_line(words, told):
    done = subprocess.run([sys.executable, "-m", "controller.guard", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and told in done.stderr


def test_a_controller_is_refused_where_the_guard_has_one(grid_server):
    with sumo(2) as (port, _):
        words = ("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server)
        with controller(*words) as ours:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
            with controller(*words) as second:
                trainer.until(lambda: second.poll() is not None, 20_000)
                assert second.returncode == 2 and "takes no controller now: it has one" in second.stderr.read()
            assert ours.poll() is None and trainer.online() == set(SIGNALS)
            trainer.client.close()


def test_of_two_controllers_that_start_at_once_one_controls_and_the_other_ends_alone(grid_server):
    with sumo(2) as (port, _):
        words = ("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server)
        with controller(*words) as one, controller(*words) as other:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 20_000)
            trainer.until(lambda: None not in (one.poll(), other.poll()) or {one.poll(), other.poll()} == {None, 2}, 20_000)
            refused, controls = (one, other) if one.poll() == 2 else (other, one)
            assert "takes no controller now: it has one" in refused.stderr.read()
            trainer.step(60)
            assert controls.poll() is None and trainer.online() == set(SIGNALS)
            trainer.client.close()


FAILING = """
import sys
from controller.__main__ import main
from controller.decision_step import DecisionSteps
from controller.sumo.link import {error}

step = DecisionSteps.step

def failing(self, end_s):
    step(self, end_s)
    if self.now > 60:
        DecisionSteps.step = step
        raise {error}("what nobody thought of")

class Unforeseen(Exception):
    pass

DecisionSteps.step = failing
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("error", ["CommandRejected", "SumoConnectionLost", "WaitAborted", "SumoConnectionLost as Unforeseen"])
def test_a_controller_that_fails_leaves_its_signals_to_the_guard_and_not_to_themselves(grid_server, error):
    """Whatever it thinks has happened, and though SUMO is there and well."""
    code = FAILING.replace("{error}", error, 1).replace("{error}", error.rpartition(" ")[2])
    with sumo(2) as (port, _):
        words = ("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server, "--city", CITY)
        ours = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
        try:
            trainer = Trainer(port)
            trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
            trainer.until(lambda: not trainer.online(), 150)
            trainer.until(lambda: ours.poll() is not None, 20_000)
            assert ours.returncode == 1
            trainer.step(60)
            trainer.client.close()
        finally:
            ours.kill()
            told = ours.communicate()[1]
        assert "what nobody thought of" in told or error == "WaitAborted"
    assert_safe(trainer.history, SIGNALS)
