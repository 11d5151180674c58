"""Reading from SUMO for the page alone: only while somebody watches, only what is in view, within a share of the
time."""

from types import SimpleNamespace

import numpy as np
import pytest

from city.street_shapes import JunctionShape
from controller.operator.page.collector import COLLECT_SHARE, MIN_INTERVAL_S, Collector
from controller.sumo.connection import CommandRejected

JUNCTIONS = [JunctionShape("J", 0, 0, ()), JunctionShape("K", 100, 0, ())]
WATCHED = (0, 0, 10, 10)


class Source:
    """A connection that has vehicles and signals, and takes some time."""

    def __init__(self, took_s=0.0):
        self.now, self.took_s, self.requests, self.signals = 100.0, took_s, [], []

    def clock(self):
        return self.now

    def shown(self):
        return {}

    def vehicles_near(self, junction, radius_m):
        self.requests.append((junction, radius_m))
        self.now += self.took_s
        return np.array([[1.0, 2.0, 90.0, 5.0]])

    def signal_states(self, links_of):
        self.signals.append(dict(links_of))
        self.now += self.took_s
        return ["G" * links for links in links_of.values()]


def collector(source, uncontrolled=(), known=None, view=WATCHED):
    """`uncontrolled`: their x; y is 0, and signal k has k + 1 links."""
    names = {k: f"s{k}" for k in range(1, 1 + len(uncontrolled))}

    def signals_in(view):
        return [0, *(k for k, x in enumerate(uncontrolled, 1) if view[0] <= x <= view[2] and view[1] <= 0 <= view[3])]

    links = [k + 1 for k in range(1 + len(names))]
    shapes = SimpleNamespace(junctions=JUNCTIONS)
    street = SimpleNamespace(uncontrolled=names, links=links, signals_in=signals_in, shapes=shapes)
    made = Collector(street, [*names.values()] if known is None else known, source.clock)
    made.wanted_view = view
    return made


def test_the_circle_around_the_nearest_junction_covers_the_view_while_somebody_watches():
    source = Source()
    reading = collector(source, view=None)
    assert not reading.collect(source, 1.0)
    reading.wanted_view = (80, -30, 140, 50)
    assert reading.collect(source, 1.0)
    assert source.requests == [("K", pytest.approx(np.hypot(40, 50)))]
    assert float(reading.collected.vehicles.speed_mps[0]) == 5.0
    assert source.signals == []  # there are none to read


@pytest.mark.parametrize(
    ("uncontrolled", "known", "asked", "states"),
    [
        pytest.param([5.0, 50.0, 8.0], None, {"s1": 2, "s3": 4}, {1: "GG", 3: "GGGG"}, id="those in view"),
        pytest.param([5.0, 8.0], ["s2", "other"], {"s2": 3}, {2: "GGG"}, id="those that SUMO has"),
    ],
)
def test_states_of_uncontrolled_signals_are_read(uncontrolled, known, asked, states):
    source = Source()
    reading = collector(source, uncontrolled, known)
    assert reading.collect(source, 1.0)
    assert source.signals == [asked] and reading.collected.states == states


def test_a_rejected_request_ends_the_reading_and_not_the_run(caplog):
    class Rejecting(Source):
        def signal_states(self, links_of):
            super().signal_states(links_of)
            raise CommandRejected("unknown signal")

    source = Rejecting()
    reading = collector(source, [5.0])
    assert reading.collect(source, 1.0)
    source.now += 60
    assert not reading.collect(source, 2.0)
    assert len(source.requests) == len(source.signals) == 1 and "unknown signal" in caplog.text


@pytest.mark.parametrize(("uncontrolled", "took_s"), [([], 0.03), ([5.0], 0.015)])
def test_reading_takes_at_most_its_share_of_the_wall_time(uncontrolled, took_s):
    source = Source(took_s)
    reading = collector(source, uncontrolled)
    begin, second = source.now, 0
    while source.now < begin + 60:
        second += 1
        reading.collect(source, second)
        source.now += 0.01
    assert (len(source.requests) + len(source.signals)) * took_s <= COLLECT_SHARE * 60 * 1.05
    assert reading.interval_s == pytest.approx(0.03 / COLLECT_SHARE)


def test_a_second_is_read_again_only_for_another_view():
    source = Source()
    reading = collector(source)
    for waited_s, view, second, is_read in (
        (0, WATCHED, 1.0, True),
        (10, WATCHED, 1.0, False),
        (0, (0, 0, 20, 10), 1.0, True),
        (0, (0, 0, 20, 10), 2.0, False),  # too early
        (MIN_INTERVAL_S, (0, 0, 20, 10), 2.0, True),
    ):
        source.now += waited_s
        reading.wanted_view = view
        assert reading.collect(source, second) == is_read
