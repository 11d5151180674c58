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

SLOWEST_S = gate.MAX_RATIO * (30 + gate.EXTRA_S) - gate.EXTRA_S
"""Delay at the bound, if the reference has 30 s."""
SLOWEST_PLAIN_S = gate.MAX_PLAIN_RATIO * (20 + gate.EXTRA_S) - gate.EXTRA_S
"""Delay at the bound on a plain street, if the best baseline has 20 s."""


def result(value):
    """A result of 110 vehicles. `value`: its delay, (delay, arrivals), or None."""
    if value is None:
        return None
    delay_s, finished = value if isinstance(value, tuple) else (value, 100)
    return StreetResult(delay_s, finished, 110, 50.0)


def results(reference=(20, 30), **values):
    """By name, the results on streets a and b."""
    by_name = {REFERENCE: reference, **values}
    return {street: {name: result(own[k]) for name, own in by_name.items()} for k, street in enumerate("ab")}


def judged(found):
    (verdict,) = gate.judge(found, {}, ["own"])
    return verdict


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


@pytest.mark.parametrize(
    ("own", "reference", "failure"),
    [
        ((10, 20), (20, 30), ""),
        ((10, (20, 60)), (20, 30), "gridlock where max-pressure has none, on b"),
        ((10, (20, 60)), (20, (30, 55)), ""),
        ((1, SLOWEST_S), (20, 30), ""),
        ((1, SLOWEST_S + 1), (20, 30), "1.53 times as slow as max-pressure on b, more than 1.5 times"),
        ((10, None), (20, 30), "SUMO has ended its simulation early, and not max-pressure's, on b"),
        ((10, None), (20, None), ""),
    ],
)
def test_a_network_fails_for_one_street_on_which_the_reference_is_far_better(own, reference, failure):
    assert judged(results(reference, own=own)).failure == failure


def test_streets_without_a_result_or_vehicle_of_the_reference_do_not_count():
    assert judged(results((20, None), own=(10, 20))).mean_delay_s == pytest.approx(10)
    found = results(own=(10, 10))
    found["a"] = {name: StreetResult(0, 0, 0, 0) for name in found["a"]}
    assert judged(found).mean_delay_s == pytest.approx(10) and judged(found).worst_street == "b"
    found["b"] = found["a"]
    with pytest.raises(SimulationFailed, match="no street with a vehicle"):
        judged(found)


def test_the_table_has_empty_cells_where_sumo_ends_a_simulation_early():
    found = results((20, None), own=(None, 20))
    streets = [gate.GateStreet(Path(name), 1, 50.0, ()) for name in "ab"]
    rows = {(row["street"], row["network"]): row for row in csv.DictReader(gate.table(streets, found).splitlines())}
    cells = {key: [row[name] for name in ("delay_s", "gridlock", "ratio")] for key, row in rows.items()}
    assert cells["a", "own"] == ["", "", ""] and cells["b", "own"] == ["20.000", "", ""]
    assert cells["a", REFERENCE] == ["20.000", "0", "1.000"]


def test_the_best_is_the_fastest_of_those_that_pass():
    verdicts = gate.judge(results(c=(11.4, 11.4), bad=(1, 500), b=(10, 10), a=(11, 11)), {}, ["c", "bad", "b", "a"])
    assert gate.best(verdicts).name == "b" and gate.best(verdicts[:1]).name == "c"
    assert gate.best([verdict for verdict in verdicts if verdict.name == "bad"]) is None


def plain(*own_s, **baselines_s):
    """A plain street with 100 vehicles for each of a network's delays; other baselines have 50 s, None: no result."""
    delays_s = dict.fromkeys(BASELINES, 50.0) | {name.replace("_", "-"): s for name, s in baselines_s.items()}
    return [
        {name: None if s is None else StreetResult(s, 100, 100, s) for name, s in {**delays_s, "own": own}.items()}
        for own in own_s
    ]


def on_plain(*streets):
    (verdict,) = gate.judge(results(own=(10, 20)), {f"p{k}": street for k, street in enumerate(streets)}, ["own"])
    return verdict


