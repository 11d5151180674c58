"""The safety rules: by example, and with adversarial requested states."""

import copy
import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city import network
from city.network import is_green
from signals.safety.conflicts import ConflictRules, OverrideReason
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalSafety
from tests.conftest import GRID

TIMES = SafetyTimes(yellow_s=3, min_green_s=5)


def adopted(crossing, times=TIMES, shown="GgGr", greens=("GgGr", "rrrG")):
    signal_safety = SignalSafety(crossing, times, greens)
    signal_safety.start_from(shown, 0)
    return signal_safety


def walked(crossing, foes, *crossings):
    """A signal of five links, of which some are pedestrian crossings of 9.6 m, without right of way."""
    return replace(
        crossing, links=(*crossing.links, ()), foes=foes, yields=np.zeros((5, 5), bool), permissive=np.zeros((5, 5),
        bool),
        approach_mps=tuple(0.0 if i in crossings else 10.0 for i in range(5)),
        crossing_m=tuple(9.6 if i in crossings else 0.0 for i in range(5)), path_m=(), slowest_mps=(),
    )  # fmt: skip


def reasons(overrides):
    return {override.reason for override in overrides}


class TestByExample:
    def test_only_signal_safety_makes_permitted_states(self):
        with pytest.raises(TypeError):
            PermittedState("X", "GGGG", seal=object())
        with pytest.raises(TypeError):
            PermittedRelease("X", "0", 0, None, seal=None)

    def test_permitted_state_is_immutable(self, crossing):
        state, _ = adopted(crossing).permit("GgGr", 1)
        with pytest.raises(AttributeError):
            state.state = "GGGG"

    @pytest.mark.parametrize("requested", ["", "GgG", "GgGrr", "GgXr", "????", "OOOO"])
    def test_malformed_request_holds_the_shown_state(self, crossing, requested):
        state, overrides = adopted(crossing).permit(requested, 10)
        assert state.state == "GgGr" and reasons(overrides) == {OverrideReason.MALFORMED}

    @pytest.mark.parametrize("requested", ["GGGG", "GGGr", "GrrG", "rgrG"])
    def test_request_with_a_conflict_holds_the_shown_state(self, crossing, requested):
        state, overrides = adopted(crossing).permit(requested, 10)
        assert state.state == "GgGr" and reasons(overrides) == {OverrideReason.CONFLICT}

    def test_yielding_green_is_not_a_conflict(self, crossing):
        assert ConflictRules(crossing).violation("GgGr") is None
        assert ConflictRules(crossing).conflicts("GGGr") == [(1, 2), (2, 1)]
        assert ConflictRules(crossing).conflicts("rgrg") == [(1, 3), (3, 1)], "neither yields"

    def test_green_lasts_for_min_green(self, crossing):
        signal_safety = adopted(crossing)
        state, overrides = signal_safety.permit("rrrG", 4)
        assert state.state == "GgGr" and OverrideReason.MIN_GREEN in reasons(overrides)

    def test_yellow_precedes_red_for_its_duration(self, crossing):
        signal_safety = adopted(crossing)
        shown = [signal_safety.permit("rrrG", t)[0].state for t in range(5, 11)]
        assert shown == ["yyyr", "yyyr", "yyyr", "rrrG", "rrrG", "rrrG"]

    def test_all_red_precedes_a_foes_green(self, crossing):
        signal_safety = adopted(crossing, SafetyTimes(3, 5, all_red_s=2))
        shown = [signal_safety.permit("rrrG", t)[0].state for t in range(5, 12)]
        assert shown == ["yyyr"] * 3 + ["rrrr"] * 2 + ["rrrG"] * 2

    def test_yellow_that_has_begun_is_finished(self, crossing):
        signal_safety = adopted(crossing)
        signal_safety.permit("rrrG", 5)
        shown = [signal_safety.permit("GgGr", t)[0].state for t in range(6, 10)]
        assert shown == ["yyyr", "yyyr", "rrrr", "GgGr"]

    def test_protected_green_waits_for_its_foes_yellow(self, crossing):
        signal_safety = adopted(crossing, greens=())
        signal_safety.permit("Ggyr", 5)
        state, overrides = signal_safety.permit("GGrr", 6)
        assert state.state == "Ggyr" and OverrideReason.CLEARANCE in reasons(overrides)
        assert signal_safety.permit("GGrr", 8)[0].state == "GGrr"

    def test_red_does_not_turn_yellow(self, crossing):
        assert adopted(crossing).permit("GgGy", 10)[0].state == "GgGr"

    def test_override_is_reported_once_per_requested_state(self, crossing):
        signal_safety = adopted(crossing)
        assert signal_safety.permit("rrrG", 1)[1]
        assert not signal_safety.permit("rrrG", 2)[1]
        assert signal_safety.permit("rrrr", 3)[1]

    def test_link_beyond_max_red_is_served_for_min_green(self, crossing):
        signal_safety = adopted(crossing, SafetyTimes(3, 5, max_red_s=30))
        shown = [signal_safety.permit("GgGr", t)[0].state for t in range(60)]
        assert shown[29] == "GgGr" and shown[30] == "yyyr"
        first = shown.index("rrrG")
        assert shown[first : first + 5] == ["rrrG"] * 5
        assert shown[first + 12] == "GgGr"

    def test_green_beyond_max_green_ends_if_a_foe_waits(self, crossing):
        signal_safety = adopted(crossing, SafetyTimes(3, 5, max_green_s=20))
        shown = [signal_safety.permit("GgGr", t)[0].state for t in range(30)]
        assert shown[19] == "GgGr" and shown[20] == "yyyr" and "rrrG" in shown

    @pytest.mark.parametrize("bounds", [{"max_green_s": 15}, {"max_green_s": 10, "all_red_s": 2}, {}])
    def test_max_red_holds_for_requests_that_are_never_shown(self, crossroads, bounds):
        greens = [phase.state for phase in crossroads.plan.phases if is_green(phase.state)]
        times = SafetyTimes(3, 5, max_red_s=90, **bounds)
        for requested in greens:
            signal_safety, red_s = SignalSafety(crossroads, times, greens), [0] * len(requested)
            signal_safety.start_from("r" * len(requested), 0)
            for t in range(600):
                shown = signal_safety.permit(requested, t)[0].state
                red_s = [0 if c in "gG" else s + 1 for c, s in zip(shown, red_s, strict=True)]
                assert max(red_s) <= 90 + (1 + len(greens)) * signal_safety.clearing_s, (requested, t, shown)

    def test_max_red_is_served_beside_an_expired_green_if_need_be(self, crossing):
        signal_safety = SignalSafety(
            crossing, SafetyTimes(3, 5, max_green_s=20, max_red_s=30), ["GgGr", "Ggrr", "Grrr"]
        )
        signal_safety.start_from("Ggrr", 0)
        shown = [signal_safety.permit("Ggrr", t)[0].state for t in range(60)]
        assert shown[29] == "Ggrr" and shown[30] == "GgGr"

    def test_max_red_service_prefers_a_phase_that_ends_an_expired_green(self, crossing):
        signal_safety = SignalSafety(
            crossing, SafetyTimes(3, 5, max_green_s=30, max_red_s=30), ["GgGr", "GrGr", "Ggrr"]
        )
        signal_safety.start_from("Ggrr", 0)
        shown = [signal_safety.permit("Ggrr", t)[0].state for t in range(60)]
        assert shown[29] == "Ggrr" and shown[30] == "Gyrr" and shown[33] == "GrGr"

    def test_request_that_serves_max_red_is_kept_without_override(self, crossing):
        signal_safety = SignalSafety(crossing, SafetyTimes(3, 5, max_red_s=30), ["GrGr", "GgGr", "rrrG"])
        signal_safety.start_from("rrrG", 0)
        permitted = [signal_safety.permit("rrrG" if t < 30 else "GgGr", t) for t in range(50)]
        shown = [state.state for state, _ in permitted]
        assert shown[30] == "rrry" and shown[33] == "GgGr" and "GrGr" not in shown
        assert OverrideReason.MAX_RED not in {x.reason for _, overrides in permitted for x in overrides}

    def test_transitions_show_no_pair_of_greens_that_no_phase_shows(self, grid_street):
        for signal in grid_street.signals.values():
            states = [phase.state for program in signal.programs for phase in program.phases]
            greens = [state for state in states if is_green(state)]
            for before, requested in itertools.permutations(states, 2):
                signal_safety = SignalSafety(signal, SafetyTimes(3, 5), greens)
                signal_safety.start_from(before, 0)
                shown = [signal_safety.permit(requested, t)[0].state for t in range(1, 40)]
                for state in shown:
                    for i, j in zip(*np.triu(signal.foes).nonzero(), strict=True):
                        beside = state[i] in "gG" and state[j] in "gG"
                        assert not beside or any(x[i] in "gG" and x[j] in "gG" for x in states), (
                            signal.id,
                            requested,
                            state,
                        )
                assert is_green(requested) <= (shown[-1] == requested)

    def test_links_that_yield_to_parts_of_each_other_may_only_both_show_g(self, crossing):
        permissive = crossing.permissive.copy()
        permissive[1, 3] = permissive[3, 1] = True
        signal = replace(crossing, permissive=permissive)
        rules, monitor = ConflictRules(signal), SignalMonitor(signal, SafetyTimes(3, 5, 0))
        for state, is_conflict in (("rgrg", False), ("rGrg", True), ("rgrG", True), ("rGrG", True)):
            assert bool(rules.conflicts(state)) == is_conflict, state
            assert bool(monitor.check_shown(state, 0, 1)) == is_conflict
            monitor = SignalMonitor(signal, SafetyTimes(3, 5, 0))
        assert adopted(signal, shown="rrrg", greens=("rgrg",)).permit("rgrg", 10)[0].state == "rgrg"
        assert adopted(signal, shown="rrrG", greens=("rgrg",)).permit("rgrG", 10)[0].state == "rrrG"

    def test_red_clearance_by_path_precedes_a_foes_green(self, crossing):
        # 13.9 m at 10 m/s and the 6.1 m of the vehicle take 2 s, of which the foe's drivers need 1 s to start
        signal = replace(crossing, path_m=(13.9, 3.9, 13.9, 13.9), slowest_mps=(10.0,) * 4)
        times = SafetyTimes(yellow_s=3, min_green_s=5, red_by_path=True)
        signal_safety = adopted(signal, times)
        assert signal_safety.clearance_s == pytest.approx([1.0, 0.0, 1.0, 1.0])
        shown = [signal_safety.permit("rrrG", t / 2)[0].state for t in range(10, 20)]
        assert shown == ["yyyr"] * 6 + ["rrrr"] * 2 + ["rrrG"] * 2
        assert adopted(signal, replace(times, red_by_path=False)).clearance_s == [0.0] * 4

    def test_vehicles_keep_their_green_while_pedestrians_clear_the_crossing(self, crossing):
        # link 3 is walked beside links 0 to 2; link 4 follows them all
        foes = np.zeros((5, 5), bool)
        for i, j in ((0, 4), (1, 4), (2, 4), (3, 4)):
            foes[i, j] = foes[j, i] = True
        signal = walked(crossing, foes, 3)
        signal_safety = adopted(signal, shown="GGGGr", greens=("GGGGr", "rrrrG"))
        assert (signal_safety.vehicle_change_s, signal_safety.change_s) == (3.0, 8.0)
        # 9.6 m take 8 s: 5 s beside the vehicles' green and 3 s beside their yellow
        requested = ["yyyyr"] * 2 + ["rrrrG"] * 8
        permitted = [signal_safety.permit(state, t) for t, state in enumerate(requested, 10)]
        assert [state.state for state, _ in permitted] == ["GGGrr"] * 5 + ["yyyrr"] * 3 + ["rrrrG"] * 2
        assert [reasons(overrides) for _, overrides in permitted[:3]] == [
            {OverrideReason.CLEARANCE},
            set(),
            {OverrideReason.CLEARANCE},
        ]

    def test_vehicles_whose_followers_wait_for_no_crossing_lose_their_green_at_once(self, crossing):
        foes = np.zeros((5, 5), bool)
        for i, j in ((0, 4), (1, 4), (2, 4)):
            foes[i, j] = foes[j, i] = True
        signal = walked(crossing, foes, 3)
        signal_safety = adopted(signal, shown="GGGGr", greens=("GGGGr", "rrrrG"))
        assert signal_safety.permit("rrrrG", 10)[0].state == "yyyrr"

    def test_vehicles_lose_their_green_to_pedestrians_who_wait_for_no_other_crossing(self, crossing):
        # crossing 3 is walked beside link 0, crossing 4 follows link 0; nothing follows crossing 3
        foes = np.zeros((5, 5), bool)
        foes[0, 4] = foes[4, 0] = True
        signal = walked(crossing, foes, 3, 4)
        signal_safety = adopted(signal, shown="GrrGr", greens=("GrrGr", "rrrrG"))
        assert signal_safety.permit("rrrrG", 10)[0].state == "yrrrr"

    def test_state_of_another_length_counts_as_yellow_where_it_says_nothing(self, crossing):
        for shown, colours in (("GgG", "GgGy"), ("GgGrGG", "GgGr"), ("", "yyyy")):
            signal_safety = adopted(crossing, shown=shown)
            assert signal_safety.shown == colours

    def test_handover_needs_a_cleared_junction(self, crossing):
        signal_safety = adopted(crossing)
        with pytest.raises(ValueError, match="all red"):
            signal_safety.permit_release("0", 0, 10)
        for t in range(10, 20):
            signal_safety.permit("rrrr", t)
        assert signal_safety.permit_release("0", 0, 20).program == "0"


