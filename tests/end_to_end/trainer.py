"""The other client of a simulation of the sample city."""

import contextlib
import itertools

from city import network
from signals.safety.signal_safety import ConflictRules
from tests.conftest import GRID
from tests.end_to_end.programs import connect, controller, sumo

SIGNALS = ("A0", "A1", "A2", "B0", "B1", "B2", "C0", "C1", "C2")


class Trainer:
    """Steps the simulation second by second, and records every signal's state and program."""

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

    def until(self, condition, within_s):
        begin = len(self.history)
        while not condition():
            self.step()
            assert len(self.history) - begin < within_s, (
                f"{self.online()} are set by a client at second {len(self.history)}"
            )

    def log_after_end(self, process, exit_code=0):
        """Step until a process has ended; return what it has logged."""
        self.until(lambda: process.poll() is not None, 100_000)
        log = process.stderr.read()
        assert process.returncode == exit_code, log
        return log

    def is_frozen(self, signal, begin_s):
        """A signal has shown at most two states since a second."""
        return len({states[signal] for states in self.history[begin_s:]}) <= 2

    def assert_in_step(self):
        """Every signal shows what its program would show if no client had ever set it."""
        now = self.client.simulation.getTime()
        for s, signal in network.of_sumocfg(GRID / "grid.sumocfg").signals.items():
            seconds = [phase.state for phase in signal.plan.phases for _ in range(int(phase.duration_s))]
            assert self.history[-1][s] == seconds[int(now - 1 - signal.plan.offset_s) % len(seconds)], s

    def assert_safe(self, *signals):
        """Signals, or all of them, were never without a yellow between green and red, and never gave green to foes."""
        street = network.of_sumocfg(GRID / "grid.sumocfg")
        for s in signals or SIGNALS:
            rules = ConflictRules(street.signals[s])
            for before, after in itertools.pairwise(self.history):
                assert rules.conflicts(after[s]) == []
                for a, b in zip(before[s], after[s], strict=True):
                    assert not (a in "Gg" and b == "r"), f"{s} went from {before[s]} to {after[s]}"


@contextlib.contextmanager
def beside_another_client(*flags, sumo_flags=()):
    """(the other client, the controller's process) on one SUMO; the controller is the second client."""
    with (
        sumo(2, *sumo_flags) as (port, _),
        controller("--policy", "max-pressure", "--sumo", f"127.0.0.1:{port}", "--order", 2, *flags) as process,
    ):
        trainer = Trainer(port)
        yield trainer, process
        trainer.client.close()
