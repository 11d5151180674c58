"""The panel of the city: the worst TLs, and the lines of operators' commands."""

import numpy as np
import pytest

from controller.operator.page.panels import city_panel, traffic
from controller.telemetry.traffic import RecentTraffic
from protos import control_pb2 as pb

NAN = np.nan


def recent(halting, delay_s, mean=1.0):
    halting = np.array(halting, float)
    return RecentTraffic(2 * halting, halting, np.array(delay_s, float), mean, mean, 60.0)


def test_the_worst_tls_have_most_halting_vehicles_and_of_equal_ones_most_delay():
    shown = traffic(["A", "B", "C", "D", "E"], recent([1, 5, 1, 0, NAN], [900, NAN, 1000, 0, NAN]))
    assert shown["worst"] == [["B", 5, None], ["C", 1, 1000], ["A", 1, 900]]
    assert (shown["vehicles"], shown["halting"], shown["delay_s"], shown["counted_tls"]) == (14, 7, 1900, 3)


def test_at_most_ten_tls_are_listed():
    shown = traffic([f"T{k}" for k in range(12)], recent(range(12), [0] * 12))
    assert [tl for tl, *_ in shown["worst"]] == [f"T{k}" for k in range(11, 1, -1)]


@pytest.mark.parametrize(("halting", "mean"), [([NAN, NAN], NAN), ([], NAN)])
def test_traffic_that_is_not_known_yet_is_none(halting, mean):
    shown = traffic(["A", "B"][: len(halting)], recent(halting, [NAN] * len(halting), mean))
    assert (shown["delay_s"], shown["mean_vehicles"], shown["mean_halting"], shown["worst"]) == (None, None, None, [])


def test_the_newest_thirty_lines_of_commands_come_first():
    commands = [pb.Command(number=k, at_s=k, action="pause", author="ann") for k in range(40)]
    lines = city_panel({}, {}, [], commands)["commands"]
    assert [line["at_s"] for line in lines] == list(range(39, 9, -1)) and lines[0]["text"] == "pause, by ann"
