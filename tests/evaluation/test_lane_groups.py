"""Lane groups and their volume, capacity, delay and queue."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from controller.sumo.connection import Traffic
from evaluation.arms import Arm
from evaluation.lane_groups import (
    QUEUED_VEHICLE_M,
    LaneGroup,
    LaneGroupTraffic,
    PassedVehicles,
    RoadTraffic,
    lane_group_traffic,
    lane_groups,
    level_of_service,
)
from evaluation.simulation import ArmSimulator, EvaluationTask, _Measurement
from signals.movement_names import movement_names
from simulation.demand import Demand
from tests.signals.test_movement_names import NORTH, approach, junction

TRAFFIC = LaneGroupTraffic(300.0, 600.0, False, 12.0, 20.0, 100.0)
GROUPS = [
    LaneGroup("through", "r", ("r_0", "r_1"), (0, 1), 3800.0, False),
    LaneGroup("left", "r", ("r_2",), (2,), 1800.0, True),
]
LENGTHS_M = {"r_0": 200.0, "r_1": 100.0, "r_2": 60.0}


def measured(**changes):
    """Half an hour on a road of three lanes, with a road before it."""
    no_queue = np.zeros(100, np.int32)
    values = {
        "seconds": 1800.0,
        "lanes_of": {"r": ["r_0", "r_1", "r_2"]},
        "passed": {"r_0": 100, "r_1": 80, "r_2": 20},
        "lost_on_lane_s": {"r_0": 1000.0, "r_1": 1000.0, "r_2": 500.0},
        "lost_s": {"r": 5000.0, "before": 1000.0},
        "halting": dict.fromkeys(LENGTHS_M, no_queue),
        "growth": {},
        "upstream": {"r": ("before",)},
    }
    return lane_group_traffic(GROUPS, RoadTraffic(**values | changes), lambda links: 0.1 * len(links), LENGTHS_M)


@pytest.mark.parametrize(
    ("bound_s", "below", "above"), [(10, "A", "B"), (20, "B", "C"), (35, "C", "D"), (55, "D", "E"), (80, "E", "F")]
)
def test_level_of_service_has_the_bounds_of_the_highway_capacity_manual(bound_s, below, above):
    assert (level_of_service(bound_s), level_of_service(bound_s + 0.1)) == (below, above)


def test_lanes_with_the_same_movements_are_a_group(grid_street):
    signal = grid_street.signals["A0"]
    names = movement_names(signal)
    groups = lane_groups(signal, names, lambda lane: True)
    assert [group.name for group in groups][:2] == ["northbound through + right", "northbound left"] and len(
        groups
    ) == 8
    assert sorted(lane for group in groups for lane in group.lanes) == sorted(signal.lanes)
    shared, left = groups[:2]
    assert shared.saturation_veh_h == 1900.0 and left.saturation_veh_h == pytest.approx(1900.0 / 1.05)
    assert left.is_permissive and not shared.is_permissive, "the left yields in one of its greens"
    # without its right turns, the lane is for through traffic alone
    through = replace(signal, movements=tuple(() if m[0].turn == "r" else m for m in signal.movements))
    through = replace(
        through, links=tuple(() if not m else own for own, m in zip(signal.links, through.movements, strict=True))
    )
    assert lane_groups(through, names, lambda lane: True)[0].name == "northbound through"


@pytest.mark.parametrize(
    ("turns", "name", "flow"),
    [
        ("slt", "northbound through + left", 1900),
        ("s", "northbound through", 1900),
        ("lt", "northbound left", 1900 / 1.05),
        ("r", "northbound right", 1900 / 1.18),
        ("t", "northbound U-turn", 1900),
    ],
)
def test_a_lane_for_one_turn_alone_has_less_saturation_flow(turns, name, flow):
    signal = junction(*approach("n", NORTH, turns))
    (group,) = lane_groups(signal, movement_names(signal), lambda lane: True)
    assert (group.name, group.saturation_veh_h, group.is_permissive) == (name, pytest.approx(flow), False)


def test_lanes_that_cars_may_not_use_are_in_no_group(grid_street):
    signal = grid_street.signals["A0"]
    groups = lane_groups(signal, movement_names(signal), lambda lane: lane != signal.lanes[0])
    assert sorted(lane for group in groups for lane in group.lanes) == sorted(signal.lanes[1:])


def test_delay_is_that_on_the_lanes_and_a_share_of_the_roads_before():
    found = measured()
    assert found["through"].delay_s == pytest.approx((5000 * 0.8 + 1000 * 0.9) / 180)
    assert found["left"].delay_s == pytest.approx((5000 * 0.2 + 1000 * 0.1) / 20)
    assert measured(passed={"r_0": 100, "r_1": 0, "r_2": 0})["left"].delay_s is None


def test_volume_is_what_passed_and_the_growth_of_the_queue():
    assert (found := measured())["through"].volume_veh_h == 360.0 and found["left"].volume_veh_h == 40.0
    queue = np.array([3, 9, 13], np.int32)
    grown = measured(
        halting={"r_0": queue, "r_1": queue[:1], "r_2": queue}, growth={"r": 10.0, "before": 30.0, "x": 99.0}
    )
    assert grown["through"].volume_veh_h == 2 * (180 + 10 + 0.9 * 40)
    assert grown["left"].volume_veh_h == 2 * (20 + 10 + 0.1 * 40)
    assert measured(growth={"before": -1e4})["left"].volume_veh_h == 0.0


def test_capacity_is_saturation_flow_times_the_share_of_green():
    found = measured()
    assert found["through"].capacity_veh_h == pytest.approx(3800 * 0.2)
    assert found["through"].saturation == pytest.approx(360 / 760)


def test_queue_is_the_95th_percentile_of_the_lane_that_it_fills_most():
    samples = np.array([0] * 94 + [4] * 6, np.int32)
    rarely = np.array([0] * 96 + [4] * 4, np.int32)
    found = measured(halting={"r_0": samples + 3, "r_1": samples, "r_2": rarely})
    assert (found["through"].queue_m, found["through"].storage_m) == (4 * QUEUED_VEHICLE_M, 100.0)
    assert (found["left"].queue_m, found["left"].storage_m) == (0.0, 60.0)
    full = measured(halting=dict.fromkeys(LENGTHS_M, samples + 50))
    assert full["left"].queue_m == 60.0, "no longer than its lane"


@pytest.mark.parametrize(
    ("volume", "capacity", "delay_s", "saturation", "level"),
    [
        (600.0, 600.0, 12.0, 1.0, "B"),
        (601.0, 600.0, 12.0, pytest.approx(601 / 600), "F"),
        (10.0, 0.0, None, math.inf, "F"),
        (10.0, 600.0, None, pytest.approx(1 / 60), "F"),
        (0.0, 0.0, None, 0.0, ""),
    ],
)
def test_a_volume_above_the_capacity_is_level_f(volume, capacity, delay_s, saturation, level):
    traffic = replace(TRAFFIC, volume_veh_h=volume, capacity_veh_h=capacity, delay_s=delay_s)
    assert (traffic.saturation, traffic.level) == (saturation, level)


def test_queues_grow_on_lanes_at_the_signal_on_roads_before_it_and_before_the_network(tmp_path):
    halting = iter([[1, 2, 3], [1, 2, 3], [2, 4, 9]])
    traffic = Traffic(np.zeros(3, np.int32), np.zeros(3), ["before", "r", "before"])
    connection = SimpleNamespace(halting=lambda lanes: np.array(next(halting)), traffic=lambda lanes: traffic)
    lanes = {"A": dict.fromkeys(("r_0", "r_1", "before_0"), 10.0)}
    measurement = _Measurement(connection, lanes, ["r"], ["r_0", "r_1"])
    measurement.add(5.0)
    measurement.add(15.0)
    measurement.end()
    found = measurement.road_traffic(PassedVehicles(tmp_path, {}), {"r": ["before"]})
    assert {lane: samples.tolist() for lane, samples in found.halting.items()} == {"r_0": [1, 2], "r_1": [2, 4]}
    assert found.growth == {"before": 6.0 + 2.0, "r": 1.0} and found.seconds == 20.0
    assert measurement.queue_by_road() == {"r": (5 * 3 + 15 * 6) / 20}


def test_lane_groups_of_a_simulation_add_up_to_the_tl(grid_city):
    tl, (signal,) = "SA101", grid_city.tls["SA101"].signals
    outcome = ArmSimulator(EvaluationTask(grid_city, (tl,), 300.0)).run(Arm("fixed", "fixed"), Demand(1))
    groups = outcome.lane_groups[signal].values()
    lost_s = sum((g.delay_s or 0.0) * round(g.volume_veh_h / 12) for g in groups)
    assert len(groups) == 8 and all(0 < g.capacity_veh_h < 1900 and 0 <= g.queue_m <= g.storage_m for g in groups)
    # volumes have the growth of the queues too
    assert lost_s == pytest.approx(outcome.delay_by_tl[tl] * outcome.total, rel=0.25)
    assert sum(g.volume_veh_h / 12 for g in groups) == pytest.approx(outcome.passed_by_tl[tl], abs=20)
    assert outcome.movements[signal]["northbound left (protected)"].skipped_share == 0.0
