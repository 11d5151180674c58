"""Trips of a tripinfo file."""

import math

from simulation.trips import Trips, mean_delay_s, read_trips

DEPARTED = '<tripinfo depart="30" departDelay="10" arrival="-1" duration="70" waitingTime="1" timeLoss="5"/>'
UNDEPARTED = '<tripinfo depart="-1" departDelay="40" arrival="-1" duration="0" waitingTime="0" timeLoss="0"/>'


def trips_of(folder, *vehicles, end_s=None):
    path = folder / "tripinfo.xml"
    path.write_text(f"<tripinfos>{''.join(vehicles)}</tripinfos>")
    return read_trips(path, end_s)


def test_vehicle_that_never_departs_is_booked_at_its_schedule(tmp_path):
    trips = trips_of(tmp_path, DEPARTED, UNDEPARTED, end_s=100.0)
    assert trips.delay_by_departure == ((20.0, 15.0), (60.0, 40.0))
    assert (trips.total, trips.finished, trips.delay_s) == (2, 0, 27.5)
    unknown_end = trips_of(tmp_path, DEPARTED, UNDEPARTED)
    assert unknown_end.delay_by_departure == ((20.0, 15.0),), "its schedule is not known"
    assert (unknown_end.total, unknown_end.delay_s) == (2, 27.5)


def test_duration_is_a_mean_over_all_vehicles_also_those_that_never_depart(tmp_path):
    arrived = '<tripinfo depart="0" departDelay="0" arrival="50" duration="50" waitingTime="0" timeLoss="0"/>'
    assert trips_of(tmp_path, arrived, DEPARTED, UNDEPARTED).duration_s == (50 + 70 + 0) / 3


def test_simulations_without_a_vehicle_have_no_part_in_a_mean_delay():
    """A delay of 0 without a vehicle could not be beaten."""
    some, none = (Trips(total, total, delay_s, 0, 0, 0, {}, ()) for total, delay_s in ((10, 30.0), (0, 0.0)))
    assert mean_delay_s([some, none]) == 30.0 and math.isnan(mean_delay_s([none]))