def shown_after(safety, requested, now):
    return safety.permit(requested, now)[0].state


class TestState:
    """What `SignalSafety` keeps between requests."""

    def test_signal_without_a_start_counts_as_red_and_clear(self, crossing):
        for requested, reported in (("rrrr", set()), ("GgGr", set())):
            safety = SignalSafety(crossing, SafetyTimes(3, 5, all_red_s=2, max_red_s=60), ["GgGr", "rrrG"])
            assert (safety.shown, safety.state.bound_exceeded_at_s, safety.is_cleared(0)) == ("rrrr", math.inf, True)
            state, overrides = safety.permit(requested, 0)
            assert state.state == requested and reasons(overrides) == reported
        assert safety.network is crossing

    def test_waiting_counts_from_the_start(self, crossing):
        safety = SignalSafety(crossing, SafetyTimes(3, 5, max_red_s=30), ["GgGr", "rrrG"])
        safety.start_from("GgGr", 100)
        assert [shown_after(safety, "GgGr", t) for t in (129, 130)] == ["GgGr", "yyyr"]

    def test_max_green_counts_from_the_links_own_green(self, crossing):
        safety = SignalSafety(crossing, SafetyTimes(3, 5, max_green_s=20), ["GgGr", "rrrG"])
        safety.start_from("rrrr", 0)
        assert [shown_after(safety, "GgGr", t) for t in (10, 29, 30)] == ["GgGr", "GgGr", "yyyr"]

    def test_start_and_clearing_end_the_service_of_max_red(self, crossing):
        for end_service in (
            lambda safety: safety.start_from("GgGr", 31),
            lambda safety: safety.permit("rrrr", 31, clearing=True),
        ):
            safety = adopted(crossing, SafetyTimes(3, 5, max_red_s=30))
            safety.permit("GgGr", 30)
            assert safety.is_serving and not safety.shows("yyyr")
            end_service(safety)
            assert not safety.is_serving

    def test_service_of_max_red_lasts_for_min_green_of_every_link(self, crossing):
        safety = adopted(crossing, SafetyTimes(3, 5, max_red_s=30))
        assert [shown_after(safety, "GgGr", t) for t in (30, 33, 37)] == ["yyyr", "rrrG", "rrrG"] and safety.is_serving
        assert shown_after(safety, "GgGr", 38) == "rrry" and not safety.is_serving
        # links 0 and 1 are green for long when link 2 gets its green
        safety = adopted(crossing, SafetyTimes(3, 5, max_red_s=30), "Ggrr", ["GgGr", "Ggrr"])
        assert [shown_after(safety, "Ggrr", t) for t in (30, 34)] == ["GgGr", "GgGr"] and safety.is_serving
        assert shown_after(safety, "Ggrr", 35) == "Ggyr" and not safety.is_serving

    def test_phase_that_serves_max_red_is_kept_until_it_is_shown(self, crossing):
        safety = adopted(crossing, SafetyTimes(3, 5, max_red_s=30), "rrrG", ["GrGr", "GgGr", "rrrG"])
        shown = [shown_after(safety, requested, t) for t, requested in ((30, "rrrG"), (31, "GgGr"), (33, "GgGr"))]
        assert shown == ["rrry", "rrry", "GrGr"]

    def test_service_of_max_red_is_reported(self, crossing):
        changes = {OverrideReason.YELLOW, OverrideReason.CLEARANCE}
        for requested, reported in (("GgGr", set()), ("????", {OverrideReason.MALFORMED})):
            _, overrides = adopted(crossing, SafetyTimes(3, 5, max_red_s=30)).permit(requested, 30)
            assert reasons(overrides) == {OverrideReason.MAX_RED} | reported | changes

    def test_override_is_reported_again_after_a_permitted_request(self, crossing):
        safety = adopted(crossing)
        for t, requested, reported in ((1, "rrrG", True), (2, "rrrG", False), (3, "GgGr", False), (4, "rrrG", True)):
            assert bool(safety.permit(requested, t)[1]) == reported

    def test_malformed_request_finishes_the_yellow_and_keeps_the_green(self, crossing):
        safety = adopted(crossing, shown="Ggrr", greens=())
        assert shown_after(safety, "Grrr", 5) == "Gyrr"
        assert shown_after(safety, "????", 8) == "Grrr"

    def test_conflict_that_was_taken_over_is_ended_by_a_malformed_request(self, crossing):
        assert shown_after(adopted(crossing, shown="GrrG", greens=()), "????", 10) == "yrry"

    def test_release_needs_every_links_clearance(self, crossing):
        safety = SignalSafety(crossing, SafetyTimes(3, 5, all_red_s=2))
        safety.start_from("surs", 10)
        assert [safety.is_cleared(now) for now in (10, 11, 12)] == [False, False, True]
        release = safety.permit_release("P", 2, 12, 7.5)
        assert (release.signal, release.program, release.phase, release.remaining_s) == ("X", "P", 2, 7.5)

    def test_times_of_a_change_are_the_longest_of_any_link(self, crossing):
        # links: 3 s of yellow and all-red; a crossing of 12 m; 5 s of yellow and a path of 5 s; 3 s and all-red
        signal = replace(
            crossing,
            approach_mps=(10.0, 0.0, 19.4, 10.0),
            crossing_m=(0.0, 12.0, 0.0, 0.0),
            path_m=(1.0, 0.0, 53.9, 1.0),
            slowest_mps=(10.0,) * 4,
        )
        times = SafetyTimes(3, 5, all_red_s=1, red_by_path=True)
        safety = SignalSafety(signal, times, ["GgGr", "rrrG"])
        assert safety.yellow_s == [3, 3, 5, 3] and safety.clearance_s == pytest.approx([1, 10, 5, 1])
        assert (safety.clearing_s, safety.vehicle_change_s, safety.change_s) == pytest.approx((5 + 5 + 10, 10, 10))
        pedestrians = replace(signal, approach_mps=(0.0,) * 4, crossing_m=(12.0, 2.4, 6.0, 2.4), path_m=())
        safety = SignalSafety(pedestrians, SafetyTimes(3, 5), ["GgGr", "rrrG"])
        assert (safety.clearing_s, safety.vehicle_change_s, safety.change_s) == pytest.approx((5 + 3 + 10, 0, 10))

    def test_signal_without_changes_or_links_needs_no_time_for_them(self, crossing):
        safety = SignalSafety(crossing, TIMES)
        assert (safety.vehicle_change_s, safety.change_s) == (0, 0)
        nothing = np.zeros((0, 0), bool)
        signal = replace(
            crossing, links=(), foes=nothing, yields=nothing, permissive=nothing,
            approach_mps=(), crossing_m=(), path_m=(), slowest_mps=(),
        )  # fmt: skip
        assert SignalSafety(signal, TIMES).clearing_s == 5

    def test_yellow_without_the_approach_speed_is_that_of_the_times(self, crossing):
        assert SignalSafety(crossing, SafetyTimes(0, 5, yellow_by_speed=False)).yellow_s == [0] * 4


