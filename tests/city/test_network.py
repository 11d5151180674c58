"""The network reader compared with sumolib on real networks, and with malformed files."""

import gzip
import math
import re

import pytest
import sumolib

from city import config, network
from city.errors import InputError
from city.movements import APPROACH_M, heading_deg
from tests.city.scenarios import SCENARIOS, street
from tests.conftest import GRID
from tests.end_to_end.handmade_streets import netconvert_plain
from tests.networks import netgenerate


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_lanes_and_links_equal_sumolibs(name, request):
    ours = street(name, request)
    theirs = sumolib.net.readNet(str(ours.net_file), withPrograms=True)
    assert set(ours.signals) == {light.getID() for light in theirs.getTrafficLights()}
    for light in theirs.getTrafficLights():
        signal = ours.signals[light.getID()]
        expected = sorted((index, a.getID(), b.getID()) for a, b, index in light.getConnections())
        assert sorted((i, a, b) for i, pairs in enumerate(signal.links) for a, b in pairs) == expected
        for lane in signal.lanes:
            assert ours.lane_length_m[lane] == theirs.getLane(lane).getLength()


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_movements_have_sumolibs_directions(name, request):
    ours = street(name, request)
    theirs = sumolib.net.readNet(str(ours.net_file))
    for signal in ours.signals.values():
        for pairs, movements in zip(signal.links, signal.movements, strict=True):
            for (from_lane, to_lane), movement in zip(pairs, movements, strict=True):
                lane = theirs.getLane(from_lane)
                connection = next(c for c in lane.getOutgoing() if c.getToLane().getID() == to_lane)
                assert (movement.road, movement.turn) == (lane.getEdge().getID(), connection.getDirection())
                (x, y), (end_x, end_y) = lane.getShape()[-2:]
                if math.dist((x, y), (end_x, end_y)) > APPROACH_M:
                    assert movement.heading_deg == pytest.approx(math.degrees(math.atan2(end_x - x, end_y - y)) % 360)


def test_a_crossing_has_the_direction_of_the_road_that_it_crosses(crossroads):
    assert {
        m.heading_deg: set(m.crossed_roads) for of_link in crossroads.movements for m in of_link if m.is_crossing
    } == {0.0: {"NJ", "JN"}, 90.0: {"EJ", "JE"}, 180.0: {"SJ", "JS"}}


@pytest.mark.parametrize(
    ("shape", "at_end", "heading"),
    [
        ([(0, 0), (0, 50)], True, 0), ([(0, 0), (50, 0)], False, 90), ([(0, 0), (0, -50)], True, 180), ([(9, 9)],
        True, 0),
        # the last metre bends
        ([(0, 0), (50, 0), (50, 1)], True, pytest.approx(88.9, abs=0.1)),
        ([(50, 1), (50, 0), (0, 0)], False, pytest.approx(268.9, abs=0.1)),
    ],
)  # fmt: skip
def test_a_heading_is_that_of_the_road_next_to_the_junction(shape, at_end, heading):
    assert heading_deg(shape, at_end) == heading


def grid_with(folder, content, begin_s=0.0):
    """The signals of the sample city with one more additional file."""
    (folder / "own.add.xml").write_text(f"<additional>{content}</additional>")
    return network.read(GRID / "grid.net.xml", [GRID / "fixed_time.add.xml", folder / "own.add.xml"], begin_s).signals


@pytest.mark.parametrize(
    ("inner", "is_coordinated"),
    [
        ('<phase duration="30" state="%s"/>', False),
        ('<phase duration="30" state="%s" latestEnd="20"/>', True),
        ('<phase duration="30" state="%s"/><param key="coordinated" value="true"/>', True),
        ('<phase duration="30" state="%s"/><param key="coordinated" value="false"/>', False),
    ],
)
def test_a_program_that_ends_phases_in_a_cycle_is_coordinated(tmp_path, inner, is_coordinated):
    logic = f'<tlLogic id="A0" programID="own" type="actuated" offset="0">{inner % "G"}</tlLogic>'
    assert grid_with(tmp_path, logic)["A0"].program("own").is_coordinated == is_coordinated


def test_both_directions_of_a_crossing_have_the_same_foes(crossroads):
    there, back = crossroads.foes[22], crossroads.foes[23]
    assert there.any() and (there == back).all()
    assert not crossroads.foes[22, 23], "the two directions are not foes"
    assert crossroads.crossing_m[22] == crossroads.crossing_m[23] > 0


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_right_of_way_holds_only_for_links_green_in_one_phase(name, request):
    pairs = 0
    for signal in street(name, request).signals.values():
        states = [phase.state for program in signal.programs for phase in program.phases]
        for i, j in zip(*signal.yields.nonzero(), strict=True):
            pairs += 1
            assert signal.foes[i, j] and any(state[i] in "gG" and state[j] in "gG" for state in states), (
                signal.id,
                i,
                j,
            )
    assert pairs


