"""The features of incoming lanes: each against a loop over lanes and vehicles, and cases by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import policy_pb2 as pb
from signals.approach_features import FEATURES, ApproachFeatures
from signals.observation import NO_VEHICLES, VehicleReadings


def vehicle_readings(vehicles):
    """Readings of (row, position, speed, waiting) in any order."""
    vehicles = sorted(vehicles, key=lambda vehicle: vehicle[0])
    row, *values = zip(*vehicles, strict=True) if vehicles else ((), (), (), ())
    return VehicleReadings(np.array(row, np.intp), *(np.array(value, float) for value in values))


def approach(upstream, exits=()):
    """An approach from (row, distance, share, length, limit) and (row, share, length, limit, distance, 0 without it); its
    lane is the first one."""
    return pb.Approach(
        lane_id=f"lane{upstream[0][0]}",
        upstream=[
            pb.ReadLane(
                lane_id=f"lane{row}", distance_m=distance_m, share=share, length_m=length_m, limit_mps=limit_mps
            )
            for row, distance_m, share, length_m, limit_mps in upstream
        ],
        exits=[
            pb.ReadLane(
                lane_id=f"lane{row}",
                share=share,
                length_m=length_m,
                limit_mps=limit_mps,
                distance_m=distance_m[0] if distance_m else 0,
            )
            for row, share, length_m, limit_mps, *distance_m in exits
        ],
    )


def features(approaches, vehicles, lanes=20):
    """By name, the features of the first approach."""
    computed = ApproachFeatures(approaches, {f"lane{k}": k for k in range(lanes)})
    rows = computed.compute(vehicle_readings(vehicles))
    assert rows.dtype == np.float32 and rows.shape == (len(approaches), len(FEATURES))
    return dict(zip(FEATURES, rows[0].tolist(), strict=True))


def one_by_one(approach, vehicles):
    """The features of an approach by their definitions, vehicle by vehicle."""
    f = dict.fromkeys(FEATURES, 0.0)
    f["nearest"] = 300.0
    count = weight = speeds = 0.0
    for lane in approach.upstream:
        for row, position_m, mps, waiting_s in vehicles:
            distance_m = lane.distance_m + lane.length_m - position_m
            if f"lane{row}" != lane.lane_id or distance_m >= 300:
                continue
            distance_m = max(distance_m, 0.0)
            count += lane.share
            f["vehicles_near" if distance_m < 50 else "vehicles_middle" if distance_m < 150 else "vehicles_far"] += (
                lane.share
            )
            if mps < 0.3:
                f["halting"] += lane.share
            else:
                arrival_s = distance_m / max(mps, 1.0)
                if arrival_s < 12:
                    f["arriving_soon" if arrival_s < 5 else "arriving_later"] += lane.share
            f["lost_time"] += lane.share * max(0.0, 1 - mps / lane.limit_mps)
            f["total_wait"] += lane.share * waiting_s
            if distance_m < 150:
                weight += lane.share
                speeds += lane.share * mps / lane.limit_mps
            if lane.share > 0.3:
                f["longest_wait"] = max(f["longest_wait"], waiting_s)
                if distance_m < 15 and distance_m <= f["nearest"]:
                    f["first_wait"] = max(waiting_s, f["first_wait"] if distance_m == f["nearest"] else 0)
                f["nearest"] = min(f["nearest"], distance_m)
    f["relative_speed"] = speeds / weight if weight else 0.0
    reach_m = sum(min(lane.length_m, 300 - lane.distance_m) * lane.share for lane in approach.upstream)
    f["occupancy"] = min(7.5 * count / reach_m, 1.5)
    # an exit is a lane at 0 m and those that follow it
    capacity = max(1, sum(lane.share * lane.length_m for lane in approach.exits) // 7.5)
    blocked = []
    for lane in approach.exits:
        there = [(position_m, mps) for row, position_m, mps, _ in vehicles if f"lane{row}" == lane.lane_id]
        f["exit_occupancy"] += lane.share * len(there) / capacity
        f["exit_queue"] += lane.share * sum(mps < 0.3 for _, mps in there) / capacity
        if lane.distance_m == 0:
            blocked.append(0.0)
        if any(lane.distance_m + position_m < 25 and mps < 2 for position_m, mps in there):
            blocked[-1] = max(blocked[-1], lane.share)
    f["exit_blocked"] = sum(blocked)
    for name in ("exit_occupancy", "exit_queue"):
        f[name] = min(f[name], 1.2)
    return [f[name] for name in FEATURES]


LANES = 12
number = st.floats(0, 1)


@st.composite
def streets(draw, max_approaches=5):
    """(approaches, vehicles (row, position, speed, waiting)) on lanes with a length and a speed limit each."""
    length_m = draw(st.lists(st.sampled_from([0.9, 7.5, 40.0, 120.5, 400.0]), min_size=LANES, max_size=LANES))
    limit_mps = draw(st.lists(st.sampled_from([2.78, 8.33, 13.89, 27.78]), min_size=LANES, max_size=LANES))
    share = st.sampled_from([0.11, 0.25, 0.3, 1 / 3, 0.5, 1.0])
    rows = st.lists(st.integers(0, LANES - 1), max_size=5, unique=True)
    approaches = []
    for _ in range(draw(st.integers(1, max_approaches))):
        upstream = [(row, draw(number) * 299, draw(share)) for row in draw(rows.filter(bool))]
        upstream[0] = (upstream[0][0], 0.0, 1.0)
        exits = [
            (
                row,
                draw(share),
                length_m[row],
                limit_mps[row],
                draw(st.sampled_from([0.0, 7.5, 20.0, 40.0])) if k else 0.0,
            )
            for k, row in enumerate(draw(rows))
        ]
        approaches.append(approach([(*lane, length_m[lane[0]], limit_mps[lane[0]]) for lane in upstream], exits))
    speeds = st.one_of(st.sampled_from([0.0, 0.29, 0.3, 1.99, 2.0]), st.floats(0, 40))
    vehicles = [
        (row, draw(st.floats(0, 1.2)) * length_m[row], draw(speeds), draw(st.floats(0, 500)))  # also past its stop line
        for row in draw(st.lists(st.integers(0, LANES - 1), max_size=25))
    ]
    return approaches, vehicles


@given(streets())
def test_every_feature_equals_a_loop_over_vehicles_together_and_alone(street):
    approaches, vehicles = street
    lane_row, readings = {f"lane{k}": k for k in range(LANES)}, vehicle_readings(vehicles)
    together = ApproachFeatures(approaches, lane_row).compute(readings)
    expected = [one_by_one(approach, vehicles) for approach in approaches]
    np.testing.assert_allclose(together, np.array(expected, np.float32), rtol=1e-5, atol=1e-5)
    for k, single in enumerate(approaches):
        alone = ApproachFeatures([single], lane_row).compute(readings)
        np.testing.assert_array_equal(together[k], alone[0])


def test_without_vehicles_only_the_reach_remains_and_without_approaches_nothing():
    found = ApproachFeatures([approach([(0, 0, 1, 100, 13.89)], [(1, 1, 100, 10)])], {"lane0": 0, "lane1": 1})
    values = dict(zip(FEATURES, found.compute(NO_VEHICLES)[0].tolist(), strict=True))
    assert {name: value for name, value in values.items() if value} == {"nearest": 300}
    none = ApproachFeatures([], {"lane0": 0}).compute(vehicle_readings([(0, 1, 1, 1)]))
    assert none.shape == (0, len(FEATURES))


ALONE = [(0, 0, 1, 100, 10)]


@pytest.mark.parametrize(
    ("vehicles", "first_s"),
    [
        pytest.param([(0, 86, 0, 40)], 40, id="at the stop line"),
        pytest.param([(0, 85, 0, 40)], 0, id="15 m before it"),
        pytest.param([(0, 95, 0, 7), (0, 87, 0, 90)], 7, id="the first of two"),
        pytest.param([(0, 95, 5, 0), (0, 87, 0, 90)], 0, id="a first one that moves"),
        pytest.param([(0, 95, 0, 7), (1, 99, 0, 90)], 7, id="a vehicle on the way to the lane"),
        pytest.param([(2, 99, 0, 90)], 0, id="a rare turn"),
    ],
)
def test_first_wait_is_that_of_the_vehicle_at_the_stop_line(vehicles, first_s):
    upstream = [*ALONE, (1, 5, 1, 100, 10), (2, 5, 0.3, 100, 10)]
    assert features([approach(upstream)], vehicles)["first_wait"] == first_s


def test_an_exit_reaches_over_the_lanes_that_follow():
    """A lane of 15 m, then two branches of 30 m each: as much room as one lane of 45 m, six vehicles."""
    through = approach(ALONE, [(1, 1, 15, 10), (2, 0.5, 30, 10, 15), (3, 0.5, 30, 10, 15)])
    found = features([through], [(1, 14, 1, 0), (2, 20, 0, 0), (2, 10, 0, 0)])
    assert (found["exit_occupancy"], found["exit_queue"]) == pytest.approx((2 / 6, 1 / 6))
    assert found["exit_blocked"] == 1
    # on a branch: 24 m behind the stop line, and 25 m
    blocked = [features([through], [(2, at_m, 1, 0)])["exit_blocked"] for at_m in (9, 10)]
    assert blocked == [0.5, 0]
