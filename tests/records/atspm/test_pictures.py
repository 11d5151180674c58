"""Pictures of signal events: where marks and lines lie, and what any period gives."""

import re
import xml.etree.ElementTree as ET
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city import network
from controller.recording.detectors import ADVANCE, PRESENCE
from records.atspm import corridor, events
from records.atspm.analysis_period import (
    MAX_OUT,
    MODES,
    POLICY,
    AnalysisPeriod,
    Detection,
    LaneReading,
    ModeChange,
    ShownState,
    SignalHistory,
    SignalReadings,
    VehicleReading,
)
from records.atspm.corridor import Corridor, StopLine
from records.atspm.detectors import PlacedDetector
from records.atspm.from_record import ObservedSignals
from records.atspm.pictures import coordination, page, phase_pictures, time_space
from records.atspm.pictures.canvas import (
    BLACK,
    BLUE,
    GREEN,
    LIGHT_BLUE,
    ORANGE,
    PINK,
    RED,
    YELLOW,
    Axis,
    Canvas,
    Series,
    number_axis,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView, views
from signals import phase_numbers
from signals.phase_numbers import NemaPhase, PhaseNumbers

ZERO = datetime(2026, 3, 2, 7)
PHASES = PhaseNumbers(
    "A", (NemaPhase(2, (0, 1), (), "a north through"), NemaPhase(4, (2,), (3,), "b east through")), {"a_0": 2, "b_0": 4}
)
DETECTORS = [
    PlacedDetector("advance:a_0", "A", ADVANCE, "a_0", "a_0", 10, 0),
    PlacedDetector("presence:a_0", "A", PRESENCE, "a_0", "a_0", 93, 6),
]
STATES = [(0, "GGrr"), (20, "yyrr"), (24, "rrGG"), (50, "rryr"), (54, "GGrr"), (80, "yyrr"), (84, "rrrr"), (86, "rrGr")]
"""Phase 2 has one complete cycle: red at 24 s, green at 54 s, yellow at 80 s, red at 84 s."""
SVG = "{http://www.w3.org/2000/svg}"
CORRIDOR = Corridor((StopLine("A", 2, 100.0, 10.0), StopLine("B", 4, 300.0, 20.0)), {"a_0": 0.0, "b_0": 100.0})


def view(states=STATES, end_s=100.0, detections=(), readings=None, begin_s=0.0, **signal) -> SignalView:
    shown = tuple(ShownState(*state) for state in states)
    period = AnalysisPeriod(begin_s, end_s, ZERO, (SignalHistory("A", shown, **signal),), tuple(detections))
    (made,) = views(
        ObservedSignals(
            None,
            period,
            {"A": PHASES},
            readings={"A": readings or SignalReadings()},
            detectors=DETECTORS if detections else (),
        )
    )
    return made


class Drawing:
    """What an SVG draws, in the units of its axes."""

    def __init__(self, svg: str, x_end=100.0, y_end=1.0) -> None:
        self.root = ET.fromstring(svg)
        frame = next(each for each in self.root.iter(f"{SVG}rect") if each.get("class") == "axes")
        self.left, self.top, self.width, self.height = (float(frame.get(key)) for key in ("x", "y", "width", "height"))
        self.x_end, self.y_end = x_end, y_end

    def paths(self, colour=None):
        return [
            each
            for each in self.root.iter(f"{SVG}path")
            if each.get("class") == "data" and colour in (None, each.get("stroke"), each.get("fill"))
        ]

    @staticmethod
    def places(paths):
        """Absolute places of paths, in px."""
        found = [re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path.get("d")) for path in paths]
        return [(float(x), float(y)) for own in found for x, y in own]

    def points_of(self, paths):
        """Absolute places of paths, in units of the axes."""
        return [
            ((x - self.left) / self.width * self.x_end, (self.top + self.height - y) / self.height * self.y_end)
            for x, y in self.places(paths)
        ]

    def points(self, colour):
        return self.points_of(self.paths(colour))

    @property
    def text(self):
        return " ".join(each.text or "" for each in self.root.iter(f"{SVG}text"))

    def is_inside(self):
        """True if marks lie inside of the axes, and all other data in elements that cut it there."""
        frame = {"x": self.left - 2, "y": self.top - 2, "width": self.width + 4, "height": self.height + 4}
        (data,) = self.root.iter(f"{SVG}g")
        for element in data.findall(f"{SVG}svg"):
            assert {key: float(element.get(key)) for key in frame} == frame and element.get("overflow") == "hidden"
            assert element.get("viewBox").split() == [element.get(key) for key in frame]
            data.remove(element)
        return all(
            self.left - 0.06 <= x <= self.left + self.width + 0.06
            and self.top - 0.06 <= y <= self.top + self.height + 0.06
            for x, y in self.places(self.paths())
        )


