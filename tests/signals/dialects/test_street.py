"""The street dialect: its contract of real signals, its observation and its phase sequencer second by second."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city import config
from city.config import TL, City
from city.errors import InputError
from protos import policy_pb2 as pb
from serving.contract import ContractError, check
from signals import contract, policy_signals
from signals.approach_features import EXIT_M, FEATURES, ApproachFeatures
from signals.change_times import change_times, signal_safeties, with_street_changes
from signals.dialects import check_city_settings, of
from signals.dialects.street import DIALECT, StreetSequencer
from signals.observation import ObservationBatch, PhaseState, Readings, VehicleReadings, shares_of
from signals.policy_signals import PolicySignal, greens_of
from tests.city.scenarios import SCENARIOS, street
from tests.conftest import ROOT


def contracts_of(ours, **settings):
    """The contracts of all signals of a street that a policy can control."""
    city = City(Path("city.toml"), tls={signal: TL((signal,), "street", signal, **settings) for signal in ours.signals})
    return [contract.build(city, city.tls[tl], ours) for tl in contract.controllable(city, city.tls, ours)[0]]


@pytest.fixture(scope="module")
def grid(request):
    return street("grid", request)


@pytest.fixture
def built(grid):
    return contracts_of(grid)[4]


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_contracts_of_real_signals_list_every_feature_by_lane_and_survive_a_round_trip(name, request):
    for built in contracts_of(street(name, request)):
        copy = pb.PolicyContract.FromString(built.SerializeToString())
        assert copy == built
        for each in (built, copy):
            check(each)
            of(each).check_contract(each)
        signal = built.signals[0]
        lanes = [lane for lane in signal.lane_ids if not lane.startswith(":")]
        greens = greens_of(signal)
        expected = [("phase", "")] * len(greens) + [("min_green", ""), ("green_time", "")]
        expected += [("since_green", "")] * len(greens)
        expected += [(kind, lane) for lane in lanes for kind in FEATURES]
        assert [(feature.kind, feature.lane_id) for feature in built.observation.features] == expected
        assert built.observation.size == len(expected) and {f.signal_id for f in built.observation.features} == {
            signal.id
        }
        assert (built.action.size, list(built.action.choices), len(signal.change_s)) == (
            len(greens),
            [len(greens)],
            len(greens) ** 2,
        )


@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_approaches_have_the_links_and_exits_of_the_network(name, request):
    ours = street(name, request)
    for built in contracts_of(ours):
        links = ours.signals[built.tl].links
        for approach in built.signals[0].approaches:
            pairs = [(k, out) for k, link in enumerate(links) for lane, out in link if lane == approach.lane_id]
            assert sorted(approach.links) == sorted({k for k, _ in pairs})
            first = [lane for lane in approach.exits if lane.distance_m == 0]
            assert {lane.lane_id for lane in first} == {out for _, out in pairs}
            assert approach.exits[0] == first[0] and sum(lane.share for lane in first) == pytest.approx(1)
            assert all(lane.distance_m < EXIT_M for lane in approach.exits)
            assert (approach.upstream[0].lane_id, approach.upstream[0].distance_m) == (approach.lane_id, 0)
            for lane in (*approach.upstream, *approach.exits):
                assert (
                    lane.length_m == ours.lane_length_m[lane.lane_id]
                    and lane.limit_mps > 0
                    and 0 < lane.share <= 1 + 1e-9
                )


def test_times_of_city_toml_are_those_of_the_contract(grid):
    settings = dict(delta_time_s=7, yellow_s=4.0, all_red_s=1.0, min_green_s=8.0, max_green_s=60.0)
    assert contracts_of(grid, **settings)[0].timing == pb.Timing(
        decision_interval_s=7, yellow_s=4, all_red_s=1, min_green_s=8, max_green_s=60
    )
    assert contracts_of(grid)[0].timing == pb.Timing(decision_interval_s=5, yellow_s=3, min_green_s=5)


def first_lane(signal):
    return signal.approaches[0].upstream[0]


DAMAGES = {
    "kind of action": lambda c, s: setattr(c.action, "kind", "continuous"),
    "size of action": lambda c, s: setattr(c.action, "size", c.action.size + 1),
    "missing feature": lambda c, s: c.observation.features.pop(),
    "other feature": lambda c, s: setattr(c.observation.features[-1], "kind", "density"),
    "order of features": lambda c, s: c.observation.features[-1].CopyFrom(c.observation.features[-2]),
    "missing approach": lambda c, s: s.approaches.pop(),
    "other lane": lambda c, s: setattr(s.approaches[0], "lane_id", "x_0"),
    "missing change": lambda c, s: s.change_s.pop(),
    "negative change": lambda c, s: s.change_s.__setitem__(1, -1.0),
    "endless change": lambda c, s: s.change_s.__setitem__(1, math.inf),
    "other greens": lambda c, s: s.greens.extend(greens_of(s)[:1]),
    "no green": lambda c, s: (s.ClearField("greens"), s.ClearField("phases")),
    "link beyond the greens": lambda c, s: s.approaches[0].links.append(len(greens_of(s)[0])),
    "negative link": lambda c, s: s.approaches[0].links.append(-1),
    "crossing over other lanes": lambda c, s: (
        s.approaches[0].walking_areas.append(":J_w0"),
        s.approaches[0].upstream.add(lane_id="x_0"),
    ),
    "negative length": lambda c, s: setattr(first_lane(s), "length_m", -1.0),
    "speed that is no number": lambda c, s: setattr(first_lane(s), "limit_mps", math.nan),
    "endless distance": lambda c, s: setattr(first_lane(s), "distance_m", math.inf),
    "negative share of an exit": lambda c, s: setattr(s.approaches[0].exits[0], "share", -0.1),
    "greens of several lengths": lambda c, s: (s.greens.extend(greens_of(s)), s.greens.__setitem__(1, "G")),
    "interval of less than a second": lambda c, s: setattr(c.timing, "decision_interval_s", 0.5),
    "interval that is no number": lambda c, s: setattr(c.timing, "decision_interval_s", math.nan),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_contract_is_refused_in_one_line(built, name):
    DAMAGES[name](built, built.signals[0])
    built.observation.size = len(built.observation.features)
    with pytest.raises(ContractError) as refusal:
        check(built)
        DIALECT.check_contract(built)
    text = str(refusal.value)
    assert built.tl in text and "export it again" in text and "\n" not in text


def test_group_of_signals_and_settings_of_other_dialects_are_refused():
    for tl in (
        TL(("A", "B"), "street", "T"),
        TL(("A",), "street", "T", state="d"),
        TL(("A",), "street", "T", action="p"),
    ):
        with pytest.raises(InputError, match=r"city\.toml: \[tl\.T\] .*(one signal, not 2|not of street)"):
            check_city_settings(City(Path("city.toml"), tls={"T": tl}))


def test_signal_with_one_green_is_refused(grid):
    signal = grid.signals["B1"]
    (policy_signal,) = policy_signals.of_tl(TL(("B1",), "street", "T"), [signal])
    with pytest.raises(InputError, match="has one green, so there is nothing to choose"):
        contract.check_controllable("T", PolicySignal(signal, policy_signal.program, policy_signal.greens[:1]))


def test_signal_without_lanes_for_vehicles_is_refused(crossing):
    object.__setattr__(crossing, "lanes", (":X_w0_0",))
    with pytest.raises(InputError, match="has no lane for vehicles"):
        contract.check_controllable("T", PolicySignal(crossing, crossing.programs[0], ("GgGr", "rrrG")))


# observation


def test_documented_features_are_those_of_the_observation():
    page = (ROOT / "docs" / "reference" / "dialects.md").read_text()
    table = page[page.index("## street:") : page.index("Action, categorical, and decisions")]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall("`([a-z_]+)`", row.split("|")[1])] == list(FEATURES)


def readings_of(lanes, vehicles):
    by_vehicle = VehicleReadings(*(np.array(column, float) for column in zip(*sorted(vehicles), strict=True)))
    by_vehicle = by_vehicle._replace(row=by_vehicle.row.astype(np.intp))
    return Readings(np.zeros((2, lanes)), np.full(lanes, 5.0), np.zeros(lanes), by_vehicle)


def lane_rows(contracts):
    return {
        lane: k for k, lane in enumerate(dict.fromkeys(lane for c in contracts for lane in DIALECT.vehicle_lanes(c)))
    }


def test_observation_is_one_hot_min_green_times_of_greens_and_lane_features(built):
    rows = lane_rows([built])
    lane = built.signals[0].approaches[0].lane_id
    readings = readings_of(len(rows), [(rows[lane], 5.0, 0.0, 33.0)])
    greens = len(greens_of(built.signals[0]))
    observer = DIALECT.observer(built, rows, np.ones(len(rows)))
    since_s = (50.0, 0.0, 5000.0, *range(60, 57 + greens))[:greens]
    x = observer.observe(readings, shares_of(readings, np.ones(len(rows))), PhaseState((1,), True, 12.5, since_s))
    assert x.dtype == np.float32 and len(x) == observer.size == built.observation.size
    head = [float(k == 1) for k in range(greens)] + [1, 12.5]
    # the times since the greens are bounded
    assert x[: 2 * greens + 2].tolist() == head + [min(since, 3600) for since in since_s]
    features = x[2 * greens + 2 :].reshape(-1, len(FEATURES))
    expected = ApproachFeatures(built.signals[0].approaches, rows).compute(readings.by_vehicle)
    np.testing.assert_array_equal(features, expected)
    assert features[0, FEATURES.index("longest_wait")] == 33


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), vehicles=st.integers(1, 300))
def test_batch_of_many_tls_equals_each_alone(seed, vehicles, grid):
    rng = np.random.default_rng(seed)
    contracts = contracts_of(grid)
    rows = lane_rows(contracts)
    columns = rng.integers(0, len(rows), vehicles), rng.uniform(0, 200, vehicles), rng.uniform(0, 14, vehicles)
    readings = readings_of(len(rows), list(zip(*columns, rng.uniform(0, 99, vehicles), strict=True)))
    shares = shares_of(readings, np.ones(len(rows)))
    states = []
    for greens in (c.action.size for c in contracts):
        since_s = tuple(rng.uniform(0, 200, greens))
        states.append(
            PhaseState((int(rng.integers(greens)),), bool(rng.integers(2)), float(rng.uniform(0, 99)), since_s)
        )
    observers = {c.tl: DIALECT.observer(c, rows, np.ones(len(rows))) for c in contracts}
    together = ObservationBatch(observers).observe(readings, shares, states)
    assert list(together) == [c.tl for c in contracts]
    for built, state in zip(contracts, states, strict=True):
        alone = DIALECT.observer(built, rows, np.ones(len(rows))).observe(readings, shares, state)
        np.testing.assert_array_equal(together[built.tl], alone)


# phase sequencer

GREENS = ["GGrr", "GrGr", "rrGG"]


@pytest.fixture
def sequencer():
    made = StreetSequencer(GREENS, delta_time_s=5, yellow_s=3, min_green_s=5)
    made.enter(100, ["GGrr"], start=True)
    return made


CHANGE, SHOWN = ("apply_action", 120, (2,)), ("note_shown", 123)


@pytest.mark.parametrize(
    ("calls", "now", "green", "green_s", "since_s"),
    [
        pytest.param([], 107, 0, 7, (0, 7, 7), id="from the start"),
        pytest.param([CHANGE], 122, 2, 0, (2, 22, 0), id="before the green is shown"),
        pytest.param([CHANGE, SHOWN], 130, 2, 7, (10, 30, 0), id="from when it is shown"),
        pytest.param(
            [CHANGE, *(("note_shown", now) for now in (120, 121, 122, 126, 127))], 130, 2, 4, (10, 30, 0), id="late"
        ),
        pytest.param([CHANGE, SHOWN, ("apply_action", 131, (0,))], 141, 0, 7, (0, 41, 10), id="a second change"),
        pytest.param([CHANGE, SHOWN, ("enter", 200, ["GrGr"])], 210, 1, 10, (10, 0, 10), id="the policy takes over"),
    ],
)
def test_times_of_greens_count_from_when_they_are_shown_and_left(sequencer, calls, now, green, green_s, since_s):
    for name, *arguments in calls:
        getattr(sequencer, name)(*arguments)
    state = sequencer.phase_state(now)
    assert (state.phases, state.green_s, state.since_green_s) == ((green,), green_s, since_s)


def test_decisions_are_due_when_the_green_may_change(sequencer):
    assert [sequencer.decides_at(now) for now in (100, 107, 108)] == [False, False, True]
    sequencer.apply_action(110, (1,))
    assert not sequencer.decides_at(130), "the new green is not shown yet"
    sequencer.note_shown(115)
    assert [sequencer.decides_at(now) for now in (118, 119, 120, 121)] == [False, False, True, True]


def test_a_change_that_was_interrupted_is_forgotten(sequencer):
    sequencer.apply_action(120, (2,))
    sequencer.enter(150, ["rrrr"])
    assert sequencer.requested_states(150) == ("GGrr",) and sequencer.phase_state(160).green_s == 10
    assert sequencer.decides_at(158) and not sequencer.decides_at(157)


def test_min_green_is_not_stretched_because_the_policy_sees_how_long_changes_take(grid, built):
    assert change_times(built, signal_safeties(built, grid, config.Safety(all_red_s=9.0))) is None
    assert with_street_changes(built, None).timing.min_green_s == built.timing.min_green_s