class TestTransitions:
    """Single steps from one state towards another."""

    def test_protected_green_becomes_permissive_at_once(self, crossing):
        state, overrides = adopted(crossing).permit("ggGr", 1)
        assert state.state == "ggGr" and not overrides

    def test_yellow_is_an_override_unless_it_is_requested(self, crossing):
        assert reasons(adopted(crossing).permit("rrrr", 5)[1]) == {OverrideReason.YELLOW}
        assert adopted(crossing).permit("yyyr", 5)[1] == []

    def test_yellow_that_is_finished_is_an_override(self, crossing):
        safety = adopted(crossing)
        safety.permit("rrrr", 5)
        assert reasons(safety.permit("GgGr", 6)[1]) == {OverrideReason.YELLOW}

    def test_link_loses_its_green_beside_a_yellow(self, crossing):
        safety = adopted(crossing, greens=())
        assert [shown_after(safety, requested, t) for t, requested in ((5, "rgGr"), (6, "rrrr"))] == ["ygGr", "yyyr"]

    def test_red_may_change_to_the_other_reds(self, crossing):
        assert [shown_after(adopted(crossing), state, 1) for state in ("GgGs", "GgGu")] == ["GgGs", "GgGu"]

    def test_greens_that_all_start_are_no_override(self, crossing):
        assert adopted(crossing, shown="rrrr").permit("GgGr", 10)[1] == []

    def test_link_starts_beside_one_that_waits_for_its_foe(self, crossing):
        signal = walked(crossing, foes_of((0, 4)))
        assert shown_after(adopted(signal, shown="rrrrG", greens=()), "GGrrr", 10) == "rGrry"

    def test_greens_of_foes_never_start_together(self, crossing):
        # requests with a conflict, which only the clearing of a junction does not check beforehand
        for requested, started in (
            ("rGGr", "rGrr"),
            ("GrrG", "Grrr"),
            ("rgrg", "rgrr"),
            ("grrg", "grrr"),
            ("rgGr", "rgGr"),
        ):
            safety = adopted(crossing, shown="rrrr", greens=())
            assert safety.permit(requested, 10, clearing=True)[0].state == started

    def test_permissive_green_blocks_its_own_foes_alone(self, crossing):
        signal = walked(crossing, foes_of((1, 2)))
        assert shown_after(adopted(signal, shown="rrrrr", greens=()), "grGrr", 10) == "grGrr"