def near(points):
    """Coordinates are rounded to 0.1 px."""
    return [pytest.approx(point, abs=0.1) for point in points]


def test_dot_lies_at_its_time_and_its_time_since_red():
    # all arrivals count, also the first four, which are before the only complete cycle
    times_s = (1.0, 5.0, 19.999, 20.0, 30.0, 60.0, 90.0)
    detections = [Detection("advance:a_0", time_s, is_on) for time_s in times_s for is_on in (True, False)]
    # the cycle of 60 s has an axis up to 80 s
    drawing = Drawing(coordination.draw(view(detections=detections), 2), y_end=80.0)
    assert drawing.points(BLUE) == near([(30.0, 6.0), (60.0, 36.0)])
    assert "Arrivals on Green: 57%" in drawing.text


def test_diagrams_that_are_compared_have_one_axis():
    longer = [*STATES, (150, "GGrr"), (170, "yyrr"), (174, "rrrr"), (190, "GGrr")]
    views = [view(end_s=200.0), view(longer, end_s=200.0)]
    short, long = (Drawing(coordination.draw(each, 2, views), x_end=200.0, y_end=100.0) for each in views)
    assert short.points(RED) == [] and near([(84.0, 60.0), (174.0, 90.0)]) == long.points(RED)
    assert [each.get("y") for each in short.root.iter(f"{SVG}text")][-3:] == [
        each.get("y") for each in long.root.iter(f"{SVG}text")
    ][-3:]


def test_lines_of_the_coordination_diagram_lie_at_the_changes_of_colour():
    states = [*STATES, (110, "yyrr"), (114, "rrrr"), (116, "GGrr"), (120, "yyrr"), (124, "rrrr")]
    drawing = Drawing(coordination.draw(view(states, end_s=200.0), 2), x_end=200.0, y_end=80.0)
    assert drawing.points(GREEN) == near([(54, 30), (116, 2)])
    assert drawing.points(YELLOW) == near([(80, 56), (120, 6)])
    assert drawing.points(RED) == near([(84, 60), (124, 10)])
    assert "no advance detectors" in drawing.text


def test_terminations_lie_in_the_row_of_their_phase():
    drawing = Drawing(phase_pictures.termination(view(modes=(ModeChange(0.0, POLICY),))), y_end=2.0)
    # force-offs are drawn 6 px above the middle of a row of 34 px
    above = 6 / 34
    assert drawing.points(BLUE) == near([(20, 0.5 + above), (50, 1.5 + above), (80, 0.5 + above)])
    assert drawing.points(RED) == near([(24, 1.5 - above)])  # the walk of phase 4
    assert "Force Offs" in drawing.text and "Gap Outs" not in drawing.text
    unknown = Drawing(phase_pictures.termination(view(green_ends={20.0: MAX_OUT})), y_end=2.0)
    assert unknown.points(PINK) == near([(20, 0.5)]) and "Unknown Terminations" in unknown.text


