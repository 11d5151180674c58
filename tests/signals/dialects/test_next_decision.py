"""Decision moments that dialects with a fixed interval share."""

import copy

import pytest

from signals.dialects.sappo import KeepChangeSequencer
from signals.green_phases import GreenPhaseSequencer
from tests.signals.dialects.fixed_cycle import PHASES


def test_asking_for_states_changes_none():
    sequencer = GreenPhaseSequencer(["GGrr", "rrGG"], 5, 2, 5, 1)
    sequencer.enter(0.0, ["GGrr"], start=True)
    sequencer.apply_action(20.0, [1])
    before = copy.copy(sequencer.state)
    asked = [sequencer.requested_states(now) for now in (20.0, 22.0, 23.0, 21.0)]
    assert asked == [("yyrr",), ("rrrr",), ("rrGG",), ("yyrr",)] and sequencer.state == before


@pytest.mark.parametrize(
    "sequencer", [GreenPhaseSequencer(["GGrr", "rrGG"], 5, 2, 5), KeepChangeSequencer([PHASES], 5, 0.2)]
)
@pytest.mark.parametrize(
    ("now", "following"), [(100.3, 105.3), (102.3, 105.3), (103.3, 110.3), (105.5, 110.3), (1e6 + 0.3, 1e6 + 5.3)]
)
def test_extra_decision_returns_to_the_interval(sequencer, now, following):
    sequencer.enter(0.3, ["GGrr"], start=True)
    sequencer.enter(61.7, ["GGrr"])
    assert sequencer.next_decision_s(now) == following
