"""The safety rules: by example, and with adversarial requested states."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city import network
from signals.safety.conflicts import ConflictRules, OverrideReason
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalSafety
from tests.conftest import GRID

TIMES = SafetyTimes(yellow_s=3, min_green_s=5)
BOTH = ("GgGr", "rrrG")
"""The green phases of `crossing`."""


def adopted(crossing, times=TIMES, shown="GgGr", greens=("GgGr", "rrrG")):
    signal_safety = SignalSafety(crossing, times, greens)
    signal_safety.start_from(shown, 0)
    return signal_safety


def walked(crossing, foes, *crossings, walking_m=9.6):
    """A signal of five links, of which some are pedestrian crossings, without right of way."""
    return replace(
        crossing, links=(*crossing.links, ()), foes=foes, yields=np.zeros((5, 5), bool), permissive=np.zeros((5, 5),
        bool),
        approach_mps=tuple(0.0 if i in crossings else 10.0 for i in range(5)),
        crossing_m=tuple(walking_m if i in crossings else 0.0 for i in range(5)), path_m=(), slowest_mps=(),
    )  # fmt: skip


def reasons(overrides):
    return {override.reason for override in overrides}


def shown_after(safety, requested, now):
    return safety.permit(requested, now)[0].state


def foes_of(*pairs):
    foes = np.zeros((5, 5), bool)
    for i, j in pairs:
        foes[i, j] = foes[j, i] = True
    return foes


class TestByExample:
    def test_only_signal_safety_makes_permitted_states(self):
        with pytest.raises(TypeError):
            PermittedState("X", "GGGG", seal=object())
        with pytest.raises(TypeError):
            PermittedRelease("X", "0", 0, None, seal=None)

    @pytest.mark.parametrize(
        ("shown", "requested", "at_s", "permitted", "overridden"),
        [
            *(("GgGr", state, 10, "GgGr", {"malformed"}) for state in ("", "GgG", "GgGrr", "GgXr", "????", "OOOO")),
            *(("GgGr", state, 10, "GgGr", {"conflict"}) for state in ("GGGG", "GGGr", "GrrG", "rgrG")),
            pytest.param("GgGr", "rrrG", 4, "GgGr", {"min_green", "clearance"}, id="green lasts for min green"),
            pytest.param("GgGr", "ggGr", 1, "ggGr", set(), id="a protected green becomes permissive at once"),
            pytest.param("GgGr", "rrrr", 5, "yyyr", {"yellow"}, id="yellow is an override"),
            pytest.param("GgGr", "yyyr", 5, "yyyr", set(), id="unless it is requested"),
            pytest.param("rrrr", "GgGr", 10, "GgGr", set(), id="greens that all start are no override"),
        ],
    )
    def test_one_request_and_its_overrides(self, crossing, shown, requested, at_s, permitted, overridden):
        state, overrides = adopted(crossing, shown=shown).permit(requested, at_s)
        assert state.state == permitted and reasons(overrides) == overridden

    @pytest.mark.parametrize(
        ("times", "shown", "greens", "requests", "expected"),
        [
            pytest.param({}, "GgGr", BOTH, ["rrrG"] * 6, ["yyyr"] * 3 + ["rrrG"] * 3, id="yellow precedes red"),
            pytest.param(
                {"all_red_s": 2}, "GgGr", BOTH, ["rrrG"] * 7, ["yyyr"] * 3 + ["rrrr"] * 2 + ["rrrG"] * 2,
                id="all-red precedes a foe's green",
            ),
            pytest.param(
                {}, "GgGr", BOTH, ["rrrG"] + ["GgGr"] * 4, ["yyyr"] * 3 + ["rrrr", "GgGr"],
                id="a yellow that has begun is finished",
            ),
            pytest.param({}, "GgGr", BOTH, ["GgGy", "GgGs", "GgGu"], ["GgGr", "GgGs", "GgGu"], id="red changes to s or u"),
            pytest.param({}, "GgGr", (), ["rgGr", "rrrr"], ["ygGr", "yyyr"], id="a green ends beside a yellow"),
            pytest.param(
                {}, "Ggrr", (), ["Grrr", "Grrr", "Grrr", "????"], ["Gyrr"] * 3 + ["Grrr"],
                id="a malformed request finishes the yellow and keeps the green",
            ),
            pytest.param({}, "GrrG", (), ["????"], ["yrry"], id="a malformed request ends a conflict"),
            pytest.param(
                {}, "GgGr", (), ["Ggyr", "GGrr", "GGrr", "GGrr"], ["Ggyr"] * 3 + ["GGrr"],
                id="a protected green waits for its foe's yellow",
            ),
            pytest.param(
                {}, "oOoO", BOTH, {0: "GgGr", 2: "GgGr", 3: "GgGr", 4: "GgGr"}, ["yyyy", "yyyy", "rrrr", "GgGr"],
                id="a signal that was off is cleared by a yellow",
            ),
            pytest.param(
                {"max_green_s": 20}, "rrrr", BOTH, dict.fromkeys((10, 29, 30), "GgGr"), ["GgGr", "GgGr", "yyyr"],
                id="max green counts from the link's own green",
            ),
            pytest.param(
                {"max_red_s": 30}, "rrrG", ["GrGr", "GgGr", "rrrG"], {30: "rrrG", 31: "GgGr", 33: "GgGr"},
                ["rrry", "rrry", "GrGr"], id="a phase that serves max red is kept until it is shown",
            ),
        ],
    )  # fmt: skip
    def test_states_that_follow_requests(self, crossing, times, shown, greens, requests, expected):
        """Requests by second; a list begins when min green has passed."""
        moments = requests if isinstance(requests, dict) else dict(enumerate(requests, 5))
        safety = adopted(crossing, replace(TIMES, **times), shown, greens)
        assert [shown_after(safety, requested, t) for t, requested in moments.items()] == expected

    def test_override_is_reported_once_per_requested_state_and_again_after_a_permitted_one(self, crossing):
        safety = adopted(crossing)
        requests = ["rrrG", "rrrG", "rrrr", "GgGr", "rrrr"]
        assert [bool(safety.permit(state, t)[1]) for t, state in enumerate(requests)] == [
            True,
            False,
            True,
            False,
            True,
        ]

    @pytest.mark.parametrize(
        ("times", "shown", "greens", "expected"),
        [
            pytest.param(
                {"max_red_s": 30},
                "GgGr",
                BOTH,
                {29: "GgGr", 30: "yyyr", 32: "yyyr", 33: "rrrG", 37: "rrrG", 38: "rrry", 45: "GgGr"},
                id="a link beyond max red is served for min green",
            ),
            pytest.param(
                {"max_green_s": 20},
                "GgGr",
                BOTH,
                {19: "GgGr", 20: "yyyr", 23: "rrrG"},
                id="a green beyond max green ends if a foe waits",
            ),
            pytest.param(
                {"max_green_s": 20, "max_red_s": 30},
                "Ggrr",
                ["GgGr", "Ggrr", "Grrr"],
                {29: "Ggrr", 30: "GgGr"},
                id="max red is served beside an expired green if need be",
            ),
            pytest.param(
                {"max_green_s": 30, "max_red_s": 30},
                "Ggrr",
                ["GgGr", "GrGr", "Ggrr"],
                {29: "Ggrr", 30: "Gyrr", 33: "GrGr"},
                id="the service of max red prefers a phase that ends an expired green",
            ),
        ],
    )
    def test_bounds_are_served_while_one_state_is_requested(self, crossing, times, shown, greens, expected):
        safety = adopted(crossing, replace(TIMES, **times), shown, greens)
        states = [shown_after(safety, shown, t) for t in range(60)]
        assert {t: states[t] for t in expected} == expected

    @pytest.mark.parametrize(
        ("times", "shown", "now", "allowed"),
        [
            ({}, "GgGr", 5, ["GgGr", "Ggrr", "rrrG"]),
            ({}, "GgGr", 4.999, ["GgGr"]),
            ({}, "Ggrr", 4.999, ["GgGr", "Ggrr"]),
            ({"max_red_s": 30}, "GgGr", 29.999, ["GgGr", "Ggrr", "rrrG"]),
            ({"max_red_s": 30}, "GgGr", 30, ["rrrG"]),
            ({"max_green_s": 20}, "GgGr", 20, ["rrrG"]),
        ],
    )
    def test_greens_that_may_begin_are_those_that_are_followed_without_override(
        self, crossing, times, shown, now, allowed
    ):
        greens = ("GgGr", "Ggrr", "rrrG", "GgGG", "rr")
        safety = adopted(crossing, replace(TIMES, **times), shown, ("GgGr", "Ggrr", "rrrG"))
        before = copy.deepcopy(safety.state)
        assert [green for green in greens if safety.allows(green, now)] == allowed
        assert safety.state == before, "asking changes nothing"
        late = {OverrideReason.YELLOW, OverrideReason.CLEARANCE}
        for green in greens:
            overridden = reasons(copy.deepcopy(safety).permit(green, now)[1]) - late
            assert (green in allowed) == (not overridden), green

    def test_a_green_may_end_at_its_min_green_while_another_link_shows_yellow(self, crossing):
        safety = adopted(crossing, TIMES, "GgGr")
        safety.permit("Ggrr", 5)
        assert safety.shown == "Ggyr" and safety.allows("rrrG", 5)

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

    def test_vehicles_keep_their_green_while_pedestrians_clear_the_crossing(self, crossing):
        # link 3 is walked beside links 0 to 2; link 4 follows them all
        signal = walked(crossing, foes_of((0, 4), (1, 4), (2, 4), (3, 4)), 3)
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

    def test_state_of_another_length_counts_as_yellow_where_it_says_nothing(self, crossing):
        for shown, colours in (("GgG", "GgGy"), ("GgGrGG", "GgGr"), ("", "yyyy")):
            assert adopted(crossing, shown=shown).shown == colours

    def test_handover_needs_a_cleared_junction(self, crossing):
        signal_safety = adopted(crossing)
        with pytest.raises(ValueError, match="all red"):
            signal_safety.permit_release("0", 0, 10)
        for t in range(10, 20):
            signal_safety.permit("rrrr", t)
        assert signal_safety.permit_release("0", 0, 20).program == "0"


class TestState:
    def test_signal_without_a_start_counts_as_red_and_clear(self, crossing):
        for requested, reported in (("rrrr", set()), ("GgGr", set())):
            safety = SignalSafety(crossing, SafetyTimes(3, 5, all_red_s=2, max_red_s=60), ["GgGr", "rrrG"])
            assert (safety.shown, safety.state.bound_exceeded_at_s, safety.is_cleared(0)) == ("rrrr", math.inf, True)
            assert not (safety.state.is_sent or safety.state.is_release_sent or safety.state.is_release_confirmed)
            state, overrides = safety.permit(requested, 0)
            assert state.state == requested and reasons(overrides) == reported
        assert safety.network is crossing

    def test_waiting_counts_from_the_start(self, crossing):
        safety = SignalSafety(crossing, SafetyTimes(3, 5, max_red_s=30), BOTH)
        safety.start_from("GgGr", 100)
        assert [shown_after(safety, "GgGr", t) for t in (129, 130)] == ["GgGr", "yyyr"]

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

    def test_service_of_max_red_is_reported(self, crossing):
        changes = {OverrideReason.YELLOW, OverrideReason.CLEARANCE}
        for requested, reported in (("GgGr", set()), ("????", {OverrideReason.MALFORMED})):
            _, overrides = adopted(crossing, SafetyTimes(3, 5, max_red_s=30)).permit(requested, 30)
            assert reasons(overrides) == {OverrideReason.MAX_RED} | reported | changes

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
        safety = SignalSafety(signal, SafetyTimes(3, 5, all_red_s=1, red_by_path=True), ["GgGr", "rrrG"])
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
    def test_yellow_that_is_finished_is_an_override(self, crossing):
        safety = adopted(crossing)
        safety.permit("rrrr", 5)
        assert reasons(safety.permit("GgGr", 6)[1]) == {OverrideReason.YELLOW}

    def test_greens_of_foes_never_start_together(self, crossing):
        # requests with a conflict, which only the clearing of a junction does not check beforehand
        for requested, started in (
            ("rGGr", "rGrr"),
            ("GrrG", "Grrr"),
            ("rgrg", "rgrr"),
            ("grrg", "grrr"),
            ("rgGr", "rgGr"),
        ):
            assert adopted(crossing, shown="rrrr", greens=()).permit(requested, 10, clearing=True)[0].state == started


FOLLOWED = foes_of((0, 4), (3, 4))
"""Link 4 follows links 0 and 3."""


@pytest.mark.parametrize(
    ("foes", "crossings", "walking_m", "times", "before", "requested", "shown"),
    [
        pytest.param(foes_of((0, 4)), (), 9.6, {}, "rrrrG", "GGrrr", "rGrry", id="a link beside one that waits"),
        pytest.param(foes_of((1, 2)), (), 9.6, {}, "rrrrr", "grGrr", "grGrr", id="a g blocks its own foes alone"),
        # followers wait for no crossing
        pytest.param(foes_of((0, 4), (1, 4), (2, 4)), (3,), 9.6, {}, "GGGGr", "rrrrG", "yyyrr", id="no crossing"),
        # crossing 3 is walked beside link 0, crossing 4 follows link 0; nothing follows crossing 3
        pytest.param(foes_of((0, 4)), (3, 4), 9.6, {}, "GrrGr", "rrrrG", "yrrrr", id="pedestrians wait for none"),
        pytest.param(FOLLOWED, (3,), 9.6, {}, "GrrGr", "rrrrG", "Grrrr", id="8 s, longer than the yellow"),
        pytest.param(FOLLOWED, (3,), 3.0, {}, "GrrGr", "rrrrG", "yrrrr", id="2.5 s, in the vehicles' yellow"),
        pytest.param(FOLLOWED, (3,), 4.8, {"all_red_s": 2}, "GrrGr", "rrrrG", "yrrrr", id="4 s, in yellow and red"),
        pytest.param(
            FOLLOWED, (3,), 0.6, {"yellow_s": 0, "yellow_by_speed": False}, "GrrGr", "rrrrG", "Grrrr", id="no yellow"
        ),
        pytest.param(FOLLOWED, (3, 2), 9.6, {}, "GrGGr", "rrGrG", "GrGrr", id="a crossing that keeps its green"),
        # link 1 keeps its green, link 2 starts, and neither is a foe
        pytest.param(FOLLOWED, (3,), 9.6, {}, "GGrGr", "rGrrG", "GGrrr", id="no foe keeps its green"),
        pytest.param(FOLLOWED, (3,), 9.6, {}, "GGrGr", "rGGrG", "GGGrr", id="no foe starts"),
        # link 1 is a foe of link 0, and stays red
        pytest.param(foes_of((0, 1), (0, 4), (3, 4)), (3,), 9.6, {}, "GrrGr", "rrrrG", "Grrrr", id="a red foe"),
        pytest.param(FOLLOWED, (3,), 3.0, {}, "GrrGr", "rrrrr", "yrrrr", id="clear in time, and nothing follows"),
    ],
)
def test_vehicles_keep_their_green_only_if_followers_wait_for_pedestrians(
    crossing, foes, crossings, walking_m, times, before, requested, shown
):
    safety = adopted(walked(crossing, foes, *crossings, walking_m=walking_m), replace(TIMES, **times), before, ())
    assert shown_after(safety, requested, 10) == shown


def test_min_green_of_the_pedestrians_is_part_of_their_time(crossing):
    # 2.5 s of walking, after the rest of a min green of 5 s that begins at 10: more than 3 s at 14, less at 14.6
    for now, shown in ((14, "GrrGr"), (14.6, "yrrGr")):
        safety = adopted(walked(crossing, FOLLOWED, 3, walking_m=3.0), shown="Grrrr", greens=())
        assert shown_after(safety, "GrrGr", 10) == "GrrGr"
        assert shown_after(safety, "rrrrG", now) == shown


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
            by_program=st.booleans(),
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
