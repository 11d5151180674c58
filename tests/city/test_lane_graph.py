"""Lanes upstream of a stop line: small graphs, and real networks against a search with sumolib."""

import itertools

import pytest
import sumolib

from city.lane_graph import MIN_SHARE, LaneGraph, UpstreamLane
from tests.city.scenarios import SCENARIOS, street

REACH_M = 300.0


def graph(length_m, *connections):
    """A graph of lanes by length. A connection "a>b" has no signal, "a|b" has one."""
    made = LaneGraph(dict(length_m), dict.fromkeys(length_m, 13.89))
    for connection in connections:
        first, second = connection.replace("|", ">").split(">")
        made.add_connection(first, second, "|" in connection)
    return made


def upstream(made, lane, reach_m=REACH_M):
    return {found.lane: (found.distance_m, pytest.approx(found.share)) for found in made.upstream(lane, reach_m)}


ABC = {"a": 80, "b": 50, "c": 100}
DETOUR = {"a": 80, "short": 20, "long": 70, "c": 100}
MANY = [f"x{k}" for k in range(9)]
SHORT = [f"s{k}" for k in range(20)]
SHORT_CHAIN = ["a>s0", *map(">".join, itertools.pairwise([*SHORT, "c"]))]


@pytest.mark.parametrize(
    ("length_m", "connections", "expected"),
    [
        pytest.param({**ABC, "out": 10}, ["a>b", "b>c", "c|out"], {"b": (100, 1), "a": (150, 1)}, id="no signal"),
        pytest.param(ABC, ["a|b", "b>c"], {"b": (100, 1)}, id="lanes behind a signal"),
        pytest.param(
            {**ABC, "d": 10, "e": 10},
            ["a>b", "a>d", "b>c", "b>e"],
            {"b": (100, 1 / 2), "a": (150, 1 / 4)},
            id="vehicles of a fork are shared",
        ),
        pytest.param({"a": 80, "c": 100, "d": 10}, ["a>c", "a|d"], {"a": (100, 1 / 2)}, id="share over a signal"),
        pytest.param(
            DETOUR,
            ["a>short", "a>long", "short>c", "long>c"],
            {"short": (100, 1), "long": (100, 1), "a": (120, 1)},
            id="paths that meet add their shares and keep the shorter way",
        ),
        pytest.param(
            DETOUR,
            ["a>long", "a>short", "long>c", "short>c"],
            {"short": (100, 1), "long": (100, 1), "a": (120, 1)},
            id="also in the other order",
        ),
        pytest.param(
            {"a": 80, "c": 100, **dict.fromkeys(MANY, 10)},
            ["a>c", *(f"a>{lane}" for lane in MANY)],
            {},
            id="a share of 1/10 is not more than MIN_SHARE",
        ),
        pytest.param(ABC, ["a>b", "b>a", "b>c"], {"b": (100, 1 / 2), "a": (150, 1 / 2)}, id="a circle is passed once"),
        pytest.param({"a": 80, "c": 100}, ["c>a", "a>c"], {"a": (100, 1)}, id="the stop line itself"),
        pytest.param(
            {"a": 80, "c": 100, **dict.fromkeys(SHORT, 0.9)},
            SHORT_CHAIN,
            {"a": (pytest.approx(100 + 20 * 0.9), 1)}
            | {lane: (pytest.approx(100 + 0.9 * (19 - k)), 1) for k, lane in enumerate(SHORT)},
            id="short lanes are passed",
        ),
        pytest.param({"a": 80, "c": 100}, ["a>c", "a>c"], {"a": (100, 1)}, id="listed twice"),
    ],
)
def test_lanes_upstream_of_a_stop_line(length_m, connections, expected):
    made = graph(length_m, *connections)
    assert upstream(made, "c") == {"c": (0, 1), **expected}
    assert made.upstream("c", REACH_M)[0] == UpstreamLane("c", 0, 1)


