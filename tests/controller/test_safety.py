"""The safety rules: by example, and against adversarial wishes."""

import copy
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city import network
from city.network import is_green
from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import ConflictRules, PermittedHandover, PermittedState, Reason, SignalSafety
from tests.conftest import GRID

TIMES = SafetyTimes(yellow_s=3, min_green_s=5)


def safety(crossing, times=TIMES, shown="GgGr", greens=("GgGr", "rrrG")):
    watched = SignalSafety(crossing, times, greens)
    watched.adopt(shown, 0)
    return watched


def reasons(overrides):
    return {override.reason for override in overrides}


class TestByExample:
    def test_only_this_module_makes_what_sumo_accepts(self):
        with pytest.raises(TypeError):
            PermittedState("X", "GGGG", seal=object())
        with pytest.raises(TypeError):
            PermittedHandover("X", "0", 0, None, seal=None)

    def test_a_permitted_state_does_not_change(self, crossing):
        state, _ = safety(crossing).permit("GgGr", 1)
        with pytest.raises(AttributeError):
            state.state = "GGGG"

    @pytest.mark.parametrize("wish", ["", "GgG", "GgGrr", "GgXr", "????", "OOOO"])
    def test_a_malformed_wish_holds_what_is_shown(self, crossing, wish):
        state, overrides = safety(crossing).permit(wish, 10)
        assert state.state == "GgGr" and reasons(overrides) == {Reason.MALFORMED}

    @pytest.mark.parametrize("wish", ["GGGG", "GGGr", "GrrG", "rgrG"])
    def test_a_wish_with_a_conflict_holds_what_is_shown(self, crossing, wish):
        state, overrides = safety(crossing).permit(wish, 10)
        assert state.state == "GgGr" and reasons(overrides) == {Reason.CONFLICT}

    def test_a_yielding_green_is_no_conflict(self, crossing):
        assert ConflictRules(crossing).objection("GgGr") is None
        assert ConflictRules(crossing).conflicts("GGGr") == [(1, 2), (2, 1)]
        assert ConflictRules(crossing).conflicts("rgrg") == [(1, 3), (3, 1)], "neither yields"

    def test_green_lasts_for_min_green(self, crossing):
        watched = safety(crossing)
        state, overrides = watched.permit("rrrG", 4)
        assert state.state == "GgGr" and Reason.MIN_GREEN in reasons(overrides)

    def test_yellow_comes_before_red_and_lasts_its_time(self, crossing):
        watched = safety(crossing)
        shown = [watched.permit("rrrG", t)[0].state for t in range(5, 11)]
        assert shown == ["yyyr", "yyyr", "yyyr", "rrrG", "rrrG", "rrrG"]

    def test_all_red_keeps_the_junction_empty_before_a_foe_starts(self, crossing):
        watched = safety(crossing, SafetyTimes(3, 5, all_red_s=2))
        shown = [watched.permit("rrrG", t)[0].state for t in range(5, 12)]
        assert shown == ["yyyr"] * 3 + ["rrrr"] * 2 + ["rrrG"] * 2

    def test_a_yellow_that_has_begun_is_finished(self, crossing):
        watched = safety(crossing)
        watched.permit("rrrG", 5)
        shown = [watched.permit("GgGr", t)[0].state for t in range(6, 10)]
        assert shown == ["yyyr", "yyyr", "rrrr", "GgGr"]

    def test_a_protected_green_waits_for_its_foes_yellow(self, crossing):
        watched = safety(crossing, greens=())
        watched.permit("Ggyr", 5)
        state, overrides = watched.permit("GGrr", 6)
        assert state.state == "Ggyr" and Reason.CLEARANCE in reasons(overrides)
        assert watched.permit("GGrr", 8)[0].state == "GGrr"

    def test_red_does_not_turn_yellow(self, crossing):
        assert safety(crossing).permit("GgGy", 10)[0].state == "GgGr"

    def test_an_override_is_told_once_until_the_wish_changes(self, crossing):
        watched = safety(crossing)
        assert watched.permit("rrrG", 1)[1]
        assert not watched.permit("rrrG", 2)[1]
        assert watched.permit("rrrr", 3)[1]

    def test_a_starved_link_is_served_for_its_min_green(self, crossing):
        watched = safety(crossing, SafetyTimes(3, 5, max_red_s=30))
        shown = [watched.permit("GgGr", t)[0].state for t in range(60)]
        assert shown[29] == "GgGr" and shown[30] == "yyyr"
        first = shown.index("rrrG")
        assert shown[first : first + 5] == ["rrrG"] * 5
        assert shown[first + 12] == "GgGr"

    def test_a_worn_out_green_gives_way_to_who_waits(self, crossing):
        watched = safety(crossing, SafetyTimes(3, 5, max_green_s=20))
        shown = [watched.permit("GgGr", t)[0].state for t in range(30)]
        assert shown[19] == "GgGr" and shown[20] == "yyyr" and "rrrG" in shown

    @pytest.mark.parametrize("bounds", [{"max_green_s": 15}, {"max_green_s": 10, "all_red_s": 2}, {}])
    def test_nobody_waits_longer_for_a_wish_that_would_serve_and_is_never_shown(self, crossroads, bounds):
        greens = [phase.state for phase in crossroads.plan.phases if is_green(phase.state)]
        times = SafetyTimes(3, 5, max_red_s=90, **bounds)
        for wish in greens:
            watched, red_s = SignalSafety(crossroads, times, greens), [0] * len(wish)
            watched.adopt("r" * len(wish), 0)
            for t in range(600):
                shown = watched.permit(wish, t)[0].state
                red_s = [0 if c in "gG" else s + 1 for c, s in zip(shown, red_s, strict=True)]
                assert max(red_s) <= 90 + (1 + len(greens)) * watched.clearing_s, (wish, t, shown)

    def test_who_has_waited_too_long_is_served_beside_a_worn_green_where_there_is_no_other_phase(self, crossing):
        watched = SignalSafety(crossing, SafetyTimes(3, 5, max_green_s=20, max_red_s=30), ["GgGr", "Ggrr", "Grrr"])
        watched.adopt("Ggrr", 0)
        shown = [watched.permit("Ggrr", t)[0].state for t in range(60)]
        assert shown[29] == "Ggrr" and shown[30] == "GgGr"

    def test_who_has_waited_too_long_is_served_by_a_phase_that_ends_a_worn_green_where_there_is_one(self, crossing):
        watched = SignalSafety(crossing, SafetyTimes(3, 5, max_green_s=30, max_red_s=30), ["GgGr", "GrGr", "Ggrr"])
        watched.adopt("Ggrr", 0)
        shown = [watched.permit("Ggrr", t)[0].state for t in range(60)]
        assert shown[29] == "Ggrr" and shown[30] == "Gyrr" and shown[33] == "GrGr"

    def test_a_wish_that_serves_who_has_waited_too_long_is_kept_to_and_no_override(self, crossing):
        watched = SignalSafety(crossing, SafetyTimes(3, 5, max_red_s=30), ["GrGr", "GgGr", "rrrG"])
        watched.adopt("rrrG", 0)
        told = [watched.permit("rrrG" if t < 30 else "GgGr", t) for t in range(50)]
        shown = [state.state for state, _ in told]
        assert shown[30] == "rrry" and shown[33] == "GgGr" and "GrGr" not in shown
        assert Reason.MAX_RED not in {x.reason for _, overrides in told for x in overrides}

    def test_a_turning_green_does_not_stand_beside_the_other_streets_while_phases_change(self, grid_street):
        for signal in grid_street.signals.values():
            states = [phase.state for program in signal.programs for phase in program.phases]
            greens = [state for state in states if is_green(state)]
            for before, wish in itertools.permutations(states, 2):
                watched = SignalSafety(signal, SafetyTimes(3, 5), greens)
                watched.adopt(before, 0)
                shown = [watched.permit(wish, t)[0].state for t in range(1, 40)]
                for state in shown:
                    for i, j in zip(*np.triu(signal.foes).nonzero(), strict=True):
                        beside = state[i] in "gG" and state[j] in "gG"
                        assert not beside or any(x[i] in "gG" and x[j] in "gG" for x in states), (signal.id, before, wish, state)
                assert is_green(wish) <= (shown[-1] == wish)

    def test_hand_over_needs_a_cleared_junction(self, crossing):
        watched = safety(crossing)
        with pytest.raises(ValueError, match="all red"):
            watched.hand_over("0", 0, 10)
        for t in range(10, 20):
            watched.permit("rrrr", t)
        assert watched.hand_over("0", 0, 20).program == "0"


