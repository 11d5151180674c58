"""Pedestrian crossings in the street dialect: lanes whose vehicles are the persons before them."""

from pathlib import Path

import numpy as np
import pytest

from city import network
from city.config import TL, City
from city.errors import InputError
from controller.sumo.connection import WALKING_M, Crossings, Person
from controller.sumo.network import check_contract_matches_network
from export.actors.phase_competition import MAX_RED_S, STOOD_S, Junction, Observed, Padded, greens_allowed, service_of
from records.record_reader import RecordReader
from serving.contract import check
from signals import contract
from signals.approach_features import FEATURES, REACH_M
from signals.dialects.street import DIALECT
from signals.observation import NO_VEHICLES, PhaseState, Readings, VehicleReadings, shares_of
from signals.policy_signals import greens_of
from tests.conftest import GRID
from tests.records import update

CROSSINGS = {
    ":J_c0_0": ([22, 23], {":J_w0", ":J_w1"}),
    ":J_c1_0": ([24], {":J_w1", ":J_w2"}),
    ":J_c2_0": ([25], {":J_w2", ":J_w3"}),
}
"""Crossings of the junction of `crossroads_net`: by lane, links and walking areas."""
INDEX = {name: k for k, name in enumerate(FEATURES)}


@pytest.fixture(scope="module")
def street(crossroads_net):
    return network.read(crossroads_net)


@pytest.fixture
def built(street):
    return contract.build(City(Path("city.toml")), TL(("J",), "street", "J"), street)


def crossings_of(built):
    return [approach for approach in built.signals[0].approaches if approach.walking_areas]


def without_crossings(built):
    """The contract as a version that did not know crossings exported it."""
    lanes = [approach for approach in built.signals[0].approaches if not approach.walking_areas]
    features = [f for f in built.observation.features if f.lane_id not in CROSSINGS]
    built.signals[0].ClearField("approaches")
    built.signals[0].approaches.extend(lanes)
    built.observation.ClearField("features")
    built.observation.features.extend(features)
    built.observation.size = len(features)
    return built


def observed(built, persons, phase_state=None):
    """(observation, features of the crossings) of persons on the walking areas."""
    rows = {lane: k for k, lane in enumerate(sorted(DIALECT.vehicle_lanes(built)))}
    crossings = Crossings((), {lane.removesuffix("_0"): rows[lane] for lane in CROSSINGS})
    zeros = np.zeros(len(rows))
    readings = Readings(np.zeros((2, len(rows))), zeros, zeros, crossings.with_persons(NO_VEHICLES, persons))
    greens = len(greens_of(built.signals[0]))
    state = phase_state or PhaseState((0,), True, 10.0, (0.0,) + (50.0,) * (greens - 1))
    x = DIALECT.observer(built, rows, zeros).observe(readings, shares_of(readings, zeros + 1), state)
    features = x[2 * greens + 2 :].reshape(-1, len(FEATURES))
    return x, dict(zip(CROSSINGS, features[-len(CROSSINGS) :], strict=True))


def test_crossings_follow_the_lanes_with_their_links_and_walking_areas(built, street):
    found = {each.lane_id: (list(each.links), set(each.walking_areas)) for each in crossings_of(built)}
    assert found == CROSSINGS and list(built.signals[0].approaches)[-len(found) :] == crossings_of(built)
    assert all(not each.exits and len(each.upstream) == 1 for each in crossings_of(built))
    check(built)
    DIALECT.check_contract(built)
    check_contract_matches_network(built, street)
    assert set(CROSSINGS) < set(DIALECT.vehicle_lanes(built))


def test_an_older_contract_stays_valid_and_observes_no_persons(built, street):
    older = without_crossings(built)
    check(older)
    DIALECT.check_contract(older)
    check_contract_matches_network(older, street)
    assert not any(lane.startswith(":") for lane in DIALECT.vehicle_lanes(older))


def without_last_crossing(built):
    del built.signals[0].approaches[-1]
    del built.observation.features[-len(FEATURES) :]
    built.observation.size -= len(FEATURES)


@pytest.mark.parametrize(
    "change",
    [
        without_last_crossing,
        lambda built: built.signals[0].approaches[-1].walking_areas.__setitem__(0, ":J_w9"),
        lambda built: built.signals[0].approaches[-1].links.__setitem__(0, 3),
    ],
)
def test_a_contract_of_other_crossings_is_refused(change, built, street):
    lane = built.signals[0].approaches[-1].lane_id
    change(built)
    with pytest.raises(InputError, match=rf"lane {lane} has other links.*export it again"):
        check_contract_matches_network(built, street)


