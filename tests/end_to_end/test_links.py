"""The two ways to SUMO are one: whatever is read over TraCI is read over libsumo."""

import numpy as np
import pytest

from controller.assembly import assemble
from controller.sumo import start
from controller.sumo.libsumo_link import start_libsumo
from export import contract
from tests.conftest import GRID

END_S = 200


class Flipping:
    """Another green at every decision; notes what it was shown."""

    def __init__(self, sizes):
        self.sizes, self.asked = sizes, []

    def ask(self, observations, observed_s=None):
        self.asked.append({tl: x.tolist() for tl, x in observations.items()})
        return {tl: np.array([len(self.asked) % self.sizes[tl]]) for tl in observations}


class Noting:
    """In a monitor's place: notes what its signal showed, and for how long."""

    def __init__(self, signal):
        self.signal, self.seen = signal, []

    def see(self, state, begin_s, end_s):
        self.seen.append((state, begin_s, end_s))
        return []


def run(link, grid_city, grid_street):
    tls = {tl: settings for tl, settings in grid_city.tls.items() if settings.dialect == "sumo-rl"}
    policies = [contract.build(grid_city, settings, grid_street) for settings in tls.values()]
    asking = Flipping({policy.tl: policy.action.size for policy in policies})
    try:
        steps = assemble(link, grid_street, policies, asking, grid_city.safety, grid_city.controller)
        steps._monitors = [Noting(monitor.signal) for monitor in steps._monitors]
        while steps.now < END_S:
            steps.step(END_S)
        steps.feed_monitors()
        return asking.asked, {monitor.signal: monitor.seen for monitor in steps._monitors}
    finally:
        link.close()


@pytest.mark.parametrize("step_s", [1.0, 0.5])
def test_observations_and_what_monitors_see_are_the_same_over_traci_and_over_libsumo(grid_city, grid_street, step_s):
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "7", "--no-step-log", "true", "--no-warnings", "true"]
    options += ["--step-length", str(step_s)]
    observed, seen = run(start.start(options, 1, lambda: False), grid_city, grid_street)
    assert (observed, seen) == run(start_libsumo(options), grid_city, grid_street)
    assert len(observed) == END_S / 5 and any(map(any, observed[-1].values()))
    for parts in seen.values():
        # gapless, yellows in the middle of an exchange included
        assert [end for _, _, end in parts[:-1]] == [begin for _, begin, _ in parts[1:]]
        assert parts[0][1] == 0 and parts[-1][2] == END_S and any("y" in state for state, _, _ in parts)
