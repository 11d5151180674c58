"""The other client of a simulation that the guard holds."""

from tests.end_to_end.programs import connect
from tests.end_to_end.signal_history import SIGNALS


class Trainer:
    """The other client of the simulation: steps it, and records every signal's state and program."""

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