def test_split_is_green_yellow_and_red_clearance():
    drawing = Drawing(phase_pictures.split_monitor(view(modes=(ModeChange(0.0, POLICY),)), 2), y_end=40.0)
    # 0 to 24 s without an all-red, and 54 s to 86 s with one
    assert drawing.points(BLUE) == near([(0, 24), (54, 32)])
    assert drawing.points(BLACK) == near([(0, 28), (100, 28)])
    ((x, y),) = Drawing(phase_pictures.split_monitor(view(), 4), y_end=40.0).points(ORANGE)
    assert x == pytest.approx(24, abs=0.2) and y > 30, "a split with a walk is marked"


@pytest.mark.parametrize(
    ("states", "splits"),
    [
        ([(0, "GGrr"), (20, "yyrr"), (22, "GGrr"), (40, "yyrr")], [(0, 20, None, 20)]),
        ([(0, "GGrr"), (20, "yyrr"), (24, "rrGr"), (50, "yyrr"), (52, "rrrr"), (54, "GGrr")], [(0, 20, 24, 24)]),
        ([(0, "GGrr"), (20, "yyrr"), (24, "rrrr"), (27, "rrGr"), (50, "GGrr")], [(0, 20, 24, 27)]),
        ([(0, "GGrr"), (20, "yyrr"), (24, "rrrr"), (27, "GGrr"), (40, "rrGr")], [(0, 20, 24, 24), (27, 40, 40, 40)]),
    ],
    ids=["green again", "yellow in red", "all-red", "own green after it"],
)
def test_split_ends_with_its_red_clearance_or_the_next_green(states, splits):
    found = view(states).splits(2)
    assert [(each.begin_s, each.green_end_s, each.red_s, each.end_s) for each in found] == splits


def test_split_fails_if_both_occupancies_reach_the_limit():
    on = [Detection("presence:a_0", 55.0, True), Detection("presence:a_0", 88.0, False)]
    made = view(detections=on)
    assert phase_pictures.occupancy_ratios(made, 2)[1:] == [phase_pictures.OccupancyRatios(84.0, 25 / 26, 4 / 5)]
    drawing = Drawing(phase_pictures.split_failure(made, 2), y_end=104.0)
    assert drawing.points(YELLOW) == near([(84, 0), (84, 100)])
    assert "1 of 2" in drawing.text
    cleared = view(detections=[on[0], Detection("presence:a_0", 86.0, False)])
    assert not Drawing(phase_pictures.split_failure(cleared, 2)).paths(YELLOW)


def test_split_fails_at_the_very_share_whatever_the_second():
    for begin_s in (0.0, 1000.1, 86_400.7):
        states = [(round(begin_s + second, 3), state) for second, state in STATES]
        # 79 % of the green of 26 s and of 5 s of red, to the millisecond
        times_s = [(55.0, 75.54), (84.0, 87.95)]
        on = [
            Detection("presence:a_0", round(begin_s + time_s, 3), k == 0)
            for pair in times_s for k, time_s in enumerate(pair)
        ]  # fmt: skip
        made = view(states, end_s=begin_s + 100, begin_s=begin_s, detections=on)
        assert [each.is_failure for each in phase_pictures.occupancy_ratios(made, 2)] == [False, True]


def test_split_failure_needs_no_red_before_its_green():
    """The first green of a period counts, as for atspm; one whose 5 s of red are not over does not."""
    on = [Detection("presence:a_0", time_s, is_on) for time_s, is_on in ((0.0, True), (30.0, False))]
    assert phase_pictures.occupancy_ratios(view(STATES[:4], end_s=29.5, detections=on), 2) == [
        phase_pictures.OccupancyRatios(24.0, 1.0, 1.0)
    ]
    assert phase_pictures.occupancy_ratios(view(STATES[:4], end_s=29.0, detections=on), 2) == []


def lane_readings(*halting, passed=None, step_s=20.0):
    return SignalReadings(
        {2: [LaneReading(k * step_s, own, own, passed and passed[k]) for k, own in enumerate(halting)]}
    )


