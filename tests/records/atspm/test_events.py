"""Signal events: of any period, and what single periods give."""

from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.network import Program, ProgramPhase
from controller.recording.detectors import ADVANCE, PRESENCE
from records.atspm.analysis_period import (
    CAUSES,
    MODES,
    AnalysisPeriod,
    Detection,
    ModeChange,
    ProgramChange,
    ShownState,
    SignalHistory,
)
from records.atspm.detectors import PlacedDetector
from records.atspm.event_codes import Code
from records.atspm.events import signal_events
from signals.phase_numbers import NemaPhase, PhaseNumbers

MORNING = datetime(2026, 3, 2, 7)
PHASES = PhaseNumbers(
    "A",
    (NemaPhase(2, (0, 1), (), ""), NemaPhase(4, (2,), (3,), ""), NemaPhase(5, (4,), (), "")),
    {"a_0": 2, "b_0": 4, "c_0": 5},
)
DETECTORS = [
    PlacedDetector("advance:a_0", "A", ADVANCE, "a_0", "a_0", 10, 0),
    PlacedDetector("presence:a_0", "A", PRESENCE, "a_0", "a_0", 93, 6),
    PlacedDetector("presence:b_0", "A", PRESENCE, "b_0", "b_0", 93, 6),
]
FIXED = Program("day", "static", 125, tuple(ProgramPhase(s, 30, 30, 30) for s in ("GGrrr", "yyrrr", "rrGGr", "rryrr")))
ACTUATED = Program(
    "act",
    "actuated",
    0,
    (
        ProgramPhase("GGrrr", 20, 5, 40),
        ProgramPhase("yyrrr", 3, 3, 3),
        ProgramPhase("rrGGr", 9, 9, 9),
        ProgramPhase("rryrr", 3, 3, 3),
    ),
)


def events(states, end_s=100.0, begin_s=0.0, detections=(), definitions=(FIXED, ACTUATED), zero=MORNING, **signal):
    """The events of signal A: (second, code, parameter); and its notes. `states`: (second, state)."""
    shown = tuple(ShownState(*state) for state in states)
    period = AnalysisPeriod(begin_s, end_s, zero, (SignalHistory("A", shown, **signal),), tuple(detections))
    (own,) = signal_events(period, {"A": PHASES}, DETECTORS, {"A": definitions})
    return [(event.time_ms / 1000, event.code, event.parameter) for event in own.events], own.notes


def of(found, *codes):
    return [event for event in found if event[1] in codes]


times = st.integers(0, 400).map(lambda tenths: tenths / 10)
changes = st.lists(times, max_size=25, unique=True).map(sorted)


@st.composite
def periods(draw):
    """Any period of signal A, also of lights that no street shows."""
    at = draw(changes)
    states = [ShownState(t, "".join(draw(st.lists(st.sampled_from("rygGo"), min_size=5, max_size=5)))) for t in at]
    modes = [ModeChange(t, draw(st.sampled_from(MODES))) for t in draw(changes)]
    programs = [ProgramChange(t, draw(st.sampled_from(("day", "act", "other", "off", None)))) for t in draw(changes)]
    ends = {t: draw(st.sampled_from(CAUSES)) for t in at if draw(st.booleans())}
    detections = [
        Detection(name, t, k % 2 == 0)
        for name in (*(detector.id for detector in DETECTORS), "another")
        for k, t in enumerate(draw(changes))
    ]
    signal = SignalHistory("A", tuple(states), tuple(modes), tuple(programs), ends)
    begin_s = draw(st.sampled_from((0.0, 0.0, 10.0)))
    return AnalysisPeriod(begin_s, draw(st.sampled_from((10.0, 40.1))), MORNING, (signal,), tuple(detections))


PAIRS = {1: 7, 8: 9, 10: 11, 21: 22, 43: 44, 82: 81, 176: 177}


def made(period):
    (own,) = signal_events(period, {"A": PHASES}, DETECTORS, {"A": (FIXED, ACTUATED)})
    return own.events


