"""TraCI and libsumo are equivalent: a run reads and shows the same over both."""

from collections import defaultdict

import numpy as np
import pytest

from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from signals import contract
from signals.policy import Answer
from signals.safety.monitor import SignalMonitor
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity

END_S = 200


class AlternatingPolicies:
    """Choose another green at every decision, and record the observations."""

    def __init__(self, sizes):
        self.sizes, self.observed = sizes, []

    def ask(self, observations, observed_s=None):
        self.observed.append({tl: x.tolist() for tl, x in observations.items()})
        return {tl: Answer(np.array([len(self.observed) % self.sizes[tl]])) for tl in observations}


@pytest.fixture
def shown(monkeypatch):
    """By signal, the states that its monitor is fed with, with begin and end in s."""
    states = defaultdict(list)

    def check_shown(monitor, *state_begin_end):
        states[monitor.signal].append(state_begin_end)
        return []

    monkeypatch.setattr(SignalMonitor, "check_shown", check_shown)
    return states


def run(connection, grid_city, grid_street, shown):
    shown.clear()
    tls = {tl: settings for tl, settings in grid_city.tls.items() if settings.dialect == "sumo-rl"}
    contracts = [contract.build(grid_city, settings, grid_street) for settings in tls.values()]
    policies = AlternatingPolicies({c.tl: c.action.size for c in contracts})
    try:
        controlled = ControlledCity(connection, grid_city, grid_street, contracts, policies)
        controlled.advance(END_S)
        controlled.loop.finish()
        return policies.observed, dict(shown)
    finally:
        connection.close()


@pytest.mark.parametrize("step_s", [1.0, 0.5])
def test_observations_and_shown_states_agree_over_traci_and_libsumo(grid_city, grid_street, shown, step_s):
    options = [*OPTIONS, "--seed", "7", "--step-length", str(step_s)]
    observed, over_traci = run(
        start.connect(SumoAccess(arguments=options), Interrupts()), grid_city, grid_street, shown
    )
    assert (observed, over_traci) == run(start_libsumo(options), grid_city, grid_street, shown)
    assert len(observed) == END_S / 5 and any(map(any, observed[-1].values()))
    for parts in over_traci.values():
        # without gaps, including yellows inside an exchange
        assert [end for _, _, end in parts[:-1]] == [begin for _, begin, _ in parts[1:]]
        assert parts[0][1] == 0 and parts[-1][2] == END_S and any("y" in state for state, _, _ in parts)