def test_search_ends_at_the_reach():
    made = graph(ABC, "a>b", "b>c")
    assert list(upstream(made, "c", 150)) == ["c", "b"] and list(upstream(made, "c", 150.1)) == ["c", "b", "a"]


def shares_by_sumolib(net, lane):
    """By lane, (distance, share), from all paths forward to a lane."""
    target, found = net.getLane(lane), {}

    def follow(first, here, distance_m, share, path):
        if here is target:
            known = found.get(first, (distance_m, 0.0))
            found[first] = min(known[0], distance_m), known[1] + share
            return
        connections = here.getOutgoing()
        following = {connection.getToLane().getID() for connection in connections}
        for connection in connections:
            after = connection.getToLane()
            distance_after_m = distance_m + after.getLength()
            if (
                connection.getTLSID()
                or after in path
                or share / len(following) <= MIN_SHARE
                or distance_after_m >= REACH_M
            ):
                continue
            follow(first, after, distance_after_m, share / len(following), [*path, after])

    for edge in net.getEdges(withInternal=False):
        for start in edge.getLanes():
            follow(start.getID(), start, 0.0, 1.0, [start])
    return found


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_lanes_upstream_equal_a_search_with_sumolib(name, request):
    ours = street(name, request)
    net = sumolib.net.readNet(str(ours.net_file))
    compared = 0
    for signal in ours.signals.values():
        for lane in signal.lanes:
            if not lane.startswith(":"):
                found = upstream(signal.lane_graph, lane)
                expected = shares_by_sumolib(net, lane)
                assert found == {
                    key: (pytest.approx(distance_m), share) for key, (distance_m, share) in expected.items()
                }
                compared += len(found)
    assert compared


def downstream(made, lane, reach_m=100.0):
    return {found: (begin_m, pytest.approx(share)) for found, begin_m, share in made.downstream(lane, reach_m)}


EXIT = {"a": 20, "b": 30, "c": 60, "d": 60, "e": 10}


@pytest.mark.parametrize(
    ("length_m", "connections", "expected"),
    [
        pytest.param({"a": 400}, [], {"a": (0, 1)}, id="an exit of the network"),
        pytest.param({"a": 400, "b": 9}, ["a>b"], {"a": (0, 1)}, id="what follows begins beyond the reach"),
        pytest.param({"a": 99.9, "b": 9}, ["a>b"], {"a": (0, 1), "b": (99.9, 1)}, id="it begins within the reach"),
        pytest.param({"a": 100, "b": 9}, ["a>b"], {"a": (0, 1)}, id="it begins at the reach"),
        pytest.param(EXIT, ["a>b", "b|c"], {"a": (0, 1), "b": (20, 1)}, id="up to the next signal"),
        pytest.param(
            EXIT, ["a>b", "b>c", "b>d", "c>e"],
            {"a": (0, 1), "b": (20, 1), "c": (50, 1 / 2), "d": (50, 1 / 2)}, id="branches share",
        ),
        pytest.param(EXIT, ["a>b", "a|c"], {"a": (0, 1), "b": (20, 1 / 2)}, id="a branch behind a signal has its share"),
        pytest.param(EXIT, ["a>b", "b>a"], {"a": (0, 1), "b": (20, 1)}, id="a circle"),
        pytest.param(
            {"a": 20, **dict.fromkeys(MANY, 10), "x": 9, "y": 9, "z": 9},
            [*(f"a>{lane}" for lane in MANY), f"{MANY[0]}>x", f"{MANY[0]}>y", f"{MANY[1]}>z"],
            {"a": (0, 1), **dict.fromkeys(MANY, (20, 1 / 9)), "z": (30, 1 / 9)},
            id="not behind a rare branch",
        ),
    ],
)  # fmt: skip
def test_lanes_behind_a_stop_line(length_m, connections, expected):
    assert downstream(graph(length_m, *connections), "a") == expected
