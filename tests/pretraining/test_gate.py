"""The gate's streets and its verdicts."""

import csv
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evaluation.arms import BASELINES
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
    return {verdict.name: verdict for verdict in gate.judge(found, {}, [n for n in found["a"] if n != REFERENCE])}


def failure(found, name):
    return judged(found)[name].failure


RESULTS = st.none() | st.builds(StreetResult, st.floats(0, 500), st.integers(0, 100), st.just(110), st.floats(0, 500))


@given(st.lists(st.fixed_dictionaries({name: RESULTS for name in (REFERENCE, "a", "b", "c")}), min_size=1))
def test_adding_an_arm_changes_no_other_arms_verdict(rows):
    found = {str(k): row for k, row in enumerate(rows)}
    assume(any(row[REFERENCE] is not None for row in rows))
    alone = {
        name: gate.judge({s: {k: row[k] for k in (REFERENCE, name)} for s, row in found.items()}, {}, [name])
        for name in "abc"
    }
    assert [alone[name][0] for name in "abc"] == gate.judge(found, {}, ["a", "b", "c"])


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


def test_the_best_is_the_fastest_of_those_that_pass():
    verdicts = gate.judge(results(c=(11.4, 11.4), bad=(1, 500), b=(10, 10), a=(11, 11)), {}, ["c", "bad", "b", "a"])
    assert gate.best(verdicts).name == "b" and gate.best(verdicts[:1]).name == "c"
    assert gate.best([verdict for verdict in verdicts if verdict.name == "bad"]) is None


def plain(own_s, **baselines_s):
    """A plain street with 100 vehicles for each of a network's delays; other baselines have 50 s."""
    delays_s = {name: 50.0 for name in BASELINES} | {name.replace("_", "-"): s for name, s in baselines_s.items()}
    return [
        {name: StreetResult(s, 100, 100, s) for name, s in {**delays_s, "own": own}.items()} for own in own_s
    ]  # fmt: skip


def on_plain(*streets):
    (verdict,) = gate.judge(results(own=(10, 20)), {f"p{k}": street for k, street in enumerate(streets)}, ["own"])
    return verdict


@pytest.mark.parametrize("best", ["fixed", "actuated", "max_pressure", "greedy"])
def test_a_network_fails_for_a_plain_street_on_which_any_baseline_is_far_better(best):
    limit_s = gate.MAX_PLAIN_RATIO * (20 + gate.EXTRA_S) - gate.EXTRA_S
    good = [plain([1.0])] * 9
    assert on_plain(*good, plain([limit_s - 0.01], **{best: 20.0})).failure == ""
    beyond = on_plain(*good, plain([limit_s + 0.1], **{best: 20.0}))
    assert beyond.failure == (
        f"more than 1.1 times the best baseline's delay on 1 of 10 plain streets: p9 (1.10 times {best.replace('_', '-')})"
    )


def test_small_delays_do_not_count_on_plain_streets():
    good = [plain([1.0])] * 9
    assert on_plain(*good, plain([2.5], actuated=2.0)).failure == "", "1.25 times 2 s"
    assert on_plain(*good, plain([50.0 * 1.25])).failure != ""


def test_the_delay_of_a_plain_street_is_the_mean_over_its_demands():
    good = [plain([1.0])] * 9
    assert on_plain(*good, plain([70.0, 30.0])).failure == ""
    assert "p9 (1.45 times" in on_plain(*good, plain([70.0, 80.0])).failure


def test_a_network_must_be_better_on_most_plain_streets():
    half = on_plain(plain([49.0]), plain([49.0]), plain([50.0]), plain([51.0]))
    assert half.failure == "less delay than every baseline on only 2 of 4 plain streets"
    assert on_plain(plain([49.0]), plain([49.0]), plain([51.0])).failure == ""
    worse_than_one = [plain([49.0], greedy=48.0)] * 2
    assert on_plain(*worse_than_one, plain([1.0])).plain_better == 1, "better than the best, not than the mean"


def test_a_plain_street_that_sumo_ends_early_counts_against_its_arm_alone():
    good = [plain([1.0])] * 9
    ended, baseline_ended = plain([10.0, 10.0]), plain([10.0, 10.0], actuated=1.0)
    ended[1]["own"] = None
    baseline_ended[0]["actuated"] = None
    assert "p9 (inf times" in on_plain(*good, ended).failure and on_plain(*good, ended).plain_better == 9
    assert on_plain(*good, baseline_ended).failure == ""
    for baseline in BASELINES:
        ended[0][baseline] = None
    assert on_plain(*good, ended).failure == "" and on_plain(*good, ended).plain_count == 9


def test_plain_streets_have_every_baseline_and_the_same_demands(tmp_path, monkeypatch):
    monkeypatch.setattr(gate.plain_kinds, "write", lambda folder: [folder / "a", folder / "b"])
    found = gate.plain_streets(tmp_path)
    assert [street.name for street in found] == ["a", "a (2)", "b", "b (2)"]
    assert [street.seed for street in found[:2]] == [street.seed for street in found[2:]]
    assert {street.baselines for street in found} == {BASELINES}
    by_street = gate.by_street(found, {street.name: {"own": street.name} for street in found})
    assert by_street == {"a": [{"own": "a"}, {"own": "a (2)"}], "b": [{"own": "b"}, {"own": "b (2)"}]}


def test_a_street_without_vehicles_does_not_count():
    found = results(x=(10, 10))
    found["a"] = {name: StreetResult(0, 0, 0, 0) for name in found["a"]}
    (verdict,) = gate.judge(found, {}, ["x"])
    assert verdict.mean_delay_s == pytest.approx(10) and verdict.worst_street == "b"
    found["b"] = found["a"]
    with pytest.raises(SimulationFailed, match="no street with a vehicle"):
        gate.judge(found, {}, ["x"])


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
