"""The sappo dialect: its numbers against vectors of its trainer, its sequencers second by second."""

import json

import numpy as np
import pytest

from city.errors import InputError
from city.network import ProgramPhase
from signals import cycle_plans
from signals.cycle_plans import PlanSequencer, cycle_plan
from signals.dialects.sappo import KeepChangeSequencer, SappoObserver
from signals.green_phases import GreenPhaseSequencer
from signals.observation import PhaseState
from tests.signals.test_observation import LENGTH_M, readings

EPSILON = float(np.finfo(float).eps)
PHASES = [ProgramPhase(s, d, d, d) for s, d in (("GGrr", 20), ("yyrr", 3), ("rrGG", 10), ("rryy", 3))]


@pytest.fixture(scope="module")
def vectors(shared):
    return json.loads((shared / "vectors" / "sappo.json").read_text())


def plan_of(*durations, low=None, high=None, offset_s=0, min_green_s=5, max_green_s=60):
    phases = [
        ProgramPhase(s, d, d if low is None or "y" in s else low, d if high is None or "y" in s else high)
        for s, d in zip(("Gr", "yr", "rG", "ry"), durations, strict=True)
    ]
    return cycle_plan(phases, offset_s, min_green_s, max_green_s)


class TestObservation:
    def test_each_block_is_normalised_by_its_own_maximum(self):
        observer = SappoObserver("vd", np.array([0, 1]), LENGTH_M, (4, 8))
        observer.decided(readings((0, 0, 0), outflow=(10, 5, 0)))
        # an observation without a decision: the volume keeps counting
        observer.observe(readings((0, 0, 0), outflow=(12, 5, 0)), None, PhaseState((0, 0), True))
        x = observer.observe(readings((3, 3, 0), outflow=(14, 13, 0)), None, PhaseState((3, 7), True))
        # densities 3/75 and 3/30 per m; 4 and 8 vehicles left since the last decision
        assert x.tolist() == pytest.approx([0.4, 1.0, 0.5, 1.0, 3 / 7, 1.0])
        assert x.dtype == np.float32

    def test_volume_is_zero_before_the_first_decision(self):
        observer = SappoObserver("v", np.array([0]), LENGTH_M, (2,))
        first = observer.observe(readings((0, 0, 0), outflow=(7, 0, 0)), None, PhaseState((0,), True))
        assert first.tolist() == [1.0, 0.0]  # (0 + eps) / eps: a street without traffic is all ones

    def test_vdd_divides_volume_by_density(self):
        observer = SappoObserver("vdd", np.array([0, 1]), LENGTH_M, (2,))
        observer.decided(readings((0, 0, 0)))
        x = observer.observe(readings((3, 3, 0), outflow=(4, 8, 0)), None, PhaseState((1,), True))
        a, b = 4 / (3 / 75 + EPSILON), 8 / (3 / 30 + EPSILON)
        assert x.tolist() == pytest.approx([1.0, b / a, 1.0])


class TestArithmetic:
    def test_numbers_equal_the_seed_systems(self, vectors):
        for key, expected in vectors["green_splits"].items():
            p, m = map(int, key.split(","))
            assert [list(change) for change in cycle_plans.green_split_changes(p, m)] == expected, key
        for v in vectors["offset"]:
            assert cycle_plans.offset_shift_s(v["a"], v["cycle"], v["offset_range"]) == v["shift_s"], v
        for v in vectors["gr_index"]:
            assert cycle_plans.gr_index(v["a"], v["n"]) == v["index"], v

    def test_changes_of_nine_variable_greens_fit_in_memory(self):
        changes = cycle_plans.green_split_changes(9, 0)
        assert all(sum(change) == 0 for change in changes) and len(set(changes)) == len(changes)

    def test_permitted_changes_keep_the_cycle_and_the_bounds(self):
        plan = plan_of(20, 3, 10, 3, low=8, high=24)
        changes = cycle_plans.permitted_changes(plan, 2)
        assert changes == ((0, 0), (1, -1), (-1, 1), (-2, 2))  # (2, -2) would shorten the second green to 6 s
        for change in changes:
            assert len(cycle_plans.phase_by_second(plan, change, 2, 0)) == 36

    def test_greens_of_fixed_duration_vary_within_min_and_max_green(self):
        plan = plan_of(20, 3, 10, 3, min_green_s=9, max_green_s=21)
        assert plan.variable == (0, 2)
        assert cycle_plans.permitted_changes(plan, 2) == ((0, 0), (-1, 1), (-2, 2))
        wider = plan_of(20, 3, 10, 3, min_green_s=8, max_green_s=22)
        assert cycle_plans.permitted_changes(wider, 2) == ((0, 0), (1, -1), (-1, 1), (-2, 2))

    def test_plan_is_rolled_forward_by_its_offset(self):
        plan = plan_of(4, 1, 2, 1, offset_s=3, min_green_s=1)
        assert cycle_plans.phase_by_second(plan, (), 2, 0) == (2, 2, 3, 0, 0, 0, 0, 1)
        assert cycle_plans.phase_by_second(plan, (), 2, 1) == (1, 2, 2, 3, 0, 0, 0, 0)

    def test_plan_with_too_many_variable_phases_is_refused(self):
        plan = cycle_plan([ProgramPhase("G", 10, 5, 20)] * 11, 0, 4, 60)
        with pytest.raises(InputError, match="11 variable phases"):
            cycle_plans.permitted_changes(plan, 2)


