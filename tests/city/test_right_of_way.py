"""Foes and right of way on networks with and without internal links, and without requests, against sumolib."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
import sumolib

from city import config, network
from city.lanes import road_of
from city.right_of_way import Junctions
from signals import contract
from signals.safety.conflicts import ConflictRules
from tests.city.scenarios import SCENARIOS, street
from tests.networks import bicycle_crossroads, netconvert, netgenerate

GENERATED = {
    "generated grid": ("--grid", "--grid.number", "3", "--grid.attach-length", "100", "--default.lanenumber", "2"),
    "generated spider": ("--spider", "--spider.arm-number", "5", "--spider.circle-number", "2"),
    "generated random": ("--rand", "--rand.iterations", "30", "--rand.random-lanenumber", "--seed", "3"),
    "generated left-hand": ("--grid", "--grid.number", "2", "--grid.attach-length", "100", "--lefthand"),
}


FOUR = ("--grid", "--grid.number", "2", "--grid.attach-length", "100", "--default-junction-type")
UNREGULATED = (*FOUR, "traffic_light_unregulated")


@pytest.fixture(params=["grid", *SCENARIOS, *GENERATED])
def net_file(request, tmp_path):
    if request.param in GENERATED:
        return netgenerate(tmp_path / "a.net.xml", *GENERATED[request.param])
    return street(request.param, request).net_file


def sumolib_foes(net_file):
    """By signal, (foes, pairs whose first yields to the second) by sumolib, pairs of link indices."""
    net = sumolib.net.readNet(str(net_file), withPrograms=True)
    result = {}
    for light in net.getTrafficLights():
        connections = [
            c
            for edge in light.getEdges()
            for lane in edge.getLanes()
            for c in lane.getOutgoing()
            if c.getTLSID() == light.getID()
        ]
        foes, yields, no_yields = set(), set(), set()
        for a, b in itertools.permutations(connections, 2):
            node, i, j = a.getFrom().getToNode(), a.getTLLinkIndex(), b.getTLLinkIndex()
            if node != b.getFrom().getToNode() or i == j or a.getFrom() == b.getFrom():
                continue
            if not node.areFoes(*map(node.getLinkIndex, (a, b))):
                continue
            foes |= {(i, j), (j, i)}
            (yields if node.forbids(b, a) else no_yields).add((i, j))
        result[light.getID()] = foes, yields - no_yields
    return result


@pytest.fixture(params=[True, False], ids=["internal links", "no internal links"])
def variant(request, net_file, tmp_path):
    return net_file if request.param else netconvert(net_file, tmp_path / "x.net.xml", "--no-internal-links")


def test_foes_and_right_of_way_are_sumolibs_and_no_phase_breaks_them(variant):
    expected = sumolib_foes(variant)
    signals = network.read(variant).signals
    assert signals.keys() == expected.keys()
    for signal in signals.values():
        foes, yields = expected[signal.id]
        assert set(zip(*map(list, signal.foes.nonzero()), strict=True)) == foes, signal.id
        # ours keeps right of way only between links that some phase shows green together
        assert set(zip(*map(list, signal.yields.nonzero()), strict=True)) <= yields, signal.id
        rules = ConflictRules(signal)
        states = {phase.state for program in signal.programs for phase in program.phases}
        assert not [state for state in states if rules.conflicts(state)], signal.id
        assert bool(rules.conflicts("G" * len(signal.links))) == signal.foes.any()


def crossroads(folder, approach_m, *options):
    """A network of one junction, A0."""
    length = ("--grid", "--grid.number", "1", "--grid.attach-length", str(approach_m))
    return netgenerate(folder / "a.net.xml", *length, *options)


def test_link_whose_request_does_not_list_a_foe_does_not_yield_to_it(tmp_path):
    guessed = ("--bikelanes.guess", "--sidewalks.guess", "--crossings.guess")
    net_file = crossroads(tmp_path, 150, *guessed, "--no-turnarounds", "--default.lanenumber", "2")
    signal = network.read(net_file).signals["A0"]
    requests = {
        int(r.get("index")): (r.get("foes")[::-1], r.get("response")[::-1])
        for r in ET.parse(net_file).getroot().iter("request")
    }
    pairs = [
        (i, j)
        for i, (foes, _) in requests.items()
        for j, bit in enumerate(foes)
        if bit == "1" and requests[j][0][i] == "0"
    ]
    without_response = [(i, j) for i, j in pairs if requests[i][1][j] == "0"]
    assert any(signal.yields[i, j] for i, j in without_response), "netgenerate writes such requests"
    rules = ConflictRules(signal)
    assert all(rules.violation(phase.state) is None for phase in signal.plan.phases)
    for i, j in pairs:
        assert signal.foes[i, j] and signal.foes[j, i] and not signal.yields[j, i]
        if signal.yields[i, j]:
            state = ["r"] * len(signal.links)
            state[i], state[j] = "G", "g"
            assert set(map(frozenset, rules.conflicts("".join(state)))) == {frozenset((i, j))}
            state[i], state[j] = "g", "G"
            assert rules.conflicts("".join(state)) == []


def test_grouped_links_that_yield_to_parts_of_each_other_show_only_g_together(tmp_path):
    options = ("--bikelanes.guess", "--tls.group-signals", "--no-turnarounds", "--default.lanenumber", "1")
    signal = network.read(crossroads(tmp_path, 60, *options)).signals["A0"]
    mixed = [
        (i, j)
        for i, j in zip(*signal.permissive.nonzero(), strict=True)
        if not (signal.yields[i, j] or signal.yields[j, i])
    ]
    assert mixed, "netgenerate writes such groups"
    rules = ConflictRules(signal)
    for i, j in mixed:
        for pair, is_conflict in (("gg", False), ("gG", True), ("GG", True)):
            state = ["r"] * len(signal.links)
            state[i], state[j] = pair
            assert bool(rules.conflicts("".join(state))) == is_conflict
    assert all(rules.violation(phase.state) is None for phase in signal.plan.phases)


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_real_networks_have_the_same_foes_and_about_the_same_paths_without_internal_links(name, request, tmp_path):
    original = street(name, request).net_file
    without = netconvert(original, tmp_path / "x.net.xml", "--no-internal-links")
    signals, others = network.read(original).signals, network.read(without).signals
    for signal in signals.values():
        other = others[signal.id]
        assert (signal.foes == other.foes).all() and (signal.yields == other.yields).all()
        for path_m, straight_m in zip(signal.path_m, other.path_m, strict=True):
            assert straight_m <= path_m + 0.5 and straight_m >= 0.6 * path_m, (signal.id, path_m, straight_m)


@pytest.mark.parametrize("options", [(), ("--no-internal-links",)], ids=["internal links", "no internal links"])
@pytest.mark.slow
def test_no_foe_of_a_real_network_is_missed_without_requests(request, monkeypatch, tmp_path, options):
    for name in ("grid", *SCENARIOS):
        net_file = netconvert(street(name, request).net_file, tmp_path / f"{name}.net.xml", *options)
        from_requests = network.read(net_file).signals
        with monkeypatch.context() as without:
            without.setattr(Junctions, "find_request", lambda self, connection: None)
            from_paths = network.read(net_file).signals
        for signal in from_requests.values():
            assert not (signal.foes & ~from_paths[signal.id].foes).any(), signal.id
            assert not from_paths[signal.id].yields.any()


def test_crossing_streets_are_foes_on_an_unregulated_junction(tmp_path):
    net_file = netgenerate(tmp_path / "a.net.xml", *UNREGULATED, "--no-turnarounds")
    signal = network.read(net_file).signals["A0"]
    straight = [
        k for k, ((a, b),) in enumerate(signal.links) if {a, b} in ({"A1A0_0", "A0bottom0_0"}, {"B0A0_0", "A0left0_0"})
    ]
    assert len(straight) == 2 and signal.foes[straight[0], straight[1]]
    assert not signal.yields.any(), "vehicles do not yield there"
    assert ConflictRules(signal).conflicts("G" * len(signal.links))


@pytest.mark.parametrize("kind", ["traffic_light", "traffic_light_unregulated"])
def test_overlong_path_is_left_out_and_its_lane_is_named(tmp_path, kind):
    path = netgenerate(tmp_path / "a.net.xml", *FOUR, kind)
    text = path.read_text()
    lane = re.search(r'<lane id="(:A0_0_0)"[^>]*shape="([^"]*)"', text)
    assert lane is not None
    begin, *_, end = lane[2].split()
    path.write_text(text.replace(f'shape="{lane[2]}"', f'shape="{begin} 600000000.00,-600000000.00 {end}"', 1))
    street = network.read(path)
    signal = street.signals["A0"]
    assert max(signal.path_m) < 100, "no all-red of years"
    assert "over lane :A0_0_0 is 1.7e+09 m long, so its points are wrong" in signal.invalid
    assert not street.signals["A1"].invalid
    tl = config.TL(("A0",), "sumo-rl", "SA101")
    city = config.City(tmp_path / "city.toml", config.Network(net=path), tls={"SA101": tl})
    fit, reasons = contract.controllable(city, ["SA101"], street)
    assert not fit and ":A0_0_0" in reasons["SA101"]
    if kind == "traffic_light_unregulated":
        far = next(k for k, pairs in enumerate(signal.links) if pairs[0] == street_pair(text))
        others = [k for k, pairs in enumerate(signal.links) if road_of(pairs[0][0]) != road_of(signal.links[far][0][0])]
        assert signal.foes[far, others].all(), "an unknown path is a foe of all others"


def street_pair(text):
    (found,) = re.findall(r'<connection from="(\w+)" to="(\w+)" fromLane="(\d)" toLane="(\d)" via=":A0_0_0"', text)
    from_edge, to_edge, from_lane, to_lane = found
    return f"{from_edge}_{from_lane}", f"{to_edge}_{to_lane}"


@pytest.mark.parametrize(
    ("options", "has_crossings"),
    [((), False), (("--default.sidewalk-width", "2", "--sidewalks.guess", "--crossings.guess"), True)],
    ids=["without crossings", "with crossings"],
)
def test_parts_of_an_indirect_left_turn_have_only_the_foes_that_they_meet(tmp_path, options, has_crossings):
    signal = network.read(bicycle_crossroads(tmp_path, *options)).signals["c"]
    first, car = 1 if has_crossings else 0, 2 if has_crossings else 1
    assert any(signal.crossing_m) == has_crossings

    def link(begin, end, lane):
        (found,) = (k for k, pairs in enumerate(signal.links) if (f"{begin}c_{lane}", f"c{end}_{lane}") in pairs)
        return found

    turn, second, straight = link("e", "s", first), link("n", "s", first), link("n", "s", car)
    assert any(a.startswith(":") and b == f"cs_{first}" for a, b in signal.links[second]), "its second part"
    assert not signal.foes[second, [straight, link("s", "n", first), link("s", "n", car)]].any()
    assert signal.foes[second, [link("e", "w", car), link("w", "e", first), link("s", "w", car), turn]].all()
    assert signal.foes[turn, [straight, link("n", "s", first), link("s", "n", car), link("n", "e", car)]].all()
    assert not signal.foes[turn, [link("w", "e", car), link("w", "e", first), link("s", "w", car)]].any()
    rules = ConflictRules(signal)
    assert [phase.state for phase in signal.plan.phases if rules.violation(phase.state) is not None] == []
    state = "".join("G" if k in (second, link("s", "w", car)) else "r" for k in range(len(signal.links)))
    assert rules.conflicts(state), "the car that turns left from ahead crosses the second part"