def test_contracts_of_streets_without_crossings_are_byte_for_byte_those_of_the_record():
    """The record was made before crossings were observed; its replay shows that observations are the same."""
    street, city = network.of_sumocfg(GRID / "grid.sumocfg"), update.street_city()
    with RecordReader(update.path("street")) as reader:
        recorded = list(reader.city.contracts)
    for each in recorded:
        now = contract.build(city, city.tls[each.tl], street)
        assert now.SerializeToString(deterministic=True) == each.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("speed_mps", "waiting_s", "stands"),
    [(0.0, 0.0, True), (0.099, 0.0, True), (0.1, 0.0, False), (1.3, 0.0, False), (1.3, 0.5, True)],
)
def test_a_person_stands_from_the_first_second(speed_mps, waiting_s, stands):
    assert Person(":J_c0", speed_mps, waiting_s).stands == stands


def test_persons_before_a_crossing_are_its_vehicles(built):
    _, none = observed(built, [])
    assert all(features[INDEX["nearest"]] == REACH_M for features in none.values())
    persons = [
        Person(":J_c0", 0.0, 40.0), Person(":J_c0", 0.0, 7.0), Person(":J_c0", 1.3, 0.0), Person(":J_c1", 1.3, 0.0),
        Person("JN", 0.0, 90.0), Person("", 0.0, 90.0),
    ]  # fmt: skip
    _, features = observed(built, persons)
    expected = {
        "halting": 2, "vehicles_near": 3, "arriving_soon": 1, "lost_time": 2, "longest_wait": 40, "total_wait": 47,
        "first_wait": 40, "nearest": 0, "occupancy": 1.5, "vehicles_middle": 0, "vehicles_far": 0,
        "exit_blocked": 0, "exit_occupancy": 0, "exit_queue": 0,
    }  # fmt: skip
    for name, value in expected.items():
        assert features[":J_c0_0"][INDEX[name]] == pytest.approx(value), name
    walks = features[":J_c1_0"]
    length_m = crossings_of(built)[1].upstream[0].length_m
    assert walks[INDEX["occupancy"]] == pytest.approx(7.5 / length_m)
    assert [walks[INDEX[name]] for name in ("halting", "vehicles_near", "nearest", "first_wait", "lost_time")] == [
        0, 1, WALKING_M, 0, 0,
    ]  # fmt: skip
    assert (features[":J_c2_0"] == none[":J_c2_0"]).all()


def test_persons_are_sorted_among_vehicles_by_lane():
    vehicles = VehicleReadings(np.array([0, 2]), np.array([5.0, 6.0]), np.ones(2), np.zeros(2))
    merged = Crossings((), {":J_c0": 1}).with_persons(vehicles, [Person(":J_c0", 0.0, 3.0)])
    assert merged.row.tolist() == [0, 1, 2] and merged.position_m.tolist() == [5.0, 0.0, 6.0]
    assert Crossings((), {}).with_persons(vehicles, [Person(":J_c0", 0.0, 3.0)]) is vehicles


# the rules of phase competition


def rules_of(built, persons, current, green_s, since_s):
    """(service, greens allowed) of the junction; `since_s`: by green, 0 for the current one."""
    junction = Padded.of([Junction.of_contract(built)])
    x, _ = observed(built, persons, PhaseState((current,), True, green_s, since_s))
    parts = Observed.of(x[None], len(since_s))
    service = service_of(junction, parts)
    return service, greens_allowed(junction, parts, service)[0].tolist()


@pytest.fixture
def green_of(built):
    """By crossing, the green that serves it, of two greens in all."""
    greens = greens_of(built.signals[0])
    assert len(greens) == 2
    return {
        lane: [k for k, green in enumerate(greens) if green[links[0]] == "G"] for lane, (links, _) in CROSSINGS.items()
    }


def test_a_person_who_stood_at_red_keeps_the_links_of_its_crossing(built, green_of):
    for lane, (links, _) in CROSSINGS.items():
        (own,) = green_of[lane]
        row = [each.lane_id for each in built.signals[0].approaches].index(lane)
        # it stood through the other green, and even when its own one ended: a crowd
        for waiting_s in (20.0, 20.0 + STOOD_S, 99.0):
            since_s = tuple(0.0 if k != own else 20.0 for k in range(2))
            service, allowed = rules_of(built, [Person(lane[:-2], 0.0, waiting_s)], 1 - own, 20.0, since_s)
            assert service.protected[0, own, row] + service.permissive[0, own, row] == 1, links
            assert not service.stands[0, row] and allowed[own] and not allowed[1 - own], "no one else is served"


def test_a_crossing_that_is_red_for_too_long_is_served_next(built, green_of):
    lane = ":J_c1_0"
    (own,) = green_of[lane]
    cars = [Person(other[:-2], 1.3, 0.0) for other in CROSSINGS if green_of[other] != [own]]
    for red_s, is_late in ((MAX_RED_S - 1, False), (MAX_RED_S, True)):
        since_s = tuple(0.0 if k != own else red_s for k in range(2))
        _, allowed = rules_of(built, [Person(lane[:-2], 0.0, 30.0), *cars], 1 - own, 30.0, since_s)
        assert allowed == [k == own or not is_late for k in range(2)]
