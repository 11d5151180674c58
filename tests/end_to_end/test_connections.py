"""TraCI and libsumo are equivalent: a run reads and shows the same over both."""

import contextlib
from collections import defaultdict

import pytest

from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from signals import contract
from tests.controller.decision_events import Events
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity
from tests.end_to_end.generated_streets import AdversarialPolicies

END_S = 200


def run(connection, grid_city, grid_street):
    """(observations of each decision, by signal the (begin, end, state) that SUMO showed)."""
    tls = {tl: settings for tl, settings in grid_city.tls.items() if settings.dialect == "sumo-rl"}
    contracts = [contract.build(grid_city, settings, grid_street) for settings in tls.values()]
    events, shown = Events(), defaultdict(list)
    with contextlib.closing(connection):
        policies = AdversarialPolicies("flipping", contracts)
        controlled = ControlledCity(connection, grid_city, grid_street, contracts, policies, [events])
        controlled.advance(END_S)
        controlled.loop.finish()
    observed = [{each.tl: each.observation.tolist() for each in event.decisions} for event in events if event.decisions]
    for each in (each for event in events for each in event.shown):
        for signal, state in enumerate(each.states):
            shown[signal].append((each.begin_s, each.end_s, state))
    return observed, shown


@pytest.mark.parametrize("step_s", [1.0, 0.5])
def test_observations_and_shown_states_agree_over_traci_and_libsumo(grid_city, grid_street, step_s):
    options = [*OPTIONS, "--seed", "7", "--step-length", str(step_s)]
    connections = (start.connect(SumoAccess(arguments=options), Interrupts()), start_libsumo(options))
    (observed, over_traci), over_libsumo = (run(each, grid_city, grid_street) for each in connections)
    assert (observed, over_traci) == over_libsumo
    assert len(observed) == END_S / 5 and any(map(any, observed[-1].values()))
    for parts in over_traci.values():
        # without gaps, including yellows inside an exchange
        assert [end for _, end, _ in parts[:-1]] == [begin for begin, _, _ in parts[1:]]
        assert parts[0][0] == 0 and parts[-1][1] == END_S and any("y" in state for _, _, state in parts)