def test_queue_keeps_its_length_until_the_next_reading():
    drawing = Drawing(phase_pictures.queue_length(view(readings=lane_readings(0, 3, 1)), 2), y_end=4.0)
    assert drawing.points(LIGHT_BLUE) == near([(0, 0), (20, 0), (20, 3), (40, 3), (40, 1), (100, 1)])


def test_delay_is_halting_vehicles_times_time():
    made = view(readings=lane_readings(0, 3, 1, 0, 0, 0, passed=(0, 0, 2, 4, 4, 4)))
    # bins of one minute: 3 vehicles for 20 s and 1 for 20 s
    assert phase_pictures.delays(made, 2) == [(0.0, 80.0), (60.0, 0.0)]
    drawing = Drawing(phase_pictures.approach_delay(made, 2))
    assert "Average Delay Per Vehicle: 20 s" in drawing.text and "Total Delay: 1.3 min" in drawing.text
    assert drawing.paths(BLUE) and drawing.paths(RED), "per vehicle and per hour"


def test_volume_is_counted_per_hour_and_bin():
    made = view(readings=lane_readings(0, 0, 0, 0, 0, 0, passed=(0, 1, 2, 3, 3, 3)))
    assert made.volumes(2) == [(0.0, 180.0), (60.0, 0.0)]
    drawing = Drawing(phase_pictures.approach_volume(made, 2), y_end=200.0)
    assert drawing.points(RED) == near([(0, 180), (60, 180), (60, 0), (100, 0)])


def test_vehicles_that_leave_and_enter_are_not_joined():
    at = {
        0.0: [VehicleReading(0.0, "a_0", 90.0, 10.0), VehicleReading(0.0, "a_0", 50.0, 10.0)],
        5.0: [VehicleReading(5.0, "a_0", 99.0, 10.0), VehicleReading(5.0, "a_0", 5.0, 10.0)],
    }
    readings = SignalReadings(vehicles=[*at[0.0], *at[5.0]], vehicle_times_s=[0.0, 5.0])
    assert sorted(time_space.trajectories(CORRIDOR, [readings])) == [
        ((0.0, 50.0), (5.0, 99.0)),
        ((0.0, 90.0), (5.0, 140.0)),
    ]


def test_green_band_arrives_at_the_speed_limit():
    drawing = Drawing(time_space.draw({"A": view(), "B": view()}, CORRIDOR), y_end=330.0)
    (band,) = (path for path in drawing.paths(GREEN) if path.get("fill") == GREEN)
    # 200 m at 20 m/s
    assert drawing.points_of([band]) == near(
        [(0, 100), (20, 100), (30, 300), (10, 300), (54, 100), (80, 100), (90, 300), (64, 300)]
    )


def test_time_space_diagram_shows_the_time_with_most_arrivals_or_single_vehicles():
    peak = [Detection("advance:a_0", 2000.0 + k, is_on) for k in range(50) for is_on in (True, False)]
    early = [Detection("advance:a_0", 10.0, True), Detection("advance:a_0", 11.0, False)]
    vehicles = [VehicleReading(2040.0 + 5 * k, "a_0", 20.0 + 10 * k, 2.0) for k in range(2)]
    single = SignalReadings(vehicles=vehicles, vehicle_times_s=[2040.0, 2045.0])
    for shown, hidden, readings, detections in (
        ("07:02", "07:32", None, early), ("07:32", "07:02", None, peak), ("07:34", "07:02", single, early),
    ):  # fmt: skip
        made = view(end_s=3600.0, detections=detections, readings=readings)
        others = {"A": made, "B": view(end_s=3600.0, detections=detections)}
        drawing = Drawing(time_space.draw(others, CORRIDOR), x_end=900.0, y_end=330.0)
        assert shown in drawing.text and hidden not in drawing.text
        assert drawing.points(BLACK) == near([(0, 20), (5, 30)] if readings else [])


