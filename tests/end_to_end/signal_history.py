"""What every signal of the sample city showed, second by second, as another client of the simulation saw it."""

import itertools

from city import network
from signals.safety.signal_safety import ConflictRules
from tests.conftest import GRID

SIGNALS = ("A0", "A1", "A2", "B0", "B1", "B2", "C0", "C1", "C2")


def step_until(client, until_s, history):
    """Step second by second as the other client, and append every signal's state to `history`."""
    while client.simulation.getTime() < until_s:
        client.simulationStep()
        history.append({s: client.trafficlight.getRedYellowGreenState(s) for s in SIGNALS})


def assert_in_step(client):
    """Every signal shows what its program would show if no client had ever set it."""
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
