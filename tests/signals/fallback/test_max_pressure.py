"""Max-pressure control, entered and left through safe transitions."""

from dataclasses import replace

import numpy as np
import pytest

from controller.assembly import _scored_greens
from signals import contract
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.fallback.scored_greens import MAX_WAIT_S, Greedy, MaxPressure, ScoredGreens
from signals.observation import Readings
from signals.policy import Answer
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import PermittedRelease, PermittedState
from tests.signals.single_signal import GREENS, one_signal, play

LANES = [f"{way}{i}_0" for way in ("in", "out") for i in range(4)]
ROW = {lane: k for k, lane in enumerate(LANES)}
LENGTH_M = np.full(8, 100.0)


def readings(**vehicles):
    counts = np.array([vehicles.get(lane.removesuffix("_0"), 0) for lane in LANES], float)
    return Readings(np.array([counts, counts]), counts, counts)


def late(now):
    return TimeoutError("late, or no policy is queried")


def waiting(now):
    return readings(in3=9)


def controller(crossing, length_m=LENGTH_M):
    made = ScoredGreens(MaxPressure, [crossing], [GREENS], ROW, length_m, SafetyTimes(3, 5), {})
    made.enter(0, ["GgGr"])
    return made


def chosen(made, now, **vehicles):
    made.decide(now, readings(**vehicles))
    made.note_shown(now, 0)
    return made.requested_states(now + 3)[0]


@pytest.mark.parametrize(
    ("vehicles_at", "greens"),
    [
        ({20: {"in3": 1}}, ["rrrG"]),
        ({20: {"in0": 5, "in3": 4}}, ["GgGr"]),
        ({20: {"in0": 5, "out0": 5, "in3": 1}}, ["rrrG"]),  # a full outgoing lane cancels the pressure
        ({20: {"in0": 2, "in1": 2, "in2": 2, "in3": 5}}, ["GgGr"]),
        ({20: {}}, ["GgGr"]),  # empty lanes: no change
        ({20: {"in0": 3, "in3": 3}}, ["GgGr"]),
        ({20: {"in3": 9}, 40: {}, 60: {"in0": 3, "in3": 3}}, ["rrrG"] * 3),  # the current green stays
        ({5: {"in3": 9}, 10: {"in3": 9}}, ["GgGr", "rrrG"]),  # min green
    ],
)
def test_green_with_the_greatest_pressure_is_chosen(crossing, vehicles_at, greens):
    made = controller(crossing)
    assert [chosen(made, now, **vehicles) for now, vehicles in vehicles_at.items()] == greens


def test_lanes_behind_a_short_lane_count_as_one_with_it(crossing):
    lanes = [*LANES, "behind_0"]
    length_m = np.array([100.0, 100, 100, 1, 100, 100, 100, 100, 99])
    counts = np.array([2.0, 0, 0, 0, 0, 0, 0, 0, 5])
    row = {lane: k for k, lane in enumerate(lanes)}
    for behind, green in ((["behind_0"], "rrrG"), ([], "GgGr")):
        made = ScoredGreens(
            MaxPressure, [crossing], [GREENS], row, length_m, SafetyTimes(3, 5), {"in3_0": dict.fromkeys(behind, 1.0)}
        )
        made.enter(0, ["GgGr"])
        made.decide(20, Readings(np.array([counts, counts]), counts, counts))
        assert made.requested_states(23)[0] == green
    short = np.array([1000.0, 1000, 1000, 50, 100, 100, 100, 100])
    assert chosen(controller(crossing, short), 20, in0=10, in3=2) == "rrrG", "pressure is divided by the length"
    assert MaxPressure.lanes_of(crossing, {"in3_0": {"behind_0": 1.0}}) == [*LANES[:4], "behind_0", *LANES[4:]]


def test_no_vehicles_are_read_on_crossings(crossing):
    walked = replace(crossing, links=(*crossing.links[:3], ((":X_w0_0", ":X_c0_0"),)))
    assert MaxPressure.lanes_of(walked, {}) == [*LANES[:3], *LANES[4:7]] and Greedy.lanes_of(walked, {}) == LANES[:3]


def test_link_that_waits_for_long_is_served_whatever_its_pressure(crossing):
    """A detector that has failed must not keep its approach red for ever."""
    made, shown = controller(crossing), []
    for now in range(5, 400, 5):
        made.decide(now, readings(in0=9))
        made.note_shown(now, 0)
        shown.append(made.requested_states(now)[0])
    served = [5 * (k + 1) for k, state in enumerate(shown) if state == "rrrG"]
    assert served[0] == 125, "decided after 120 s, and 3 s of yellow"
    assert max(np.diff([0, *served, 400])) <= MAX_WAIT_S + 20 and len(served) < len(shown) / 4


def test_link_that_no_green_serves_is_not_waited_for(crossing):
    made = ScoredGreens(MaxPressure, [crossing], [["Grrr", "GgGr"]], ROW, LENGTH_M, SafetyTimes(3, 5), {})
    made.enter(0, ["GgGr"])
    assert {chosen(made, now, in1=9) for now in range(5, 200, 5)} == {"GgGr"}