@pytest.mark.parametrize(("offset", "offset_s"), [("begin", 30), ("12.00", 12)])
def test_program_with_only_an_offset_keeps_its_phases(tmp_path, offset, offset_s):
    plain = network.read(GRID / "grid.net.xml").signals["B1"].plan
    shifted = grid_with(tmp_path, f'<tlLogic id="B1" programID="0" offset="{offset}"/>', begin_s=30.0)["B1"].plan
    assert shifted.phases == plain.phases and shifted.offset_s == offset_s


def test_program_of_an_additional_file_is_active():
    signal = network.of_sumocfg(GRID / "grid.sumocfg").signals["B1"]
    assert [program.id for program in signal.programs] == ["0", "adapted"]
    assert signal.plan.id == "adapted" and signal.first_program.id == "0"


SCHEDULE = '<WAUT id="w" startProg="0">{}</WAUT><wautJunction wautID="w" junctionID="B1"/>'


@pytest.mark.parametrize(
    ("begin_s", "active", "later"),
    [
        (0.0, "0", {899: "0", 900: "adapted", 9999: "off"}),
        (900.0, "adapted", {900: "adapted"}),
        (4000.0, "off", {5000: "off"}),
    ],
)
def test_schedule_says_which_program_runs(tmp_path, begin_s, active, later):
    switches = '<wautSwitch time="0:15:00" to="adapted"/><wautSwitch time="3600" to="off"/>'
    signal = grid_with(tmp_path, SCHEDULE.format(switches), begin_s)["B1"]
    assert signal.active_program == signal.plan.id == active
    assert {now: signal.scheduled_program(now) for now in later} == later


def test_switch_counts_at_its_second_and_after_each_period():
    switches = (network.ProgramSwitch(30, "night"),)
    assert [network.newest_program(switches, 40, from_s) for from_s in (30, 31)] == ["night", None]
    switch = network.ProgramSwitch(30, "night", 100)
    assert [switch.newest_s(now) for now in (0, 30, 129, 130, 299)] == [-math.inf, 30, 30, 130, 230]


GRID_NET = (GRID / "grid.net.xml").read_text()


def sumocfg(folder, options):
    path = folder / "a.sumocfg"
    path.write_text(f'<configuration><net-file value="{GRID / "grid.net.xml"}"/>{options}</configuration>')
    return path


def of_sumocfg(options):
    return lambda folder: network.of_sumocfg(sumocfg(folder, options))


def with_schedule(content):
    return lambda folder: grid_with(folder, content)["B1"].plan


def of_net(content):
    def read(folder):
        (folder / "x.net.xml").write_bytes(content if isinstance(content, bytes) else content.encode())
        return network.read(folder / "x.net.xml").signals["B1"].first_program

    return read


def of_city(key):
    def read(folder):
        (folder / "city.toml").write_text(f'[network]\n{key} = "none.xml"')
        return network.of_city(config.load(folder / "city.toml"))

    return read


def of_included(folder):
    (folder / "b.add.xml").write_text('<additional><include href="b.add.xml"/></additional>')
    return network.of_sumocfg(sumocfg(folder, '<additional-files value="b.add.xml"/>'))


