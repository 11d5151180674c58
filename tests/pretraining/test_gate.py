"""The gate's streets and its verdicts."""

import csv
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretraining import gate
from pretraining.gate import REFERENCE
from pretraining.street_results import StreetResult
from pretraining.synthetic.oddities import Oddity
from simulation.street_simulation import SimulationFailed


def results(**delays_s):
    """Two streets where the reference has 20 and 30 s; by name the delays on both, with the arrivals if they are
    few."""
    found = {}
    for street, reference_s in (("a", 20.0), ("b", 30.0)):
        found[street] = {REFERENCE: StreetResult(reference_s, 100, 110, 50.0)}
    for name, values in delays_s.items():
        for street, value in zip(("a", "b"), values, strict=True):
            delay_s, finished = value if isinstance(value, tuple) else (value, 100)
            found[street][name] = StreetResult(delay_s, finished, 110, 50.0)
    return found


def judged(found):
    return {verdict.name: verdict for verdict in gate.judge(found, [n for n in found["a"] if n != REFERENCE])}


def failure(found, name):
    return judged(found)[name].failure


RESULTS = st.none() | st.builds(StreetResult, st.floats(0, 500), st.integers(0, 100), st.just(110), st.floats(0, 500))


@given(st.lists(st.fixed_dictionaries({name: RESULTS for name in (REFERENCE, "a", "b", "c")}), min_size=1))
def test_adding_an_arm_changes_no_other_arms_verdict(rows):
    found = {str(k): row for k, row in enumerate(rows)}
    assume(any(row[REFERENCE] is not None for row in rows))
    alone = {
        name: gate.judge({s: {k: row[k] for k in (REFERENCE, name)} for s, row in found.items()}, [name])
        for name in "abc"
    }
    assert [alone[name][0] for name in "abc"] == gate.judge(found, ["a", "b", "c"])


def test_a_better_network_does_not_hide_a_gridlock():
    gridlocking = {"bad": (10, (20, 60))}
    for found in (results(**gridlocking), results(**gridlocking, better=(10, 10))):
        found["b"][REFERENCE] = StreetResult(30.0, 95, 200, 50.0)
        if "better" in found["b"]:
            found["b"]["better"] = StreetResult(10.0, 200, 200, 50.0)
        assert failure(found, "bad") == "gridlock where max-pressure has none, on b"


def test_a_simulation_that_sumo_ends_early_counts_against_its_network_alone():
    found = results(ended=(10, 20), good=(10, 20))
    found["b"]["ended"] = None
    assert failure(found, "ended") == "SUMO has ended its simulation early, and not max-pressure's, on b"
    assert judged(found)["good"] == judged(results(good=(10, 20)))["good"]
    found["b"][REFERENCE] = None
    assert failure(found, "ended") == "" and judged(found)["good"].mean_delay_s == pytest.approx(10)


def test_the_table_has_empty_cells_where_sumo_ends_a_simulation_early():
    found = results(own=(10, 20))
    found["a"]["own"] = found["b"][REFERENCE] = None
    streets = [gate.GateStreet(Path(name), 1, 50.0, ()) for name in "ab"]
    rows = {(row["street"], row["network"]): row for row in csv.DictReader(gate.table(streets, found).splitlines())}
    assert [rows["a", "own"][name] for name in ("delay_s", "gridlock", "ratio")] == ["", "", ""]
    assert [rows["b", "own"][name] for name in ("delay_s", "gridlock", "ratio")] == ["20.000", "", ""]
    assert [rows["a", REFERENCE][name] for name in ("delay_s", "gridlock", "ratio")] == ["20.000", "0", "1.000"]


def test_a_network_fails_for_a_gridlock_that_the_reference_does_not_have():
    found = results(good=(10, 20), bad=(10, (20, 60)))
    assert failure(found, "bad") == "gridlock where max-pressure has none, on b"
    assert failure(found, "good") == ""


def test_a_gridlock_of_the_reference_too_is_no_failure():
    found = results(good=(10, 20), same=(10, (20, 60)))
    found["b"][REFERENCE] = StreetResult(30.0, 55, 110, 50.0)
    assert failure(found, "good") == ""
    assert failure(found, "same") == ""


def test_a_network_fails_for_one_slow_street():
    slow_s = gate.MAX_RATIO * (30 + gate.EXTRA_S) - gate.EXTRA_S
    found = results(limit=(1, slow_s), beyond=(1, slow_s + 1))
    assert failure(found, "limit") == "" and "times as slow as max-pressure on b" in failure(found, "beyond")


def test_a_network_far_above_the_best_passes_and_is_not_kept():
    best_s, far_s = 10.0, 10.0 * (gate.MAX_MEAN_RATIO + 0.02)
    found = results(best=(best_s, best_s), far=(far_s, far_s), near=(best_s * 1.05, best_s * 1.05))
    assert failure(found, "far") == "" and judged(found)["far"].mean_ratio == pytest.approx(far_s / (20 * 30) ** 0.5)
    assert [verdict.name for verdict in gate.best(list(judged(found).values()), 3)] == ["best", "near"]


def test_the_best_that_pass_are_kept_in_the_given_order():
    verdicts = gate.judge(results(c=(11.4, 11.4), bad=(11, 500), b=(10, 10), a=(11, 11)), ["c", "bad", "b", "a"])
    assert [verdict.name for verdict in gate.best(verdicts, 2)] == ["b", "a"]
    assert [verdict.name for verdict in gate.best(verdicts, 9)] == ["c", "b", "a"]


def test_a_street_without_vehicles_does_not_count():
    found = results(x=(10, 10))
    found["a"] = {name: StreetResult(0, 0, 0, 0) for name in found["a"]}
    (verdict,) = gate.judge(found, ["x"])
    assert verdict.mean_delay_s == pytest.approx(10) and verdict.worst_street == "b"
    found["b"] = found["a"]
    with pytest.raises(SimulationFailed, match="no street with a vehicle"):
        gate.judge(found, ["x"])


def test_streets_have_each_oddity_and_every_demand(tmp_path, monkeypatch):
    rare = {gate.FIRST_SEED + k: {oddity} for k, oddity in zip(range(20, 110, 15), Oddity, strict=True)}
    monkeypatch.setattr(gate, "generate", lambda folder, seed: folder / f"street_{seed}")
    monkeypatch.setattr(gate.oddities, "of_street", lambda street: rare.get(int(street.name[7:]), set()))
    found = gate.streets(tmp_path, gate.ODDITY_PART)
    assert len({street.folder for street in found}) == gate.ODDITY_PART and {
        oddity for street in found for oddity in street.oddities
    } == set(Oddity)
    for bounds, first, second in zip(gate.DEMANDS, found[:: gate.SEEDS], found[1 :: gate.SEEDS], strict=False):
        assert bounds[0] <= first.vehicles_per_lane_h == second.vehicles_per_lane_h <= bounds[1]
        assert first.folder == second.folder and second.name == f"{first.name} (2)" and first.seed != second.seed
    assert found == gate.streets(tmp_path, gate.ODDITY_PART)
    assert {gate.LIGHT, gate.USUAL, gate.SATURATED} == set(gate.DEMANDS)