def test_signal_lines_have_the_colours_of_their_phases():
    assert time_space.colours(view(), 2, 0.0, 100.0) == [
        (0.0, 20.0, events.GREEN),
        (20.0, 24.0, events.YELLOW),
        (24.0, 54.0, events.RED),
        (54.0, 80.0, events.GREEN),
        (80.0, 84.0, events.YELLOW),
        (84.0, 100.0, events.RED),
    ]
    # a window begins with the colour before it
    assert time_space.colours(view(), 2, 30.0, 60.0) == [(30.0, 54.0, events.RED), (54.0, 60.0, events.GREEN)]


def test_corridor_of_the_sample_city(grid_street, grid_city):
    phases = phase_numbers.of_city(grid_city, grid_street)
    there, back = corridor.find(grid_street, phases, set(phases))
    assert there.signals == ("A0", "A1", "A2") and back.signals == ("A2", "A1", "A0")
    assert [stop.phase for stop in there.stop_lines] == [2, 2, 2] and [stop.phase for stop in back.stop_lines] == [
        6,
        6,
        6,
    ]
    lanes = ("bottom0A0.70.00_0", "A0A1_0", "A0A1.70.00_0", "A1A2_0", "A1A2.70.00_0")
    lengths = [grid_street.lane_length_m[lane] for lane in lanes]
    assert [stop.at_m for stop in there.stop_lines] == pytest.approx([sum(lengths[:k]) for k in (1, 3, 5)])


def test_corridor_has_only_the_given_signals(grid_street, grid_city):
    phases = phase_numbers.of_city(grid_city, grid_street)
    assert {each.signals for each in corridor.find(grid_street, phases, {"A1", "A2", "C0"})} == {
        ("A1", "A2"),
        ("A2", "A1"),
    }
    assert corridor.find(grid_street, phases, {"A0", "C2"}) == []


def test_corridor_of_a_real_street_passes_junctions_without_signals(shared):
    street = network.read(shared / "scenarios" / "ingolstadt7" / "ingolstadt7.net.xml")
    phases = {name: phase_numbers.number_phases(signal) for name, signal in street.signals.items()}
    there, back = corridor.find(street, phases, set(phases))
    assert set(there.signals) == set(street.signals) and back.signals == there.signals[::-1]


def test_nothing_to_draw_is_a_sentence():
    empty = view(states=[(0, "rrrr")])
    pictures = [phase_pictures.termination(empty), time_space.draw({}, None)]
    kinds = (coordination.draw, *phase_pictures.HALF_PICTURES)
    pictures += [draw(empty, 2) for draw in kinds]
    for picture in pictures:
        element = ET.fromstring(picture)
        assert element.tag == "p" and "".join(element.itertext()).endswith(".")


def test_axis_ends_at_a_round_number_above_the_largest_value():
    assert [number_axis("", top).end for top in (0, 1, 46, 60, 97, 1400)] == [1, 1.5, 50, 80, 150, 1500]
    assert [value for value, _ in number_axis("", 2, min_step=1).ticks] == [0, 1, 2, 3]
    assert number_axis("", float("nan")).end == 1


@pytest.mark.parametrize(
    ("begin_s", "end_s", "first", "last"),
    [(0.0, 3600.0, "07:00", "08:00"), (100.0, 130.0, "07:01:40", "07:02:10"), (0.0, 200_000.0, "08:00", "08:00")],
)
def test_ticks_of_time_are_round_times_of_day(begin_s, end_s, first, last):
    ticks = time_axis(AnalysisPeriod(begin_s, end_s, ZERO, ())).ticks
    assert (ticks[0][1], ticks[-1][1]) == (first, last) and len(ticks) <= 16