def foes_of(*pairs):
    foes = np.zeros((5, 5), bool)
    for i, j in pairs:
        foes[i, j] = foes[j, i] = True
    return foes


class TestVehiclesBesidePedestrians:
    """Link 3 is walked; link 4 follows it and the vehicles of link 0, which may keep their green until it is clear."""

    FOES = foes_of((0, 4), (3, 4))

    def signal(self, crossing, *crossings, walking_m=9.6, **changes):
        signal = walked(crossing, self.FOES, 3, *crossings)
        return replace(signal, crossing_m=tuple(walking_m if m else 0.0 for m in signal.crossing_m), **changes)

    def shown(self, signal, before, requested, times=TIMES):
        return shown_after(adopted(signal, times, before, greens=()), requested, 10)

    def test_vehicles_wait_for_pedestrians_who_take_longer_than_they_do(self, crossing):
        assert self.shown(self.signal(crossing), "GrrGr", "rrrrG") == "Grrrr"
        # 2.5 s, in the vehicles' yellow
        assert self.shown(self.signal(crossing, walking_m=3.0), "GrrGr", "rrrrG") == "yrrrr"
        # 4 s, in the vehicles' yellow of 3 s and all-red of 2 s
        assert (
            self.shown(self.signal(crossing, walking_m=4.8), "GrrGr", "rrrrG", SafetyTimes(3, 5, all_red_s=2))
            == "yrrrr"
        )
        # 0.5 s, and the vehicles have no yellow
        times = SafetyTimes(0, 5, yellow_by_speed=False)
        assert self.shown(self.signal(crossing, walking_m=0.6), "GrrGr", "rrrrG", times) == "Grrrr"

    def test_min_green_of_the_pedestrians_is_part_of_their_time(self, crossing):
        # 2.5 s of walking, after the rest of a min green of 5 s that begins at 10: more than 3 s at 14, less at 14.6
        for now, shown in ((14, "GrrGr"), (14.6, "yrrGr")):
            safety = adopted(self.signal(crossing, walking_m=3.0), shown="Grrrr", greens=())
            assert shown_after(safety, "GrrGr", 10) == "GrrGr"
            assert shown_after(safety, "rrrrG", now) == shown

    def test_crossing_that_keeps_its_green_does_not_count(self, crossing):
        assert self.shown(self.signal(crossing, 2), "GrGGr", "rrGrG") == "GrGrr"

    def test_only_vehicles_that_follow_matter(self, crossing):
        # link 1 keeps its green, link 2 starts, and neither is a foe
        assert self.shown(self.signal(crossing), "GGrGr", "rGrrG") == "GGrrr"
        assert self.shown(self.signal(crossing), "GGrGr", "rGGrG") == "GGGrr"

    def test_green_that_nothing_follows_ends_once_pedestrians_are_clear_in_time(self, crossing):
        assert self.shown(self.signal(crossing, walking_m=3.0), "GrrGr", "rrrrr") == "yrrrr"