class TestKeepChange:
    @pytest.fixture
    def sequencer(self):
        made = KeepChangeSequencer([PHASES, PHASES], interval_s=15, actionp=0.2)
        made.enter(0, ["GGrr", "rrGG"])
        return made

    def test_action_at_actionp_changes_and_below_keeps(self, sequencer):
        sequencer.apply_action(15, (0.2, 0.19))
        assert sequencer.requested_states(15) == sequencer.requested_states(17) == ("yyrr", "rrGG")
        assert sequencer.phase_state(15).phases == (1, 2)
        assert sequencer.next_change_s(15) == 18
        assert sequencer.requested_states(18) == ("rrGG", "rrGG")

    def test_changes_cycle_through_the_program(self, sequencer):
        for k in range(1, 5):
            sequencer.apply_action(15 * k, (1.0, -1.0))
        assert sequencer.requested_states(15 * 4 + 3) == ("GGrr", "rrGG")

    def test_next_green_follows_at_once_without_a_yellow_phase(self):
        sequencer = KeepChangeSequencer([[ProgramPhase("Gr", 9, 9, 9), ProgramPhase("GG", 9, 9, 9)]], 15, 0.2)
        sequencer.enter(0, ["Gr"])
        sequencer.apply_action(15, (1.0,))
        assert sequencer.requested_states(15) == ("GG",)


def plan_sequencer(kind="gro", cycles=5):
    return PlanSequencer(kind, [cycle_plan(PHASES, 0, 4, 60)], cycles, add_time_s=2, offset_range=2)


def phases_at(sequencer, *seconds):
    return [sequencer.phase_state(t).phases for t in seconds]


class TestPlan:
    def test_phase_at_second_t_is_entry_t_minus_one(self):
        sequencer = plan_sequencer()
        assert phases_at(sequencer, 0, 1, 20, 21, 36, 37) == [(3,), (0,), (0,), (1,), (3,), (0,)]
        assert sequencer.next_change_s(1) == sequencer.next_change_s(20.0) == 21
        assert [sequencer.next_decision_s(now) for now in (0, 179, 180)] == [180, 180, 360]

    def test_decision_is_taken_at_the_first_step_after_the_multiple(self):
        sequencer = plan_sequencer(cycles=1)
        sequencer.enter(3, ["GGrr"])
        taken = []
        for now in range(3, 200, 2):
            if sequencer.decides_at(now):
                taken.append(now)
                sequencer.note_asked(now)
        assert taken == [37, 73, 109, 145, 181]

    def test_answers_between_multiples_take_no_decision(self):
        sequencer = plan_sequencer(cycles=1)
        sequencer.enter(0, ["GGrr"])
        assert sequencer.decides_at(0)
        sequencer.note_asked(38)  # for the moment 36, without an answer
        assert sequencer.next_decision_s(38) == 72
        assert not sequencer.decides_at(40) and sequencer.decides_at(72)

    def test_gro_takes_offset_then_split_per_signal(self):
        sequencer = plan_sequencer()
        sequencer.apply_action(0, (1.0, -1.0))
        # offset 36 s * 1.0 / 2 / 2 = 9 s forward; the first entry of the list changes nothing
        assert phases_at(sequencer, 9, 10) == [(3,), (0,)]
        sequencer.apply_action(180, (0.0, 1.0))
        assert len(set(phases_at(sequencer, *range(36)))) == 4

    def test_split_changes_the_greens_and_keeps_the_cycle(self):
        sequencer = plan_sequencer("gr")
        sequencer.apply_action(0, (-0.5,))
        seconds = [phases[0] for phases in phases_at(sequencer, *range(1, 37))]
        assert seconds.count(0) + seconds.count(2) == 30 and seconds.count(1) == seconds.count(3) == 3
        assert seconds.count(0) == 22

    @pytest.mark.parametrize("kind", ["offset", "gr", "gro"])
    def test_entering_restores_the_unchanged_plan(self, kind):
        sequencer = plan_sequencer(kind)
        sequencer.apply_action(0, (1.0, 1.0) if kind == "gro" else (1.0,))
        sequencer.enter(40, ["GGrr"])
        assert phases_at(sequencer, 1, 36) == [(0,), (3,)]


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
