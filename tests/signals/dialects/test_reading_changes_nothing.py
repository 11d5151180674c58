"""Reading a sequencer or an observer changes nothing: what they keep is changed by steps of their own."""

import copy

import numpy as np
import pytest

from signals.cycle_plans import PlanSequencer, cycle_plan
from signals.dialects.sappo import STATES, KeepChangeSequencer, SappoObserver
from signals.dialects.street import StreetSequencer
from signals.green_phases import GreenPhaseSequencer
from signals.observation import PhaseState
from tests.signals.dialects.test_sappo import PHASES
from tests.signals.test_observation import LENGTH_M, readings


@pytest.mark.parametrize(
    "sequencer",
    [
        GreenPhaseSequencer(["GGrr", "rrGG"], 5, 2, 5),
        StreetSequencer(["GGrr", "rrGG"], 5, 2, 5),
        KeepChangeSequencer([PHASES], 5, 0.2),
        PlanSequencer("offset", [cycle_plan(PHASES, 0, 4, 60)], 1, 2, 2),
    ],
)
def test_reading_a_sequencer_changes_nothing(sequencer):
    sequencer.enter(0.3, ["GGrr"], start=True)
    sequencer.apply_action(20.0, [1])
    before = copy.deepcopy(vars(sequencer))
    for now in (20.0, 36.0, 38.0, 500.0, 22.0):
        for read in ("requested_states", "phase_state", "next_change_s", "next_decision_s", "decides_at"):
            getattr(sequencer, read)(now)
    assert vars(sequencer) == before


@pytest.mark.parametrize("state", STATES)
def test_reading_a_sappo_observer_changes_nothing(state):
    """Observing a later moment, as a page or a shadow model may, moves no volume of the next decision."""
    observer = SappoObserver(state, np.array([0, 1]), LENGTH_M, (2,))
    first, later = (readings((3, 3, 0), outflow=outflow) for outflow in ((4, 8, 0), (9, 9, 0)))
    observer.decided(readings((0, 0, 0)))
    phase_state = PhaseState((1,), True)
    expected = observer.observe(first, None, phase_state).tolist()
    before = copy.deepcopy(observer.state)
    observer.observe(later, None, phase_state)
    observer.decided(readings((0, 0, 0)))
    assert observer.state == before and observer.observe(first, None, phase_state).tolist() == expected