def assert_rules(signal_safety, times, history):
    """Check any sequence of (time, state) without the bookkeeping of SignalSafety."""
    rules, last_change = signal_safety.rules, {}
    is_crossing = signal_safety.is_crossing
    for (_, before), (now, state) in itertools.pairwise(history):
        assert rules.conflicts(state) == [], state
        for i, (a, b) in enumerate(zip(before, state, strict=True)):
            kinds = ["green" if c in "Gg" else "yellow" if c == "y" else "red" for c in (a, b)]
            if kinds[0] == kinds[1]:
                continue
            assert kinds != ["green", "red"] or is_crossing[i], f"link {i} lost its green without yellow at {now}"
            assert kinds != ["yellow", "green"], f"link {i} left its yellow for green at {now}"
            assert kinds != ["red", "yellow"], f"link {i} turned yellow from red at {now}"
            since = last_change.get(i, (-math.inf, ""))[0]
            if kinds[0] == "green":
                assert round(now - since, 3) >= times.min_green_s, f"link {i} lost its green after {now - since} s"
            if kinds[0] == "yellow":
                assert round(now - since, 3) >= signal_safety.yellow_s[i], f"link {i} had {now - since} s of yellow"
            if kinds[1] == "green":
                for j in range(len(state)):
                    if rules.foes[i] >> j & 1 and not (b == "g" and rules.yields[i] >> j & 1) and state[j] != "g":
                        assert state[j] not in "yG", f"link {i} turned {b} while its foe {j} shows {state[j]}"
                        red_since, kind = last_change.get(j, (-math.inf, "red"))
                        if before[j] == "y":
                            red_since = now
                        assert round(now - red_since, 3) >= signal_safety.clearance_s[j], (
                            f"link {i} turned {b} {now - red_since} s after its foe {j}"
                        )
                        assert kind == "red" or before[j] == "y"
            last_change[i] = (now, kinds[1])