def observed_rules(watched, times, history):
    """What must hold of any sequence of (time, state), checked without safety.py's own bookkeeping."""
    rules, last_change = watched.rules, {}
    for (_, before), (now, state) in itertools.pairwise(history):
        assert rules.conflicts(state) == [], state
        for i, (a, b) in enumerate(zip(before, state, strict=True)):
            kinds = ["green" if c in "Gg" else "yellow" if c == "y" else "red" for c in (a, b)]
            if kinds[0] == kinds[1]:
                continue
            assert kinds != ["green", "red"] or watched._crossing[i], f"link {i} lost its green without yellow at {now}"
            assert kinds != ["yellow", "green"], f"link {i} left its yellow for green at {now}"
            assert kinds != ["red", "yellow"], f"link {i} turned yellow from red at {now}"
            since = last_change.get(i, (-math.inf, ""))[0]
            if kinds[0] == "green":
                assert round(now - since, 3) >= times.min_green_s, f"link {i} lost its green after {now - since} s"
            if kinds[0] == "yellow":
                assert round(now - since, 3) >= watched.yellow_s[i], f"link {i} had {now - since} s of yellow"
            if kinds[1] == "green":
                for j in range(len(state)):
                    if rules.foes[i] >> j & 1 and not (b == "g" and rules.yields[i] >> j & 1) and state[j] != "g":
                        assert state[j] not in "yG", f"link {i} turned {b} while its foe {j} shows {state[j]}"
                        red_since, kind = last_change.get(j, (-math.inf, "red"))
                        if before[j] == "y":
                            red_since = now
                        assert round(now - red_since, 3) >= watched.clearance_s[j], (
                            f"link {i} turned {b} {now - red_since} s after its foe {j}"
                        )
                        assert kind == "red" or before[j] == "y"
            last_change[i] = (now, kinds[1])


