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


def test_lanes_before_junctions_without_signals_are_upstream():
    made = graph({"a": 80, "b": 50, "c": 100, "out": 10}, "a>b", "b>c", "c|out")
    assert upstream(made, "c") == {"c": (0, 1), "b": (100, 1), "a": (150, 1)}


def test_the_lane_itself_comes_first():
    made = graph({"a": 80, "b": 50, "c": 100}, "a>c", "b>c")
    assert made.upstream("c", REACH_M)[0] == UpstreamLane("c", 0, 1)


def test_lanes_behind_a_signal_are_not_upstream():
    made = graph({"a": 80, "b": 50, "c": 100}, "a|b", "b>c")
    assert upstream(made, "c") == {"c": (0, 1), "b": (100, 1)}


def test_search_ends_at_the_reach():
    made = graph({"a": 80, "b": 50, "c": 100}, "a>b", "b>c")
    assert list(upstream(made, "c", 150)) == ["c", "b"] and list(upstream(made, "c", 150.1)) == ["c", "b", "a"]


def test_vehicles_of_a_fork_are_shared_among_the_lanes_that_follow():
    made = graph({"a": 80, "b": 50, "c": 100, "d": 10, "e": 10}, "a>b", "a>d", "b>c", "b>e")
    assert upstream(made, "c") == {"c": (0, 1), "b": (100, 1 / 2), "a": (150, 1 / 4)}


def test_lanes_that_a_signal_releases_count_in_a_share():
    made = graph({"a": 80, "c": 100, "d": 10}, "a>c", "a|d")
    assert upstream(made, "c")["a"] == (100, 1 / 2)


def test_two_paths_that_meet_again_add_their_shares_and_keep_the_shorter_way():
    made = graph({"a": 80, "short": 20, "long": 70, "c": 100}, "a>short", "a>long", "short>c", "long>c")
    assert upstream(made, "c")["a"] == (120, 1)
    turned = graph({"a": 80, "short": 20, "long": 70, "c": 100}, "a>long", "a>short", "long>c", "short>c")
    assert upstream(turned, "c") == upstream(made, "c")


def test_rare_turns_are_left_out():
    many = [f"x{k}" for k in range(9)]
    made = graph({"a": 80, "c": 100, **dict.fromkeys(many, 10)}, "a>c", *(f"a>{lane}" for lane in many))
    assert list(upstream(made, "c")) == ["c"], f"a share of 1/10 is not more than {MIN_SHARE}"


def test_a_loop_is_passed_once():
    made = graph({"a": 80, "b": 50, "c": 100}, "a>b", "b>a", "b>c")
    assert upstream(made, "c") == {"c": (0, 1), "b": (100, 1 / 2), "a": (150, 1 / 2)}


def test_the_stop_line_is_not_upstream_of_itself():
    made = graph({"a": 80, "c": 100}, "c>a", "a>c")
    assert upstream(made, "c") == {"c": (0, 1), "a": (100, 1)}


def test_short_lanes_are_passed():
    short = [f"s{k}" for k in range(20)]
    chain = [*short, "c"]
    made = graph(
        {"a": 80, "c": 100, **dict.fromkeys(short, 0.9)}, f"a>{short[0]}", *map(">".join, itertools.pairwise(chain))
    )
    assert upstream(made, "c")["a"] == (pytest.approx(100 + 20 * 0.9), 1)


def test_a_connection_that_is_listed_twice_counts_once():
    made = graph({"a": 80, "c": 100}, "a>c", "a>c")
    assert upstream(made, "c")["a"] == (100, 1)


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