OFF = '<tlLogic id="B1" type="static" programID="off"/>'


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            with_schedule('<wautJunction wautID="w" junctionID="B1"/>'),
            "signal B1 follows the schedule w, which no file defines",
        ),
        (
            with_schedule(SCHEDULE.format('<wautSwitch to="0"/>')),
            "own.add.xml: <WAUT id=.* is malformed .attribute 'time' is missing",
        ),
        (
            with_schedule(SCHEDULE.format('<wautSwitch time="noon" to="0"/>')),
            "own.add.xml: <WAUT id=.* is malformed",
        ),
        (
            with_schedule(SCHEDULE.replace('startProg="0"', 'startProg="rush"').format("")),
            r"signal B1 has no program 'rush', which its schedule \(WAUT\) names; add the additional",
        ),
        (
            of_net(re.sub(r'<tlLogic id="B1".*?</tlLogic>', OFF, GRID_NET, flags=re.DOTALL)),
            "signal B1 has no program except 'off'; add one",
        ),
        (of_net(GRID_NET.replace('linkIndex="2"', 'linkIndex="x"')), r"x\.net\.xml: <connection .* is malformed"),
        (of_net(GRID_NET.replace('<lane id="', '<lane idd="')), r"x\.net\.xml: <lane .* is malformed"),
        *((of_net(content), r"x\.net\.xml") for content in (b"<net>", b"not xml", b"<routes></routes>", b"\x00\xff")),
        (of_net("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a"), "git lfs pull"),
        (of_net("<!DOCTYPE html>\n<html><body>Not found<br></body></html>"), "raw version"),
        (of_net(""), "ends too early"),
        (of_net('<net version="1.9"><edge id="a">'), "ends too early"),
        (of_net(gzip.compress(GRID_NET.encode())[:5000]), "ends too early"),
        (lambda folder: network.read(folder / "none.net.xml"), "no such file"),
        (
            of_sumocfg('<begin value="7:30"/>'),
            r"begin = '7:30' is not a time that SUMO reads; write .*, such as 7:30:00, or seconds, such as 27000",
        ),
        (
            of_sumocfg('<end value="1 h"/>'),
            r"end = '1 h' is not a time that SUMO reads; write seconds, such as 3600, or",
        ),
        (of_sumocfg('<begin value="-5"/>'), "begin = '-5' is negative, which SUMO refuses"),
        (of_sumocfg('<mesosim value="true"/>'), "remove mesosim"),
        (of_sumocfg('<net-file value=""/>'), "net-file is missing"),
        (of_included, "remove one of the two"),
        *(
            (of_city(key), rf"city.toml: \[network\] {key}: there is no file .*/none.xml; fix its path")
            for key in ("sumocfg", "net")
        ),
    ],
)
def test_wrong_files_are_refused_with_the_place_and_the_remedy(tmp_path, read, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_programs_of_included_files_are_read(tmp_path):
    (tmp_path / "parts").mkdir()
    included = tmp_path / "parts" / "a.add.xml"
    included.write_text((GRID / "fixed_time.add.xml").read_text())
    (tmp_path / "b.add.xml").write_text('<additional><include href="parts/a.add.xml"/></additional>')
    street = network.of_sumocfg(sumocfg(tmp_path, '<additional-files value="b.add.xml"/>'))
    assert street.signals["B1"].plan.id == "adapted" and street.additional == (included,)


def test_network_is_compressed_by_content_and_not_by_name(tmp_path):
    packed, plain = tmp_path / "packed.net.xml", tmp_path / "plain.net.xml.gz"
    packed.write_bytes(gzip.compress((GRID / "grid.net.xml").read_bytes()))
    plain.write_bytes((GRID / "grid.net.xml").read_bytes())
    assert network.read(packed).signals.keys() == network.read(plain).signals.keys() != set()


def test_sumocfg_with_times_of_day_begins_and_ends_there(tmp_path):
    options = '<begin value="7:30:00"/><end value="08:15:00"/><mesosim value="false"/>'
    path = sumocfg(tmp_path, options)
    street = network.of_sumocfg(path)
    assert (street.begin_s, street.end_s, network.of_sumocfg(path, 0.0).begin_s) == (27000, 29700, 0)


def test_slowest_lane_of_a_link_counts_for_its_red_clearance(tmp_path):
    options = ("--grid.number", "1", "--grid.attach-length", "100", "--default.lanenumber", "2", "--tls.group-signals")
    net_file = netgenerate(tmp_path / "a.net.xml", "--grid", *options)
    link = next(pairs for pairs in network.read(net_file).signals["A0"].links if len({lane for lane, _ in pairs}) == 2)
    slow = link[0][0]
    text = net_file.read_text()
    begin = text.index("speed=", text.index(f'<lane id="{slow}"'))
    net_file.write_text(text[:begin] + 'speed="5.00" was' + text[begin:])
    signal = network.read(net_file).signals["A0"]
    k = signal.links.index(link)
    assert (signal.slowest_mps[k], signal.approach_mps[k]) == (5.0, 13.89)


def test_sumocfg_options_have_several_names(tmp_path, monkeypatch):
    monkeypatch.setenv("NET", str(GRID / "grid.net.xml"))
    (tmp_path / "a.sumocfg").write_text(
        f'<configuration><n v="${{NET}}"/><additional value="{GRID / "fixed_time.add.xml"}"/><e '
        'value="0:10:00"/></configuration>'
    )
    read, whole = network.of_sumocfg(tmp_path / "a.sumocfg"), network.of_sumocfg(GRID / "grid.sumocfg")
    assert read.end_s == 600 and read.signals["A0"].active_program == whole.signals["A0"].active_program


def test_lanes_behind_a_short_lane_reach_back_50_m_and_to_the_next_signal(tmp_path):
    """A - B - C - D: roads of 200, 30 and 5 m to the signal D; E - D has 20 m behind the signal E."""
    nodes = {
        "A": (-235, 0), "B": (-35, 0), "C": (-5, 0), "D": (0, 0),
        "E": (20, 0), "F": (220, 0), "G": (0, 200), "H": (20, 200),
    }  # fmt: skip
    kinds = {name: "traffic_light" if name in "DE" else "priority" for name in nodes}
    text = "".join(f'<node id="{name}" x="{x}" y="{y}" type="{kinds[name]}"/>' for name, (x, y) in nodes.items())
    lengths = dict.fromkeys(("AB", "EF", "FE", "DG", "GD", "HE", "EH"), 200) | {"BC": 30, "CD": 5, "DE": 20, "ED": 20}
    edges = "".join(f'<edge id="{e}" from="{e[0]}" to="{e[1]}" length="{length}"/>' for e, length in lengths.items())
    street = network.read(netconvert_plain(tmp_path, text, edges))
    assert street.lanes_behind == {"CD_0": {"BC_0": 5, "AB_0": 35}, "ED_0": {}, "DE_0": {}}
    assert street.lane_length_m["AB_0"] == 200
