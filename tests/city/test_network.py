"""The network reader against SUMO's own view of real streets, and against broken files."""

import gzip

import pytest
import sumolib

from city import network
from city.errors import InputError
from controller.safety.conflicts import ConflictRules
from tests.conftest import GRID

SCENARIOS = ("cologne1", "cologne8", "ingolstadt7")


def street(name, request):
    if name == "grid":
        return network.of_sumocfg(GRID / "grid.sumocfg")
    return network.of_sumocfg(request.getfixturevalue("shared") / "scenarios" / name / f"{name}.sumocfg")


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_lanes_and_links_are_those_of_sumolib(name, request):
    mine = street(name, request)
    theirs = sumolib.net.readNet(str(mine.net_file), withPrograms=True)
    assert set(mine.signals) == {light.getID() for light in theirs.getTrafficLights()}
    for light in theirs.getTrafficLights():
        signal = mine.signals[light.getID()]
        found = sorted((index, a.getID(), b.getID()) for a, b, index in light.getConnections())
        assert sorted((i, a, b) for i, pairs in enumerate(signal.links) for a, b in pairs) == found
        for lane in signal.lanes:
            assert mine.lane_length_m[lane] == theirs.getLane(lane).getLength()


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_every_phase_of_every_program_is_free_of_conflicts(name, request):
    for signal in street(name, request).signals.values():
        rules = ConflictRules(signal)
        for program in signal.programs:
            for phase in program.phases:
                assert rules.conflicts(phase.state) == [], (signal.id, program.id, phase.state)


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_all_green_is_a_conflict_wherever_there_are_foes(name, request):
    for signal in street(name, request).signals.values():
        if signal.foes.any():
            assert ConflictRules(signal).conflicts("G" * len(signal.links))


def test_both_directions_of_a_crossing_have_the_foes_of_its_way(crossroads):
    there, back = crossroads.foes[22], crossroads.foes[23]
    assert there.any() and (there == back).all()
    assert not crossroads.foes[22, 23], "who comes the other way is no foe"
    assert crossroads.crossing_m[22] == crossroads.crossing_m[23] > 0


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_right_of_way_counts_between_links_that_some_phase_shows_green_together(name, request):
    found = 0
    for signal in street(name, request).signals.values():
        states = [phase.state for program in signal.programs for phase in program.phases]
        for i, j in zip(*signal.yields.nonzero(), strict=True):
            found += 1
            assert signal.foes[i, j] and any(state[i] in "gG" and state[j] in "gG" for state in states), (signal.id, i, j)
    assert found


def test_an_offset_that_is_the_begin_is_counted_from_there(tmp_path):
    more = tmp_path / "offsets.add.xml"
    more.write_text('<additional><tlLogic id="B1" programID="0" offset="begin"/></additional>')
    assert network.read(GRID / "grid.net.xml", [more], begin_s=30.0).signals["B1"].plan.offset_s == 30


def test_programs_of_additional_files_are_active_and_come_in_sumos_order():
    signal = network.of_sumocfg(GRID / "grid.sumocfg").signals["B1"]
    assert [program.id for program in signal.programs] == ["0", "adapted"]
    assert signal.plan.id == "adapted" and signal.first_program.id == "0"


def test_a_compressed_network_is_the_same(tmp_path):
    packed = tmp_path / "grid.net.xml.gz"
    packed.write_bytes(gzip.compress((GRID / "grid.net.xml").read_bytes()))
    plain = network.read(GRID / "grid.net.xml")
    assert network.read(packed).signals["B1"].links == plain.signals["B1"].links


@pytest.mark.parametrize("content", [b"", b"<net>", b"not xml", b"<routes></routes>", b"\x00\xff"])
def test_what_is_no_network_is_refused_by_name(tmp_path, content):
    path = tmp_path / "x.net.xml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.net\.xml"):
        network.read(path)


@pytest.mark.parametrize("broken", ['linkIndex="x"', 'from="A0A1"'])
def test_a_network_that_sumo_would_not_write_is_refused_with_the_place(tmp_path, broken):
    text = (GRID / "grid.net.xml").read_text()
    path = tmp_path / "x.net.xml"
    path.write_text(text.replace('linkIndex="2"', broken) if "link" in broken else text.replace('<lane id="', '<lane idd="'))
    with pytest.raises(InputError, match=r"x\.net\.xml: <(connection|lane) .* is not as SUMO writes it"):
        network.read(path)


def test_a_program_that_only_shifts_the_offset_keeps_its_phases(tmp_path):
    more = tmp_path / "offsets.add.xml"
    more.write_text('<additional><tlLogic id="B1" programID="0" offset="12.00"/></additional>')
    plain = network.read(GRID / "grid.net.xml").signals["B1"].plan
    shifted = network.read(GRID / "grid.net.xml", [more]).signals["B1"].plan
    assert shifted.phases == plain.phases and shifted.offset_s == 12


@pytest.mark.parametrize(("text", "expected"), [("25200", 25200), ("07:00:00", 25200), ("1:00:00:00.5", 86400.5), ("01:30", 90)])
def test_times_are_taken_as_sumo_takes_them(text, expected):
    assert network.seconds(text) == expected


def test_missing_files_are_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        network.read(tmp_path / "none.net.xml")
    config = tmp_path / "a.sumocfg"
    config.write_text("<configuration><input/></configuration>")
    with pytest.raises(InputError, match="names no net-file"):
        network.of_sumocfg(config)