def every_begin_has_its_end_and_every_end_its_begin(period, events):
    for begin, end in PAIRS.items():
        for parameter in {event.parameter for event in events}:
            codes = [event.code for event in events if event.code in (begin, end) and event.parameter == parameter]
            # what begins before the period ends in it, and what begins in it may end after it
            whole = codes[1:] if codes[:1] == [end] and period.begin_s > 0 else codes
            assert whole == [begin, end] * (len(whole) // 2) + [begin] * (len(whole) % 2), (begin, parameter)


def dont_walk_follows_a_change_interval(period, events):
    codes = [event.code for event in events if event.code in (21, 22, 23)]
    assert all(before == 22 for before, code in pairwise(codes) if code == 23)
    assert codes[:1] != [23] or period.begin_s > 0


def events_are_in_order_and_inside_the_period(period, events):
    assert list(events) == sorted(events)
    assert all(period.begin_s * 1000 <= event.time_ms < period.end_s * 1000 for event in events)
    assert all(0 <= event.parameter <= 255 for event in events)


def greens_yellows_and_terminations_are_as_many_as_shown(period, events):
    count = Counter((event.code, event.parameter) for event in events)
    (signal,) = period.signals
    for phase in PHASES.phases:
        greens = [any(shown.state[link] in "gG" for link in phase.links) for shown in signal.states]
        begins = [shown.begin_s for k, shown in enumerate(signal.states) if greens[k] and (k == 0 or not greens[k - 1])]
        ends = [shown.begin_s for k, shown in enumerate(signal.states) if k and greens[k - 1] and not greens[k]]
        inside = [[t for t in moments if period.begin_s <= t < period.end_s] for moments in (begins, ends)]
        assert [count[code, phase.number] for code in (1, 7)] == [len(moments) for moments in inside]
        assert sum(count[code, phase.number] for code in (4, 5, 6)) <= len(inside[1])
        stated = [time_s for time_s, cause in signal.green_ends.items() if cause == "gap-out"]
        runs_actuated = any(change.program == "act" for change in signal.programs)
        assert runs_actuated or count[Code.PHASE_GAP_OUT, phase.number] <= len(stated)


def cutting_a_period_in_two_loses_and_invents_nothing(period, events):
    middle_s = (period.begin_s + period.end_s) / 2
    assert made(replace(period, end_s=middle_s)) + made(replace(period, begin_s=middle_s)) == events


@given(periods())
def test_events_of_any_period_keep_every_rule(period):
    events = made(period)
    every_begin_has_its_end_and_every_end_its_begin(period, events)
    dont_walk_follows_a_change_interval(period, events)
    events_are_in_order_and_inside_the_period(period, events)
    greens_yellows_and_terminations_are_as_many_as_shown(period, events)
    cutting_a_period_in_two_loses_and_invents_nothing(period, events)


CYCLE = [(0, "GGrrr"), (30, "yyrrr"), (33, "rrrrr"), (35, "rrGGr"), (65, "rryrr"), (68, "GGrrr")]
DAY = (ProgramChange(0, "day"),)


def test_a_cycle_of_a_plan():
    found, notes = events(CYCLE, programs=DAY)
    assert of(found, 1, 7, 8, 9, 10, 11) == [
        (0, 1, 2), (30, 7, 2), (30, 8, 2), (33, 9, 2), (33, 10, 2), (35, 1, 4), (35, 11, 2),
        (65, 7, 4), (65, 8, 4), (68, 1, 2), (68, 9, 4), (68, 10, 4), (68.001, 11, 4),
    ]  # fmt: skip
    assert of(found, 4, 5, 6) == [(30, 6, 2), (65, 6, 4)]
    assert of(found, 21, 22, 23) == [(35, 21, 4), (65, 22, 4), (65, 23, 4)]
    assert notes == ()


def test_a_crossing_with_yellow_has_a_change_interval():
    found, _ = events([(0, "rrrGr"), (10, "rrryr"), (16, "rrrrr")])
    assert of(found, 21, 22, 23) == [(0, 21, 4), (10, 22, 4), (16, 23, 4)]


ACTED = [
    (0, "rryrr"),
    (3, "GGrrr"),
    (23, "yyrrr"),
    (26, "rrGGr"),
    (35, "rryrr"),
    (38, "GGrrr"),
    (78, "yyrrr"),
    (81, "rrGGr"),
]


ACTS = (ProgramChange(0, "act"),)


@pytest.mark.parametrize(
    ("states", "signal", "ends"),
    [
        (ACTED, {}, [(23, 4, 2), (35, 6, 4), (78, 5, 2)]),
        ([(0, "GGrrr"), (23, "yyrrr")], {}, []),
        ([(0, "rryrr"), (3, "GGrrr"), (6, "yyrrr")], {}, []),
        ([(0, "rryrr"), (3, "GGrrr"), (23, "rrGGr")], {}, []),
        (ACTED[:3], {"programs": (ProgramChange(0, None), ProgramChange(10, "act"))}, []),
        (ACTED, {"definitions": [Program("act", "actuated", 0, ACTUATED.phases, True)]}, []),
        (ACTED, {"definitions": []}, []),
        (ACTED, {"definitions": [Program("act", "delay_based", 0, ACTUATED.phases)]}, []),
    ],
    ids=["bounds", "began before", "too short", "another phase", "switched", "coordinated", "unknown", "other type"],
)
def test_only_an_actuated_program_gaps_out_between_its_bounds(states, signal, ends):
    found, _ = events(states, **{"programs": ACTS} | signal)
    assert of(found, 4, 5, 6) == ends


@pytest.mark.parametrize(
    ("signal", "code"),
    [
        ({"modes": (ModeChange(0, "policy"),)}, [6]),
        ({"modes": (ModeChange(0, "hold"),)}, [6]),
        ({"modes": (ModeChange(0, "fallback"),), "programs": (ProgramChange(0, None),)}, [6]),
        ({"modes": (ModeChange(0, "recovering"),), "programs": DAY}, [6]),
        ({"modes": (ModeChange(0, "lost"),), "programs": DAY}, []),
        ({"programs": (ProgramChange(0, "act"), ProgramChange(30, "day"))}, [6]),
        ({"modes": (ModeChange(0, "policy"),), "green_ends": {30: "max-out"}}, [5]),
        ({"green_ends": {30: "gap-out"}}, [4]),
        ({}, []),
    ],
)
def test_a_termination_says_what_ended_the_green(signal, code):
    found, _ = events(CYCLE[:2], **signal)
    assert of(found, 4, 5, 6) == [(30, c, 2) for c in code]


def test_a_special_function_is_on_while_a_policy_drives():
    modes = (ModeChange(0, "fixed"), ModeChange(10, "policy"), ModeChange(20, "hold"), ModeChange(25, "policy"))
    found, _ = events(CYCLE, modes=(*modes, ModeChange(40, "fallback")))
    assert of(found, 176, 177) == [(10, 176, 1), (20, 177, 1), (25, 176, 1), (40, 177, 1)]


def test_patterns_are_programs_free_or_flash():
    long = Program("long", "static", 300, tuple(ProgramPhase(p.state, 100, 100, 100) for p in FIXED.phases))
    changes = (ProgramChange(0, "day"), ProgramChange(10, None), ProgramChange(20, "long"), ProgramChange(30, "off"))
    found, _ = events(CYCLE, programs=(*changes, ProgramChange(40, "act")), definitions=(FIXED, ACTUATED, long))
    assert of(found, 131) == [(0, 131, 2), (10, 131, 254), (20, 131, 3), (30, 131, 255), (40, 131, 1)]
    assert of(found, 132, 156) == [
        (0, 132, 120),
        (10, 132, 0),
        (20, 132, 255),
        (20, 156, 145),
        (30, 132, 0),
        (40, 132, 0),
    ]
    assert of(found, 133) == [(0, 133, 5), (10, 133, 0), (20, 133, 255), (30, 133, 0), (40, 133, 0)]


def test_flash_and_dark_are_a_flash_status_and_end_phases():
    found, _ = events(
        [(0, "GGrrr"), (10, "ooooo"), (20, "OOOOO"), (30, "rrrrr")],
        programs=DAY,
        modes=(ModeChange(30, "off"), ModeChange(40, "fixed")),
    )
    assert of(found, 173) == [(10, 173, 3), (20, 173, 1), (40, 173, 2)]
    assert of(found, *range(1, 12)) == [(0, 1, 2), (10, 7, 2)]


def test_a_call_waits_for_green_or_for_free_detectors():
    on = [
        ("presence:b_0", 5, True),
        ("presence:b_0", 8, False),
        ("presence:b_0", 20, True),
        ("presence:b_0", 40, False),
    ]
    on += [
        ("presence:a_0", 60, True),
        ("presence:a_0", 64, False),
        ("advance:a_0", 50, True),
        ("advance:a_0", 51, False),
    ]
    found, _ = events(CYCLE, detections=[Detection(*detection) for detection in on])
    assert of(found, 43, 44) == [
        (5, 43, 4),
        (8, 44, 4),
        (20, 43, 4),
        (35, 44, 4),
        (60, 43, 2),
        (64, 44, 2),
    ]
    assert of(found, 81, 82)[:2] == [(5, 82, 3), (8, 81, 3)] and len(of(found, 81, 82)) == 8


def test_a_vehicle_left_over_at_the_end_of_green_calls_again():
    found, _ = events(CYCLE, detections=[Detection("presence:a_0", 25, True)])
    assert of(found, 43, 44) == [(30, 43, 2), (68, 44, 2)]


def test_long_clearances_and_greens_without_yellow_are_named():
    _, notes = events([(0, "GGrrr"), (20, "yyrrr"), (32, "rrrrr"), (50, "GGrrr"), (60, "rrGGr")], programs=DAY)
    assert [note.partition(":")[0] for note in notes] == ["phase 2"] * 3
    assert "yellow of 12 s at 2026-03-02 07:00:20 (1 in all)" in notes[0]
    assert "red clearance of 18 s at 2026-03-02 07:00:32 (1 in all)" in notes[1]
    assert "without yellow at 2026-03-02 07:01:00 (1 in all)" in notes[2]
    assert events(CYCLE, programs=DAY)[1] == ()


@pytest.mark.parametrize(
    ("hour", "end_s", "count"), [(7, 180.0, 0), (7, 190.0, 1), (2, 600.0, 0), (21, 600.0, 1), (5, 3900.0, 1)]
)
def test_two_minutes_of_silence_by_day_are_named(hour, end_s, count):
    zero = MORNING.replace(hour=hour)
    _, notes = events(
        [*CYCLE[:-1], (68, "rrrrr"), (69, "GGrrr")], end_s=end_s, zero=zero, modes=(ModeChange(0, "lost"),)
    )
    assert len(notes) == count and all("in control mode lost" in note and "120 s by day" in note for note in notes)
