"""The guard: a controller is killed, hangs and comes back, and the others in its simulation go on undisturbed."""

import signal
import time

from tests.end_to_end.programs import connect, controller, sumo
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
            trainer.until(lambda: not trainer.online(), 60)
            # the plans run, in step with their clock
            trainer.step(90)
            assert_in_step(trainer.client)
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


def test_the_end_of_sumo_ends_guard_and_controller(grid_server):
    with (
        sumo(2) as (port, process),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        trainer = Trainer(port)
        trainer.step(20)
        process.kill()
        assert ours.wait(30) == 1
        lines = ours.stderr.read().splitlines()  # the guard's too: it has ended
        assert [line for line in lines if "SUMO is gone" in line] and [line for line in lines if "SUMO has ended" in line]
        assert not [line for line in lines if "Traceback" in line]


def test_another_clients_crash_is_one_line_and_exit_code_1(grid_server):
    with (
        sumo(2) as (port, _),
        controller("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server) as ours,
    ):
        trainer = Trainer(port)
        trainer.step(20)
        trainer.client._socket.close()  # without a goodbye: SUMO ends for all
        assert ours.wait(30) == 1
        lines = ours.stderr.read().splitlines()
        assert [line for line in lines if "SUMO is gone at second" in line]
        assert not [line for line in lines if "Traceback" in line]


def test_a_controller_is_refused_where_the_guard_has_one(grid_server):
    with sumo(2) as (port, _):
        words = ("--sumo", f"127.0.0.1:{port}", "--order", "2", "--server", grid_server)
        with controller(*words) as ours, controller(*words) as second:
            trainer = Trainer(port)
            while second.poll() is None and ours.poll() is None:
                trainer.step()
            codes = {one.poll() for one in (ours, second)}
            assert 2 in codes and None in codes
            trainer.client.close()
