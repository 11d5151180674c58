"""Observation spaces: bounds by formula, whatever is on the street."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from city import config, network
from environment.spaces import observation_space
from signals import contract, dialects
from signals.observation import PhaseState, Readings, VehicleReadings, shares_of
from tests.conftest import GRID

CITY = config.load(GRID / "city.toml")
STREET_CITY = replace(CITY, tls={"SA105": config.TL(CITY.tls["SA105"].signals, "street", "SA105")})
CONTRACT = contract.build(STREET_CITY, STREET_CITY.tls["SA105"], network.of_city(STREET_CITY))
LANES = list(dialects.of(CONTRACT).vehicle_lanes(CONTRACT))
UNBOUNDED = {
    "green_time", "halting", "vehicles_near", "vehicles_middle", "vehicles_far", "arriving_soon", "arriving_later",
    "lost_time",
    "relative_speed", "longest_wait", "total_wait", "first_wait",
}  # fmt: skip
"""As docs/environment.md lists them."""


def test_features_of_the_street_dialect_without_an_upper_bound_are_those_of_the_docs():
    space = observation_space(CONTRACT)
    features = zip(CONTRACT.observation.features, space.high, strict=True)
    assert {feature.kind for feature, high in features if not np.isfinite(high)} == UNBOUNDED
    assert np.isfinite(space.low).all()


VEHICLE = st.tuples(st.integers(0, len(LANES) - 1), st.floats(0, 400), st.floats(0, 60), st.floats(0, 1e5))
"""(row of its lane, position in m, speed in m/s, waiting time in s)."""


@given(st.lists(VEHICLE, min_size=1, max_size=40), st.sampled_from([1, 50]), st.floats(0, 1e5))
def test_street_dialects_observations_lie_in_their_space_on_any_street(vehicles, copies, since_s):
    """Also in queues that no lane has room for, and after a red of a day."""
    rows, *values = (np.repeat(column, copies) for column in zip(*sorted(vehicles), strict=True))
    none, length_m = np.zeros(len(LANES)), np.ones(len(LANES))
    readings = Readings(np.array([none, none]), none, none, VehicleReadings(rows, *values))
    state = PhaseState((0,), True, since_s, (0.0, *[since_s] * (CONTRACT.action.size - 1)))
    observer = dialects.of(CONTRACT).observer(CONTRACT, {lane: k for k, lane in enumerate(LANES)}, length_m)
    assert observation_space(CONTRACT).contains(observer.observe(readings, shares_of(readings, length_m), state))


def test_gymnasiums_check_of_the_street_dialect_passes(single):
    with pytest.warns(UserWarning, match="maximum value is infinity"):
        check_env(single("SA105", city=STREET_CITY, seconds=60))
