"""Plain kinds of signals: each builds, can be controlled, and has demand at the stated share of its capacity; the
shipped policy on some of them."""

import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise

import pytest

from city import network
from controller.sumo.programs import sumo_program
from evaluation.arms import ACTUATED, Arm, parse
from pretraining import gate, plain_kinds
from pretraining.plain_kinds import ALL_REDS_S, END_S, KINDS, LEVELS
from pretraining.street_results import StreetJob, run_job
from pretraining.streets import SUMOCFG, city_of, has_own_demand
from signals.policy_signals import distinct_greens, running_program
from signals.safety.safety_times import program_times

BY_NAME = {kind.name: kind for kind in KINDS}
SHIPPED = (
    "lanes-1", "lanes-3", "legs-5-lanes-1", "arrows-shared-lane", "pocket-60-lagging", "split-lanes-2", "one-way-grid",
)  # fmt: skip
"""Kinds on which the shipped policy is compared."""
EMPTYING_S = 120.0
"""Time after the last departure in which a signal below capacity empties."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plain")


def written(folder, name, level=0.6, all_red_s=0):
    street = folder / f"{name}-{100 * level:.0f}{f'-all-red-{all_red_s}' if all_red_s else ''}"
    if not street.exists():
        plain_kinds.write(folder, [BY_NAME[name]])
    return street


def signals(street):
    return network.of_sumocfg(street / SUMOCFG).signals


def greens(street):
    signal = signals(street)["C"]
    return distinct_greens(signal, running_program(signal))


def driven(street):
    """Pairs of edges that follow one another on a vehicle's way, by duarouter."""
    routes = street / "routes.xml"
    command = [sumo_program("duarouter"), "-n", "street.net.xml", "-r", "demand.rou.xml", "-o", routes.name]
    subprocess.run([*command, "--no-step-log"], cwd=street, check=True, capture_output=True)
    ways = [route.get("edges").split() for route in ET.parse(routes).getroot().iterfind("vehicle/route")]
    return {pair for way in ways for pair in pairwise(way)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_every_signal_can_be_controlled_and_every_link_has_vehicles(name, folder):
    streets = plain_kinds.write(folder, [BY_NAME[name]])
    assert len({street.name for street in streets}) == len(streets) == len(LEVELS) * len(ALL_REDS_S)
    for street in streets:
        assert has_own_demand(street) and set(city_of(street).tls) == set(signals(street)) != set()
    pairs = driven(street := written(folder, name))
    for signal in signals(street).values():
        own = distinct_greens(signal, running_program(signal))
        assert len(own) > 1
        for k, lanes in enumerate(signal.links):
            assert any(green[k] in "Gg" for green in own), "each link has a green"
            for incoming, outgoing in lanes:
                is_footway = incoming.startswith(":")
                assert is_footway or (incoming.rpartition("_")[0], outgoing.rpartition("_")[0]) in pairs


def test_all_reds_are_those_of_the_programs(folder):
    for all_red_s in ALL_REDS_S:
        for name in ("lanes-1", "pocket-60-lagging", "pocket-60-leading", "arrows-own-lanes"):
            street = written(folder, name, all_red_s=all_red_s)
            yellow_s, red_s = program_times(signals(street)["C"])
            assert set(yellow_s) == {plain_kinds.YELLOW_S} and max(red_s) == all_red_s
            assert city_of(street).safety.all_red_s is None, "the default: that of the program"


def test_programs_have_their_lefts_where_their_names_say(folder):
    def letters(name):
        return [set(green) for green in greens(written(folder, name))]

    through, left, arrow = {"G", "g", "r"}, {"G", "r"}, {"G", "r"}
    assert letters("pocket-60-leading") == letters("leading-shared-lane") == [left, through] * 2
    assert letters("pocket-60-lagging") == letters("lagging-shared-lane") == [through, left] * 2
    assert letters("arrows-own-lanes") == letters("arrows-shared-lane") == [arrow] * 4
    assert letters("split-lanes-1") == [{"G", "r"}] * 4 and letters("lanes-1") == [through] * 2


@pytest.mark.parametrize(
    ("name", "count"),
    [("arrows-own-lanes", 1), ("pocket-60-lagging", 1), ("arrows-shared-lane", 3), ("lagging-shared-lane", 3)],
)
def test_lefts_have_a_lane_of_their_own_only_if_the_kind_says_so(name, count, folder):
    turns = Counter()
    for pairs in signals(written(folder, name))["C"].links:
        turns.update({lane for lane, _ in pairs})
    assert min(turns.values()) == count


def test_demand_is_in_proportion_to_the_level_and_less_with_an_all_red(folder):
    def vehicles_s(**values):
        flows = ET.parse(written(folder, "lanes-2", **values) / "demand.rou.xml").getroot().iter("flow")
        return sum(float(flow.get("period")[4:-1]) for flow in flows)

    assert [round(vehicles_s(level=level) / vehicles_s(), 3) for level in LEVELS] == [0.5, 1.0, 1.5]
    assert 0.9 < vehicles_s(all_red_s=2) / vehicles_s() < 1


def test_people_cross_the_road_of_the_footway(folder):
    street = written(folder, "legs-2-footway")
    command = [sumo_program("sumo"), "-c", SUMOCFG, "--tripinfo-output", "tripinfo.xml", "--no-step-log"]
    subprocess.run([*command, "--no-warnings"], cwd=street, check=True, capture_output=True)
    walks = list(ET.parse(street / "tripinfo.xml").getroot().iterfind("personinfo/walk"))
    waited = [walk for walk in walks if float(walk.get("timeLoss")) > 10]
    assert len(walks) > 80 and 0.2 * len(walks) < len(waited) < len(walks)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_actuated_control_serves_a_demand_of_60_percent_of_capacity(name, folder):
    for all_red_s in ALL_REDS_S:
        street = written(folder, name, all_red_s=all_red_s)
        result = run_job(StreetJob("", street, 1, None, END_S + EMPTYING_S, Arm(ACTUATED, ACTUATED)))
        assert result.total > 100 and result.finished >= 0.9 * result.total and result.delay_s < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["split-lanes-1", "ramp", "one-way-grid"])
def test_more_than_the_capacity_is_not_served(name, folder, monkeypatch):
    monkeypatch.setattr(plain_kinds, "LEVELS", (1.4,))
    street = written(folder, name, level=1.4)
    result = run_job(StreetJob("", street, 1, None, END_S + EMPTYING_S, Arm(ACTUATED, ACTUATED)))
    assert result.finished < 0.95 * result.total or result.delay_s > 60


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_policy_is_as_good_as_the_best_baseline_below_capacity(name, folder):
    delays = {}
    for arm in parse("pretrained,fixed,actuated,max-pressure,greedy"):
        results = [run_job(StreetJob(name, written(folder, name), seed, None, 1200.0, arm)) for seed in (1001, 1002)]
        delays[arm.name] = sum(r.delay_s * r.total for r in results) / sum(r.total for r in results) + gate.EXTRA_S
    shipped = delays.pop("pretrained")
    assert shipped <= 1.1 * min(delays.values()), delays