SIGNALS = network.of_sumocfg(GRID / "grid.sumocfg").signals


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_sequence_of_requests_breaks_a_rule(crossroads, data):
    signal = data.draw(st.sampled_from([crossroads, *SIGNALS.values()]))
    links = len(signal.links)
    phases = [phase.state for phase in signal.plan.phases]
    greens = [phases[i] for i in signal.plan.greens]
    times = data.draw(
        st.builds(
            SafetyTimes,
            yellow_s=st.sampled_from([3.0, 4.0]),
            min_green_s=st.sampled_from([4.0, 7.0]),
            all_red_s=st.sampled_from([0.0, 1.0, 2.0]),
            red_by_path=st.booleans(),
            max_green_s=st.sampled_from([math.inf, 20.0]),
            max_red_s=st.sampled_from([math.inf, 40.0]),
        )
    )
    anything = st.one_of(
        st.sampled_from(phases), st.text("rygGsuO?", min_size=links, max_size=links), st.text(max_size=4)
    )
    requests = data.draw(st.lists(st.tuples(anything, st.integers(1, 9)), min_size=5, max_size=40))
    signal_safety = SignalSafety(signal, times, greens)
    signal_safety.start_from(phases[0], 0)
    step_s = data.draw(st.sampled_from([1.0, 0.5, 0.4, 0.1]))
    now, history = 0.0, [(0.0, phases[0])]
    for requested, wait in requests:
        for _ in range(round(wait / step_s)):
            now = round(now + step_s, 3)
            history.append((now, signal_safety.permit(requested, now)[0].state))
    assert_rules(signal_safety, times, history)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_clearing_starts_no_conflict_whatever_is_requested(data):
    signal = data.draw(st.sampled_from([*SIGNALS.values()]))
    requested = data.draw(st.text("rgG", min_size=len(signal.links), max_size=len(signal.links)))
    safety = SignalSafety(signal, TIMES)
    assert safety.rules.conflicts(safety.permit(requested, 0, clearing=True)[0].state) == []