def test_long_id_and_control_characters_are_escaped():
    name = "<&\"'\x00\x1b\u202e\ud800" + "x" * 150
    made = view()
    hostile = SignalView(made.period, made.own, PHASES, made.events, name=name)
    html = page.page(
        name, [name], [hostile], [Corridor(tuple(StopLine("A", 2, 10.0 * k, 10.0) for k in (1, 2)), {})], [name]
    )
    root = ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0e-\x1f\u202e]", html)
    assert "<script" not in html and not re.search(r"(?:src|href|url\()", html), "the page needs no other file"
    for svg in root.iter(f"{SVG}svg"):
        width = float(svg.get("viewBox").split()[2])
        for text in svg.iter(f"{SVG}text"):
            assert len(text.text or "") * 4 < width


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=6),
    st.sampled_from(["ring", "dot", "square", "diamond", "triangle", "cross"]),
    st.floats(-20, 20),
)
def test_canvas_draws_nothing_outside_of_its_axes(points, shape, dy_px):
    canvas = Canvas("t", "s", Axis(-10.0, 40.0, "x"), Axis(0.0, 7.0, "y"), Axis(0.0, 90.0, "r"))
    canvas.marks(points, Series("marks", BLUE, shape), dy_px)
    canvas.line([*points, (float("nan"), 5.0)], Series("left", RED))
    canvas.line(points, Series("right", RED, is_right=True))
    canvas.polygons([points], Series("area", GREEN, opacity=0.5))
    assert Drawing(svg := canvas.svg()).is_inside() and "nan" not in svg


times = st.integers(-200, 1200).map(float)


@st.composite
def any_views(draw):
    at = sorted(draw(st.sets(times, max_size=12)))
    states = tuple(ShownState(time_s, draw(st.text("rygGoO", min_size=4, max_size=4))) for time_s in at)
    modes = tuple(
        ModeChange(time_s, draw(st.sampled_from(MODES))) for time_s in sorted(draw(st.sets(times, max_size=3)))
    )
    detections = [
        Detection(detector.id, time_s, draw(st.booleans()))
        for detector in DETECTORS
        for time_s in sorted(draw(st.sets(times, max_size=6)))
    ]
    read_s = sorted(draw(st.sets(times, max_size=6)))
    counts = st.integers(0, 50)
    readings = SignalReadings(
        {2: [LaneReading(time_s, draw(counts), draw(counts), draw(st.just(None) | counts)) for time_s in read_s]},
        [VehicleReading(time_s, "a_0", draw(st.floats(0, 500)), draw(st.floats(0, 40))) for time_s in read_s],
        read_s,
    )
    begin_s, end_s = sorted(draw(st.tuples(times, times)))
    period = AnalysisPeriod(begin_s, end_s, ZERO, (SignalHistory("A", states, modes),), tuple(detections))
    name = draw(st.text(max_size=200))
    (made,) = views(ObservedSignals(None, period, {"A": PHASES}, {}, {"A": readings}, {"A": name}, DETECTORS))
    return made


@settings(max_examples=60)
@given(any_views())
def test_no_picture_of_any_period_draws_outside_of_its_axes(made):
    same = Corridor((StopLine("A", 2, 100.0, 10.0), StopLine("A", 4, 300.0, 20.0)), {"a_0": 0.0})
    html = page.page("Pictures", [], [made], [same])
    for svg in [
        each
        for each in ET.fromstring(html.removeprefix("<!DOCTYPE html>\n")).iter(f"{SVG}svg")
        if "role" in each.attrib
    ]:
        assert Drawing(ET.tostring(svg, encoding="unicode")).is_inside()


@pytest.mark.parametrize("draw", phase_pictures.HALF_PICTURES)
def test_a_picture_names_the_movements_of_its_phase(draw):
    detections = [Detection("advance:a_0", time_s, is_on) for time_s in (30.0, 60.0) for is_on in (True, False)]
    readings = SignalReadings(lanes={2: [LaneReading(float(s), 3, 1, s) for s in range(100)]})
    drawn = draw(view(detections=detections, readings=readings), 2)
    assert "hase 2 (a north through)" in drawn, drawn
