"""Single vehicles are read alike over every connection, from the real SUMO."""

import numpy as np

from controller.sumo.connection import LanesToRead
from signals.observation import NO_VEHICLES

END_S = 120
PERIOD_S = {"A0": 3, "B1": 5, "C2": 7, "B2": 60}
"""By TL, how often it is due; C2 has no vehicle lanes."""
LONG_IDS = [
    *(f"{'long' * 36} {k} ü€{k}" for k in range(4)),
    *("v" * size for size in (238, 239, 240, 247, 248, 249, 250, 300)),
]
"""150 characters, with spaces; and around the sizes from which the lengths in answers (239) and commands (249) are
longer."""


def lanes_of(connection, signal):
    return list(dict.fromkeys(connection.api.trafficlight.getControlledLanes(signal)))


def tracked(connection):
    """(lanes whose counts are read, lanes whose vehicles are read) by TL; two TLs share vehicle lanes."""
    counted = {tl: lanes_of(connection, tl) for tl in PERIOD_S}
    by_vehicle = {tl: lanes_of(connection, tl) for tl in ("A0", "B1")}
    by_vehicle["A0"] += [*lanes_of(connection, "A1"), *by_vehicle["B1"][:2]]
    by_vehicle["B2"] = lanes_of(connection, "B2")
    connection.track(LanesToRead(counted, (), by_vehicle), {})
    return counted, by_vehicle


def requested(api, lanes):
    """(lane, position, speed, waiting time) of the vehicles on lanes, requested one by one."""
    return [
        (lane, api.vehicle.getLanePosition(v), api.vehicle.getSpeed(v), api.vehicle.getWaitingTime(v))
        for lane in sorted(lanes)
        for v in api.lane.getLastStepVehicleIDs(lane)
    ]


def read_vehicles(connection):
    row, *values = connection.readings.by_vehicle
    return [
        (connection.lanes[k], *of_vehicle)
        for k, *of_vehicle in zip(row, *(array.tolist() for array in values), strict=True)
    ]


def test_vehicles_equal_those_that_sumo_reports_one_by_one(connection):
    counted, by_vehicle = tracked(connection)
    api, seen = connection.api, []
    assert connection.lanes == tuple(
        sorted({lane for of in (counted, by_vehicle) for own in of.values() for lane in own})
    )
    assert {len(vehicle) for vehicle in LONG_IDS[:4]} == {150}
    lane = by_vehicle["A0"][0]
    api.route.add("there", [lane.rpartition("_")[0]])
    for vehicle in LONG_IDS:
        api.vehicle.add(vehicle, "there", departLane=lane[-1], departSpeed="0")
    most_bytes, teleports, long_ids = 0, 0, set()
    for second in range(1, END_S + 1):
        due = tuple(tl for tl, period_s in PERIOD_S.items() if second % period_s == 0)
        connection.advance(float(second))
        connection.read(due)
        lanes = {lane for tl in due for lane in by_vehicle.get(tl, ())}
        expected = requested(connection.api, lanes)
        assert read_vehicles(connection) == expected
        assert connection.readings.by_vehicle.row.dtype == np.intp
        assert (connection.readings.by_vehicle is NO_VEHICLES) == (not expected)
        seen += expected
        teleports += api.simulation.getStartingTeleportNumber()
        if "A0" in due:
            ids = connection.api.lane.getLastStepVehicleIDs(lane)
            long_ids |= set(ids) & set(LONG_IDS)
            most_bytes = max(most_bytes, len("".join(ids).encode()))
    assert long_ids == set(LONG_IDS) and most_bytes > 500 and len({lane for lane, *_ in seen}) > 10
    speeds, waiting = np.array([of_vehicle[2:] for of_vehicle in seen]).T
    assert (waiting[speeds > 0.1] == 0).all() and waiting.max() > 10 and teleports > 0
    counted_rows = [connection.lanes.index(lane) for own in counted.values() for lane in own]
    assert connection.readings.vehicles[counted_rows].sum() > 0
    others = np.delete(connection.readings.counts, counted_rows, 1)
    assert others.size and not others.any()


def test_counts_are_of_the_same_moment_as_vehicles(connection):
    counted, _ = tracked(connection)
    connection.advance(100.0)
    connection.read(("B1",))
    row = connection.readings.by_vehicle.row
    assert row.size and (np.bincount(row, minlength=len(connection.lanes)) == connection.readings.vehicles).all()
    connection.read(("C2",))
    assert connection.readings.by_vehicle is NO_VEHICLES
    assert connection.readings.vehicles[[connection.lanes.index(lane) for lane in counted["C2"]]].sum() > 0