@pytest.mark.parametrize("name", ["cologne1", "cologne8", "ingolstadt7"])
def test_flipping_policies_on_real_networks_keep_every_rule(name, shared):
    street = network.of_sumocfg(shared / "scenarios" / name / f"{name}.sumocfg")
    times = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=1, max_red_s=90)
    rng = random.Random(1)
    for signal in street.signals.values():
        phases = [phase.state for phase in signal.plan.phases]
        greens = [phases[i] for i in signal.plan.greens]
        signal_safety = SignalSafety(signal, times, greens)
        signal_safety.start_from(phases[0], 0)
        history = [(0, phases[0])]
        for now in range(1, 1500):
            requested = greens[now % len(greens)] if now < 700 else rng.choice(phases) if now < 1000 else greens[0]
            history.append((now, signal_safety.permit(requested, now)[0].state))
        assert_rules(signal_safety, times, history)
        # each link that some phase serves was green at least once per max red and a transition
        for i in range(len(signal.links)):
            if any(state[i] in "Gg" for state in greens):
                green_at = [0, *(t for t, state in history if state[i] in "Gg"), 1500]
                gaps = [b - a for a, b in itertools.pairwise(green_at)]
                assert max(gaps) <= times.max_red_s * len(greens) + 20, (signal.id, i, max(gaps))


def test_checker_of_these_tests_detects_a_broken_rule(crossing):
    rules = adopted(crossing)
    good = [(0, "GgGr"), (6, "yyyr"), (9, "rrrG")]
    assert_rules(rules, TIMES, good)
    for at, bad in ((1, (6, "rrrr")), (2, (7, "rrrG")), (2, (9, "GGGG"))):
        broken = copy.copy(good)
        broken[at] = bad
        with pytest.raises(AssertionError):
            assert_rules(rules, TIMES, broken)


def test_signal_that_was_off_is_cleared_by_a_yellow(crossing):
    signal_safety = SignalSafety(crossing, SafetyTimes(3, 5))
    signal_safety.start_from("oOoO", 0)
    assert [signal_safety.permit("GgGr", t)[0].state for t in range(6)] == ["yyyy"] * 3 + ["rrrr"] + ["GgGr"] * 2
