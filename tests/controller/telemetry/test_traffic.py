"""Traffic by TL: queue, stopped delay, green share."""

import numpy as np
import pytest

from city.network import StreetNetwork
from controller.telemetry.traffic import GREEN_SHARE_TIME_S, TrafficMeter
from protos import policy_pb2 as pb
from signals.observation import Readings
from tests.controller.decision_events import decision, event


@pytest.fixture
def meter(crossing):
    lanes = list(crossing.lanes)
    contract = pb.PolicyContract(tl="SA101", signal_ids=["X"], signals=[pb.Signal(id="X", lane_ids=[*lanes, lanes[0]])])
    meter = TrafficMeter([contract], StreetNetwork(None, {"X": crossing}, {}))
    # max-pressure's lanes are read too, and are not the TL's
    meter.track(["another", *lanes])
    return meter


def readings(*halting):
    return Readings(np.array([np.zeros(5), halting]), np.zeros(5), np.zeros(5))


def samples(meter):
    return {sample.name: sample.value for family in meter.collect() for sample in family.samples}


def test_queue_is_the_halting_vehicles_of_the_newest_reading(meter):
    assert samples(meter) == {}
    meter.add(event(100.0, [decision("SA101")], readings=readings(9, 1, 2, 0, 4)))
    assert samples(meter) == {"controller_queue_vehicles": 7}


def test_stopped_delay_is_the_queue_over_time(meter):
    for now, halting in ((100.0, 4), (105.0, 2), (110.0, 0)):
        meter.add(event(now, [decision("SA101")], readings=readings(9, halting, 0, 0, 0)))
    assert samples(meter)["controller_stopped_delay_vehicle_seconds_total"] == 4 * 5 + 2 * 5


def test_green_share_is_the_mean_over_links_and_time(meter):
    meter.add(event(30.0, states=[(0.0, 30.0, ["GgGr"])]))
    assert samples(meter) == {"controller_green_share": pytest.approx(0.75)}
    meter.add(event(7000.0, states=[(30.0, 30.0 + 20 * GREEN_SHARE_TIME_S, ["yyyr"])]))
    assert samples(meter)["controller_green_share"] == pytest.approx(0, abs=1e-6)
    for begin_s in range(10_000, 13_000, 10):
        meter.add(event(begin_s + 10, states=[(begin_s, begin_s + 10, ["rrrG" if begin_s % 20 else "GGGG"])]))
    assert samples(meter)["controller_green_share"] == pytest.approx((0.25 + 1) / 2, abs=0.01)


def test_recent_traffic_is_that_of_fifteen_minutes(meter):
    def add(now, vehicles, halting):
        counts = np.array([[9, vehicles, 0, 0, 0], [9, halting, 0, 0, 0]], float)
        meter.add(event(now, [decision("SA101")], readings=Readings(counts, np.zeros(5), np.zeros(5))))

    recent = meter.recent()
    assert np.isnan(
        [*recent.vehicles, *recent.halting, *recent.delay_s, recent.mean_vehicles, recent.mean_halting]
    ).all()
    for now in range(0, 600, 5):
        add(now, 10, 4)
    recent = meter.recent()
    assert (recent.vehicles, recent.halting, recent.delay_s) == (10, 4, 595 * 4)
    assert (recent.mean_vehicles, recent.mean_halting, recent.span_s) == (10, 4, 595)
    for now in range(600, 2000, 5):
        add(now, 20, 1)
    recent = meter.recent()
    # a sample each 15 s
    assert 885 <= recent.span_s <= 900
    assert (recent.mean_vehicles, recent.mean_halting, recent.delay_s) == (20, 1, recent.span_s)


def test_delay_and_recent_traffic_of_a_tl_that_is_read_minutes_apart_are_unknown(meter):
    for now in (0.0, 450.0, 900.0):
        meter.add(event(now, [decision("SA101")], readings=readings(9, 4, 0, 0, 0)))
    recent = meter.recent()
    assert samples(meter) == {"controller_queue_vehicles": 4}
    assert recent.halting == 4 and np.isnan([*recent.delay_s, recent.mean_halting]).all()