@pytest.mark.parametrize("best", ["fixed", "actuated", "max_pressure", "greedy"])
def test_a_network_fails_for_a_plain_street_on_which_any_baseline_is_far_better(best):
    good = [plain(1.0)] * 9
    assert on_plain(*good, plain(SLOWEST_PLAIN_S - 0.01, **{best: 20.0})).failure == ""
    beyond = on_plain(*good, plain(SLOWEST_PLAIN_S + 0.1, **{best: 20.0}))
    assert beyond.failure == (
        f"more than 1.1 times the best baseline's delay on 1 of 10 plain streets: p9 (1.10 times {best.replace('_', '-')})"
    )


@pytest.mark.parametrize(
    ("street", "failure", "better", "count"),
    [
        (plain(2.5, actuated=2.0), "", 9, 10),  # 1.25 times a small delay
        (plain(62.5), "p9 (1.23 times", 9, 10),
        (plain(70.0, 30.0), "", 9, 10),  # the mean over its demands
        (plain(70.0, 80.0), "p9 (1.45 times", 9, 10),
        (plain(10.0, None), "p9 (inf times", 9, 10),
        (plain(10.0, 10.0, actuated=None), "", 10, 10),
        (plain(10.0, **dict.fromkeys(("fixed", "actuated", "max_pressure", "greedy"))), "", 9, 9),
    ],
)
def test_a_plain_street_counts_by_the_mean_of_its_demands(street, failure, better, count):
    verdict = on_plain(*[plain(1.0)] * 9, street)
    assert failure in verdict.failure and bool(failure) is bool(verdict.failure)
    assert (verdict.plain_better, verdict.plain_count) == (better, count)


def test_a_network_must_be_better_than_the_best_baseline_on_most_plain_streets():
    half = on_plain(plain(49.0), plain(49.0), plain(50.0), plain(51.0))
    assert half.failure == "less delay than every baseline on only 2 of 4 plain streets"
    assert on_plain(plain(49.0), plain(49.0), plain(51.0)).failure == ""
    assert on_plain(*[plain(49.0, greedy=48.0)] * 2, plain(1.0)).plain_better == 1


def test_plain_streets_have_every_baseline_and_the_same_demands(tmp_path, monkeypatch):
    monkeypatch.setattr(gate.plain_kinds, "write", lambda folder: [folder / "a", folder / "b"])
    found = gate.plain_streets(tmp_path)
    assert [street.name for street in found] == ["a", "a (2)", "b", "b (2)"]
    assert [street.seed for street in found[:2]] == [street.seed for street in found[2:]]
    assert {street.baselines for street in found} == {BASELINES}
    by_street = gate.by_street(found, {street.name: {"own": street.name} for street in found})
    assert by_street == {"a": [{"own": "a"}, {"own": "a (2)"}], "b": [{"own": "b"}, {"own": "b (2)"}]}


def test_streets_have_each_oddity_and_every_demand(tmp_path, monkeypatch):
    rare = {gate.FIRST_SEED + k: {oddity} for k, oddity in zip(range(20, 110, 15), Oddity, strict=True)}
    monkeypatch.setattr(gate, "synthetic", lambda folder, seeds: None)
    monkeypatch.setattr(gate, "generate", lambda folder, seed: folder / f"street_{seed}")
    monkeypatch.setattr(gate.oddities, "of_street", lambda street: rare.get(int(street.name[7:]), set()))
    found = gate.streets(tmp_path, gate.ODDITY_PART)
    assert len({street.folder for street in found}) == gate.ODDITY_PART
    assert {oddity for street in found for oddity in street.oddities} == set(Oddity)
    for bounds, first, second in zip(gate.DEMANDS, found[:: gate.SEEDS], found[1 :: gate.SEEDS], strict=False):
        assert bounds[0] <= first.vehicles_per_lane_h == second.vehicles_per_lane_h <= bounds[1]
        assert first.folder == second.folder and second.name == f"{first.name} (2)" and first.seed != second.seed
    assert found == gate.streets(tmp_path, gate.ODDITY_PART)
    assert {gate.LIGHT, gate.USUAL, gate.SATURATED} == set(gate.DEMANDS)