def test_it_decides_every_5_s_only(crossing):
    made = ScoredGreens(MaxPressure, [crossing], [GREENS], ROW, LENGTH_M, SafetyTimes(0, 0), {})
    made.enter(20, ["GgGr"])
    assert chosen(made, 20, in3=9) == "rrrG"
    assert [chosen(made, now, in0=9) for now in (22, 24, 24.5, 25)] == ["rrrG", "rrrG", "rrrG", "GgGr"]


def test_tl_is_due_for_max_pressure_and_for_asking_its_policy(crossing):
    x = intersection(crossing, hold_s=0)
    due = [10.0]
    while due[-1] < 22:
        x.apply_answer(TimeoutError("late"), due[-1], ["GgGr"], readings(in3=9))
        due.append(x.state.next_decision_s)
    assert due == [10, 12, 14, 15, 16, 18, 20, 22]


def test_max_pressure_instead_of_a_policy_never_enters_fallback(crossing):
    x = intersection(crossing, driven=True)
    sent = play(x, 40, late, readings_at=waiting, release_s=30)
    assert x.mode is ControlMode.POLICY and x.control_name == "MAX-PRESSURE"
    states = [(now, command.state) for now, command in sent if isinstance(command, PermittedState)]
    assert states[0] == (0, "GgGr") and (10, "yyyr") in states and "rrrG" in [state for _, state in states]
    assert any(isinstance(command, PermittedRelease) for _, command in sent), (
        "its own program runs again after the release"
    )


def intersection(crossing, hold_s=10, driven=False):
    pressure = controller(crossing)
    return one_signal(crossing, hold_s, lanes=8, max_pressure=pressure, driver=pressure if driven else None)


def test_max_pressure_controls_a_tl_until_its_policy_recovers(crossing):
    x = intersection(crossing)
    late_until_100 = lambda now: TimeoutError("late") if now < 100 else Answer(np.array([0]))  # noqa: E731
    alternating = lambda now: readings(in3=9) if now % 60 < 30 else readings(in0=9)  # noqa: E731
    sent = play(x, 160, late_until_100, readings_at=alternating)
    assert all(isinstance(command, PermittedState) for _, command in sent), "its own program never runs"
    shown = [(now, command.state) for now, command in sent]
    assert {"GgGr", "rrrG"} <= {state for now, state in shown if 15 < now < 100}
    assert x.mode is ControlMode.POLICY and shown[-1][1] == "GgGr"
    monitor = SignalMonitor(crossing, SafetyTimes(3, 5, 0))
    ends = [*(now for now, _ in shown[1:]), 160]
    assert [
        alarm
        for (begin, state), end in zip(shown, ends, strict=True)
        for alarm in monitor.check_shown(state, begin, end)
    ] == []


def test_tl_with_a_signal_without_greens_falls_back_to_its_plan(grid_city, grid_street):
    made = contract.build(grid_city, grid_city.tls["SA108"], grid_street)  # two signals
    lanes = [lane for signal in made.signal_ids for lane in MaxPressure.lanes_of(grid_street.signals[signal], {})]
    read = {lane: i for i, lane in enumerate(lanes)}, np.array([grid_street.lane_length_m[lane] for lane in lanes])
    times = SafetyTimes(3, 5)
    assert isinstance(_scored_greens(MaxPressure, made, grid_street, *read, times), ScoredGreens)
    signal = grid_street.signals[made.signal_ids[1]]
    red = replace(
        signal.plan, phases=tuple(replace(phase, state="r" * len(phase.state)) for phase in signal.plan.phases)
    )
    street = replace(grid_street, signals={**grid_street.signals, signal.id: replace(signal, programs=(red,))})
    assert _scored_greens(MaxPressure, made, street, *read, times) is None


def test_operator_takes_a_tl_from_max_pressure_and_gives_it_back(crossing):
    x = intersection(crossing, driven=True)
    play(x, 20, late, readings_at=waiting)
    x.set_mode(OperatorMode.HOLD, 20)
    assert (
        play(x, 60, late, begin_s=20, readings_at=lambda now: readings(in0=9)) == [] and x.safeties[0].shown == "rrrG"
    )
    x.set_mode(OperatorMode.FIXED, 60)
    play(x, 100, late, begin_s=60, readings_at=waiting)
    assert x.is_released and x.control_name == "FIXED"
    x.set_mode(OperatorMode.POLICY, 100)
    sent = play(x, 140, late, begin_s=100, readings_at=waiting)
    assert x.control_name == "MAX-PRESSURE" and not x.state.is_on_fallback_plan
    assert "rrrG" in [command.state for _, command in sent if isinstance(command, PermittedState)]


def test_policy_takes_over_from_the_green_that_is_shown(crossing):
    x = intersection(crossing)
    play(x, 40, late, readings_at=waiting)
    assert x.safeties[0].shown == "rrrG" and x.mode is ControlMode.FALLBACK
    assert play(x, 100, lambda now: Answer(np.array([1])), begin_s=40, readings_at=waiting) == []
    assert x.mode is ControlMode.POLICY
