"""Detectors: where they stand, what their file says, and that SUMO loads it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from city.errors import InputError
from city.lane_graph import LaneGraph
from city.movements import Movement
from city.network import SignalNetwork, StreetNetwork
from controller.recording.detectors import ADVANCE, FUNCTIONS, PRESENCE, YELLOW_RED
from controller.sumo.libsumo_connection import start_libsumo
from greenserve.__main__ import main
from records.atspm import detectors
from records.atspm.detectors import PlacedDetector
from tests.conftest import GRID
from tests.error_lines import refused
from tests.networks import netgenerate


def street(tmp_path, lengths, connections=(), mps=13.89):
    """A street with signal J at the end of lane `a_0`. `connections`: of lanes behind it, without a signal."""
    graph = LaneGraph(dict(lengths), dict.fromkeys(lengths, mps))
    for before, after in connections:
        graph.add_connection(before, after, is_signalled=False)
    movements = ((Movement("a", "s", 0.0),), (Movement("a", "", 0.0, ("a",)),))
    links = ((("a_0", "out_0"),), ((":w_0", ":c_0"),))
    signal = SignalNetwork("J", links, (), (), "0", None, None, None, lane_graph=graph, movements=movements)
    return StreetNetwork(tmp_path / "x.net.xml", {"J": signal}, graph.length_m)


def placed_before_a(tmp_path, lengths, connections=(), mps=13.89):
    placed = detectors.place(street(tmp_path, lengths, connections, mps))
    return [(detector.function, detector.lane, detector.position_m, detector.length_m) for detector in placed]


def test_a_long_lane_has_three_detectors(tmp_path):
    assert placed_before_a(tmp_path, {"a_0": 200.0}) == [
        (ADVANCE, "a_0", 130.55, 0), (PRESENCE, "a_0", 193, 6), (YELLOW_RED, "a_0", 199.5, 0),
    ]  # fmt: skip


def test_a_lane_shorter_than_the_setback_has_its_advance_detector_at_its_begin(tmp_path):
    assert placed_before_a(tmp_path, {"a_0": 50.0})[0] == (ADVANCE, "a_0", 0.1, 0)
    assert [function for function, *_ in placed_before_a(tmp_path, {"a_0": 25.0})] == [PRESENCE, YELLOW_RED]


def test_advance_detectors_move_to_the_lanes_behind_that_lead_nowhere_else(tmp_path):
    lengths = {"a_0": 10.0, "b_0": 100.0, "c_0": 100.0, "d_0": 100.0}
    behind = [("b_0", "a_0"), ("c_0", "a_0")]
    placed = detectors.place(street(tmp_path, lengths, behind))
    assert {(detector.lane, detector.position_m) for detector in placed if detector.function == ADVANCE} == {
        ("b_0", 40.55),
        ("c_0", 40.55),
    }
    assert {detector.stop_lane for detector in placed} == {"a_0"}
    assert ADVANCE not in {function for function, *_ in placed_before_a(tmp_path, lengths, [*behind, ("b_0", "d_0")])}


def test_very_short_lanes_have_fewer_detectors(tmp_path):
    assert placed_before_a(tmp_path, {"a_0": 4.0}) == [(PRESENCE, "a_0", 0.1, 2.9), (YELLOW_RED, "a_0", 3.5, 0)]
    assert [function for function, *_ in placed_before_a(tmp_path, {"a_0": 1.0})] == [YELLOW_RED]
    assert placed_before_a(tmp_path, {"a_0": 0.2}) == []


@given(st.lists(st.floats(0.1, 300), min_size=1, max_size=4), st.floats(2, 60))
def test_no_detector_stands_outside_of_its_lane(tmp_path_factory, lengths, mps):
    names = [f"{name}_0" for name in "abcd"[: len(lengths)]]
    own = dict(zip(names, (round(length, 2) for length in lengths), strict=True))
    placed = detectors.place(
        street(tmp_path_factory.getbasetemp(), own, list(zip(names[1:], names, strict=False)), mps)
    )
    assert all(
        detector.position_m >= 0 and detector.position_m + detector.length_m <= own[detector.lane]
        for detector in placed
    )
    assert len({detector.id for detector in placed}) == len(placed)
    assert sum(detector.function == ADVANCE for detector in placed) <= 1


@given(
    st.lists(
        st.builds(
            PlacedDetector,
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=150),
            st.text('ab:<>&" é_', min_size=1, max_size=150),
            st.sampled_from(FUNCTIONS),
            st.text("xyz_", min_size=1),
            st.text("ab:<>&'_", min_size=1),
            st.integers(0, 10**6).map(lambda cm: cm / 100),
            st.integers(0, 600).map(lambda cm: cm / 100),
        )
    )
)
def test_a_file_says_what_its_detectors_mean(tmp_path_factory, placed):
    path = tmp_path_factory.getbasetemp() / "detectors.add.xml"
    detectors.write(path, placed)
    assert detectors.read(path) == placed


def test_other_detectors_are_left_out_and_a_changed_one_is_refused(tmp_path):
    path = tmp_path / "detectors.add.xml"
    detectors.write(path, [PlacedDetector("x", "J", ADVANCE, "a_0", "a_0", 1, 0)])
    text = path.read_text()
    path.write_text(text.replace("</additional>", '<inductionLoop id="own" lane="a_0" pos="1" file="x"/></additional>'))
    assert [detector.id for detector in detectors.read(path)] == ["x"]
    for old, new in (
        ("Advance", "Behind"),
        ('pos="1.00"', 'pos="near"'),
        ('lane="a_0"', ""),
        ("greenserve.lane", "lane"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(
            InputError, match=r"inductionLoop x is malformed .*; write the file again with greenserve detectors"
        ):
            detectors.read(path)


def loaded(net, placed, folder):
    """(id, lane, position) of detectors as SUMO has them, after it has loaded their file and run for 3 s."""
    path = folder / "detectors.add.xml"
    detectors.write(path, placed)
    options = ["--net-file", str(net), "--additional-files", str(path), "--no-warnings", "--no-step-log"]
    with contextlib.closing(start_libsumo(options)) as connection:
        loops = connection.api.inductionloop
        connection.api.simulationStep(3.0)
        return sorted((name, loops.getLaneID(name), round(loops.getPosition(name), 2)) for name in loops.getIDList())


OPTIONS = {
    "random": "--rand --rand.iterations 25 --seed 4 --rand.min-distance 12 --default.lanenumber 2",
    "crossings": "--grid --grid.number 2 --grid.length 60 --sidewalks.guess --crossings.guess",
    "without internal links": "--grid --grid.number 2 --grid.length 15 --no-internal-links",
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_sumo_loads_the_detectors_of_drawn_networks(tmp_path, kind):
    net = netgenerate(tmp_path / "x.net.xml", *OPTIONS[kind].split())
    read = network.read(net)
    placed = detectors.place(read)
    assert {detector.signal for detector in placed} == set(read.signals)
    assert not any(detector.lane.startswith(":") for detector in placed)
    assert loaded(net, placed, tmp_path) == sorted((each.id, each.lane, each.position_m) for each in placed)


def test_the_command_writes_the_file_and_says_what_is_in_it(tmp_path, capsys):
    out = tmp_path / "detectors.add.xml"
    assert main(["detectors", "--city", str(GRID / "city.toml"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(
        f"wrote {out}: 72 Advance, 72 Presence, 72 Yellow_Red, on 72 lanes of 9 signals\n"
    )
    assert len(detectors.read(out)) == 216


@pytest.mark.parametrize(
    ("text", "out", "message"),
    [
        ("[network]\nnet = 'none.net.xml'\n", "x.add.xml", "none.net.xml"),
        (f"[network]\nnet = '{GRID}/grid.net.xml'\n", "missing/x.add.xml", "there is no folder"),
        ("[network]\nnet = 'street.net.xml'\n", "x.add.xml", "has no signal with a vehicle lane"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, capsys, text, out, message):
    netgenerate(tmp_path / "street.net.xml", "--grid", "--grid.number", "2", "--default-junction-type", "priority")
    (tmp_path / "city.toml").write_text(text)
    refused(capsys, main(["detectors", "--city", str(tmp_path / "city.toml"), "--out", str(tmp_path / out)]), message)
