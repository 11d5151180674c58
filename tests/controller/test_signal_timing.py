"""The dialects' clockworks, second by second, without a simulator."""

import math

import numpy as np
import pytest
from controller.signal_timing import GreenPhaseSequencer, KeepChangeSequencer, PlanSequencer, yellow_between

from city.network import Phase
from controller import action

PHASES = [Phase(s, d, d, d) for s, d in (("GGrr", 20), ("yyrr", 3), ("rrGG", 10), ("rryy", 3))]


class TestSumoRl:
    def timing(self):
        timing = GreenPhaseSequencer(["GGrr", "GrGr", "rrGG"], delta_s=5, yellow_s=2, min_green_s=5)
        timing.enter(0, ["rrrr"])
        return timing

    def test_the_first_green_is_forced_at_the_start_and_a_shown_green_is_kept_later(self):
        assert self.timing().requested_states(0) == ("GGrr",)
        started = self.timing()
        started.enter(0, ["rrGG"], start=True)
        assert started.requested_states(0) == ("GGrr",)
        other = self.timing()
        other.enter(50, ["rrGG"])
        assert other.requested_states(50) == ("rrGG",) and other.phases(50) == (2,)

    def test_a_change_before_yellow_and_min_green_is_ignored(self):
        timing = self.timing()
        timing.decide(5, np.array([2.0]))
        assert timing.requested_states(5) == ("GGrr",) and not timing.min_green_passed(5)
        assert timing.min_green_passed(7)

    def test_a_change_shows_yellow_for_its_time_and_then_the_green(self):
        timing = self.timing()
        timing.decide(10, np.array([1.0]))
        # links that stay green stay green; only what turns red gets yellow
        assert timing.requested_states(10) == timing.requested_states(11) == ("Gyrr",)
        assert timing.next_change_s(10) == 12
        assert timing.requested_states(12) == ("GrGr",)
        assert timing.next_change_s(12) == math.inf

    def test_time_since_change_counts_from_the_start_of_yellow(self):
        timing = self.timing()
        timing.decide(10, np.array([1.0]))
        assert not timing.min_green_passed(16) and timing.min_green_passed(17)

    def test_decisions_are_delta_time_apart(self):
        assert self.timing().next_decision_s(15) == 20

    @pytest.mark.parametrize("timing", [GreenPhaseSequencer(["GrGr", "rGrG"], 5, 2, 5), KeepChangeSequencer([PHASES], 5, 0.2)])
    @pytest.mark.parametrize(
        ("now", "following"), [(100.3, 105.3), (102.3, 105.3), (103.3, 110.3), (105.5, 110.3), (1e6 + 0.3, 1e6 + 5.3)]
    )
    def test_what_was_decided_in_between_falls_into_step_again(self, timing, now, following):
        timing.enter(0.3, ["GrGr" if isinstance(timing, GreenPhaseSequencer) else "GGrr"], start=True)
        timing.enter(61.7, ["GrGr" if isinstance(timing, GreenPhaseSequencer) else "GGrr"])
        assert timing.next_decision_s(now) == following

    def test_yellow_follows_sumo_rls_rule(self):
        assert yellow_between("GgsG", "rsrG") == "yysG"


class TestKeepChange:
    def timing(self):
        timing = KeepChangeSequencer([PHASES, PHASES], interval_s=15, actionp=0.2)
        timing.enter(0, ["GGrr", "rrGG"])
        return timing

    def test_it_starts_from_the_greens_that_are_shown(self):
        assert self.timing().requested_states(0) == ("GGrr", "rrGG")

    def test_at_the_threshold_it_changes_and_below_it_keeps(self):
        timing = self.timing()
        timing.decide(15, np.array([0.2, 0.19]))
        assert timing.requested_states(15) == timing.requested_states(17) == ("yyrr", "rrGG")
        assert timing.phases(15) == (1, 2)
        assert timing.next_change_s(15) == 18
        assert timing.requested_states(18) == ("rrGG", "rrGG")

    def test_changes_go_round_the_program(self):
        timing = self.timing()
        for k in range(1, 5):
            timing.decide(15 * k, np.array([1.0, -1.0]))
        assert timing.requested_states(15 * 4 + 3) == ("GGrr", "rrGG")

    def test_without_a_yellow_phase_the_next_green_follows_at_once(self):
        timing = KeepChangeSequencer([[Phase("Gr", 9, 9, 9), Phase("GG", 9, 9, 9)]], 15, 0.2)
        timing.enter(0, ["Gr"])
        timing.decide(15, np.array([1.0]))
        assert timing.requested_states(15) == ("GG",)


class TestPlan:
    def timing(self, kind="gro", cycles=5):
        return PlanSequencer(kind, [action.plan_of(PHASES, 0, 4, 60)], cycles, add_time_s=2, offset_range=2)

    def test_at_second_t_the_phase_is_entry_t_minus_one(self):
        timing = self.timing()
        assert timing.phases(1) == (0,) and timing.phases(20) == (0,) and timing.phases(21) == (1,)
        assert timing.phases(36) == (3,) and timing.phases(37) == (0,)
        assert timing.phases(0) == (3,)

    def test_decisions_are_due_at_multiples_of_the_control_cycle(self):
        assert self.timing().next_decision_s(0) == 180
        assert self.timing().next_decision_s(179) == 180
        assert self.timing().next_decision_s(180) == 360

    def test_a_decision_is_taken_where_the_step_that_reaches_the_multiple_ends(self):
        timing = self.timing(cycles=1)
        timing.enter(3, ["GGrr"])
        assert [now for now in range(3, 200, 2) if timing.decides_at(now) and timing.next_decision_s(now)] == [
            37,
            73,
            109,
            145,
            181,
        ]

    def test_a_question_on_the_way_takes_no_decision(self):
        timing = self.timing(cycles=1)
        timing.enter(0, ["GGrr"])
        assert timing.decides_at(0)
        assert timing.next_decision_s(38) == 72  # who was asked at 36 and gave no answer
        assert not timing.decides_at(40) and timing.decides_at(72)

    def test_the_next_change_is_the_next_second_with_another_phase(self):
        assert self.timing().next_change_s(1) == 21
        assert self.timing().next_change_s(20.0) == 21

    def test_gro_takes_offset_then_split_for_each_signal(self):
        timing = self.timing()
        timing.decide(0, np.array([1.0, -1.0]))
        # offset 36 s * 1.0 / 2 / 2 = 9 s forward; the first change of the list is none
        assert timing.phases(10) == (0,) and timing.phases(9) == (3,)
        timing.decide(180, np.array([0.0, 1.0]))
        assert len({timing.phases(t) for t in range(36)}) == 4

    def test_a_split_changes_the_greens_and_keeps_the_cycle(self):
        timing = self.timing("gr")
        timing.decide(0, np.array([-0.5]))
        seconds = [timing.phases(t + 1)[0] for t in range(36)]
        assert seconds.count(0) + seconds.count(2) == 30 and seconds.count(1) == seconds.count(3) == 3
        assert seconds.count(0) == 22

    @pytest.mark.parametrize("kind", ["offset", "gr", "gro"])
    def test_entering_starts_from_the_plan_as_it_is(self, kind):
        timing = self.timing(kind)
        timing.decide(0, np.ones(2 if kind == "gro" else 1))
        timing.enter(40, ["GGrr"])
        assert timing.phases(1) == (0,) and timing.phases(36) == (3,)