SIGNALS = network.of_sumocfg(GRID / "grid.sumocfg").signals


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_sequence_of_wishes_breaks_a_rule(data):
    signal = SIGNALS[data.draw(st.sampled_from(sorted(SIGNALS)))]
    links = len(signal.links)
    phases = [phase.state for phase in signal.plan.phases]
    greens = [phases[i] for i in signal.plan.greens]
    times = data.draw(
        st.builds(
            SafetyTimes,
            yellow_s=st.sampled_from([3.0, 4.0]),
            min_green_s=st.sampled_from([4.0, 7.0]),
            all_red_s=st.sampled_from([0.0, 1.0, 2.0]),
            max_green_s=st.sampled_from([math.inf, 20.0]),
            max_red_s=st.sampled_from([math.inf, 40.0]),
        )
    )
    anything = st.one_of(st.sampled_from(phases), st.text("rygGsuO?", min_size=links, max_size=links), st.text(max_size=4))
    wishes = data.draw(st.lists(st.tuples(anything, st.integers(1, 9)), min_size=5, max_size=40))
    watched = SignalSafety(signal, times, greens)
    watched.adopt(phases[0], 0)
    step_s = data.draw(st.sampled_from([1.0, 0.5, 0.4, 0.1]))
    now, history = 0.0, [(0.0, phases[0])]
    for wish, wait in wishes:
        for _ in range(round(wait / step_s)):
            now = round(now + step_s, 3)
            history.append((now, watched.permit(wish, now)[0].state))
    observed_rules(watched, times, history)


@pytest.mark.parametrize("name", ["cologne1", "cologne8", "ingolstadt7"])
def test_flipping_policies_on_real_streets_break_no_rule_and_starve_nobody(name, shared):
    street = network.of_sumocfg(shared / "scenarios" / name / f"{name}.sumocfg")
    times = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=1, max_red_s=90)
    rng = random.Random(1)
    for signal in street.signals.values():
        phases = [phase.state for phase in signal.plan.phases]
        greens = [phases[i] for i in signal.plan.greens]
        watched = SignalSafety(signal, times, greens)
        watched.adopt(phases[0], 0)
        history = [(0, phases[0])]
        for now in range(1, 1500):
            wish = greens[now % len(greens)] if now < 700 else rng.choice(phases) if now < 1000 else greens[0]
            history.append((now, watched.permit(wish, now)[0].state))
        observed_rules(watched, times, history)
        # whatever the wishes: each link that some phase serves was green at least every max red and a transition
        for i in range(len(signal.links)):
            if any(state[i] in "Gg" for state in greens):
                green_at = [0, *(t for t, state in history if state[i] in "Gg"), 1500]
                gaps = [b - a for a, b in itertools.pairwise(green_at)]
                assert max(gaps) <= times.max_red_s * len(greens) + 20, (signal.id, i, max(gaps))


def test_the_checker_of_these_tests_sees_a_broken_rule(crossing):
    rules = safety(crossing)
    good = [(0, "GgGr"), (6, "yyyr"), (9, "rrrG")]
    observed_rules(rules, TIMES, good)
    for at, bad in ((1, (6, "rrrr")), (2, (7, "rrrG")), (2, (9, "GGGG"))):
        broken = copy.copy(good)
        broken[at] = bad
        with pytest.raises(AssertionError):
            observed_rules(rules, TIMES, broken)


def test_a_signal_that_was_off_is_cleared_by_a_yellow(crossing):
    watched = SignalSafety(crossing, SafetyTimes(3, 5))
    watched.adopt("oOoO", 0)
    assert [watched.permit("GgGr", t)[0].state for t in range(6)] == ["yyyy"] * 3 + ["rrrr"] + ["GgGr"] * 2
