"""Arms on many streets."""

import csv
import math
from dataclasses import replace

import pytest

from city import config
from city.errors import InputError
from evaluation import road_users
from evaluation.arms import parse
from evaluation.policy_models import with_street_dialect
from greenserve.__main__ import main
from pretraining import evaluate_command as streets_command
from pretraining import plain_kinds, street_results
from pretraining.evaluate_command import compare
from pretraining.street_results import StreetJob, StreetResult, combined, moves_too_few, run_job
from pretraining.streets import city_of
from pretraining.synthetic.streets import generate
from simulation.trips import read_trips
from tests.conftest import GRID
from tests.error_lines import refused


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    return [generate(folder, seed) for seed in (0, 3)]


def result(delay_s, finished=100, total=100, duration_s=10):
    return StreetResult(delay_s, finished, total, duration_s)


def once(results):
    """Results of streets with one demand each."""
    return {street: {arm: [result] for arm, result in by_arm.items()} for street, by_arm in results.items()}


def table(folder):
    return list(csv.DictReader((folder / "streets.csv").open()))


def evaluate(streets, *arguments):
    return main(["pretrain", "evaluate", "--streets", str(streets[0].parent), *map(str, arguments)])


def run(street, arms, seconds, vehicles_per_lane_h=100.0):
    """By arm, its result."""
    return {arm.name: run_job(StreetJob("", street, 5, vehicles_per_lane_h, seconds, arm)) for arm in parse(arms)}


def test_arms_of_a_street_have_the_same_vehicles(streets):
    results = run(streets[0], "max-pressure,fixed,actuated,greedy", 200.0)
    assert len({result.total for result in results.values()}) == 1
    assert len({result.delay_s for result in results.values()}) == 4


def test_a_walker_counts_as_a_vehicle_in_the_delay(tmp_path, monkeypatch):
    read = []
    for name, reader in (("read_trips", read_trips), ("walkers_lost_s", road_users.walkers_lost_s)):
        owner = street_results if name == "read_trips" else road_users
        monkeypatch.setattr(owner, name, lambda path, reader=reader: read.append(reader(path)) or read[-1])
    street = plain_kinds.write(tmp_path, [kind for kind in plain_kinds.KINDS if kind.name == "legs-2-footway"])[0]
    result = run(street, "fixed", 200.0)["fixed"]
    trips, walkers_s = read
    assert result.walkers == len(walkers_s) > 10 and result.total == trips.total
    lost_s = trips.delay_s * trips.total + sum(walkers_s)
    assert result.delay_s == pytest.approx(lost_s / (trips.total + len(walkers_s)))
    assert result.delay_s > 1.2 * trips.delay_s, "walkers wait longer"
    assert result.duration_s == trips.duration_s != trips.delay_s, "in the network, of vehicles alone"


@pytest.mark.slow
def test_a_demand_that_gridlocks_every_arm_is_a_result_and_no_failure(streets):
    results = run(streets[1], "pretrained,max-pressure", 300.0, 3000.0)
    assert all(0 < own.finished < 0.5 * own.total and own.delay_s < 300.0 for own in results.values()), results
    assert compare(once({"a": results}), "pretrained", "max-pressure").gridlocks == ()


def test_a_comparison_names_worse_streets_and_gridlocks_of_the_candidate_alone():
    results = {
        "a": {"x": result(10), "y": result(20)},
        "b": {"x": result(40, 50), "y": result(20)},
        "c": {"x": result(400, 10), "y": result(400, 20)},
    }
    comparison = compare(once(results), "x", "y")
    assert comparison.better == pytest.approx(1 / 3) and comparison.worse == ("b",)
    assert comparison.ratio.mean == pytest.approx(1.0) and comparison.worst_ratio == 2.0
    assert comparison.gridlocks == ("b", "c")
    x, y = results["b"].values()
    assert moves_too_few(x, y) and not moves_too_few(y, x)


def test_a_street_that_sumo_ends_early_counts_against_that_arm():
    comparison = compare(once({"a": {"x": None, "y": result(10)}, "b": {"x": None, "y": None}}), "x", "y")
    assert (comparison.streets, comparison.better, comparison.worse, comparison.ratio) == (1, 0.0, ("a",), None)
    comparison = compare(once({"a": {"x": result(10), "y": None}, "b": dict.fromkeys("xy", result(10))}), "x", "y")
    assert (comparison.better, comparison.arm_ended, comparison.worse) == (0.5, ("a",), ())


def test_the_demands_of_a_street_are_one_street_and_a_gridlock_with_one_of_them_is_named():
    x, y = [result(10, duration_s=20), result(60, 60, 300, 70)], [result(30), result(30, 200, 300)]
    comparison = compare({"a": {"x": x, "y": y}, "b": {"x": x[:1], "y": y[:1]}}, "x", "y")
    assert (comparison.streets, comparison.better, comparison.worse) == (2, 0.5, ("a",))
    assert comparison.worst_ratio == pytest.approx((10 * 100 + 60 * 300) / 400 / 30) and comparison.gridlocks == ("a",)
    assert combined(x) == result(47.5, 160, 400, 57.5) and combined([*x, None]) is None
    assert combined([result(0, 0, 0, 0)]) == result(0, 0, 0, 0)
    walkers = [StreetResult(10, 90, 100, 20, 300), StreetResult(60, 60, 300, 70, 100)]
    assert combined(walkers) == StreetResult(35, 150, 400, 57.5, 400), "walkers have no duration"
    comparison = compare({"a": {"x": [x[0], None], "y": y}}, "x", "y")
    assert comparison.ended == comparison.worse == ("a",) and not comparison.gridlocks


def test_many_streets_have_an_interval_and_a_sign_test():
    results = once({str(k): {"x": result(8 + k % 4), "y": result(12)} for k in range(20)})
    comparison = compare(results, "x", "y")
    assert comparison.p_value == pytest.approx(2 / 2**20)
    ratio = comparison.ratio
    assert 8 / 12 < ratio.low < ratio.mean < ratio.high < 11 / 12
    assert ratio.mean == pytest.approx((8 * 9 * 10 * 11) ** 0.25 / 12)
    single = compare({"0": results["0"]}, "x", "y")
    assert math.isinf(single.ratio.high) and single.p_value == 1.0


def test_the_command_compares_arms_and_counts_a_street_that_sumo_ends_early(streets, tmp_path, monkeypatch, capsys):
    run_job, broken = street_results.run_job, (streets[0].name, "fixed")
    monkeypatch.setattr(
        street_results,
        "run_job",
        lambda job: "it crashed" if (job.name, job.arm.name) == broken else run_job(job),
    )
    assert evaluate(streets, "--arms", "max-pressure,fixed", "--seconds", "120", "--out", tmp_path) == 0
    printed = capsys.readouterr()
    assert f"fixed has no result on {broken[0]}: it crashed" in printed.err
    assert "2 streets; means over the 1 of them on which every arm has a result" in printed.out
    assert "max-pressure against fixed: less delay on" in printed.out
    assert f"SUMO has ended fixed alone early, so max-pressure counts as better: {broken[0]}" in printed.out
    rows = {(row["street"], row["arm"]): row for row in table(tmp_path)}
    assert list(rows) == [(street.name, arm) for street in streets for arm in ("max-pressure", "fixed")]
    assert rows.pop(broken)["delay_s"] == ""
    # a vehicle that waits to depart loses time outside of the network
    assert all(0 < float(row["duration_s"]) < 120 and row["duration_s"] != row["delay_s"] for row in rows.values())


def test_demands_have_one_seed_after_another(streets, tmp_path, monkeypatch, capsys):
    jobs, run_job = [], street_results.run_job
    monkeypatch.setattr(street_results, "run_job", lambda job: jobs.append(job) or run_job(job))
    arguments = ["--arms", "fixed", "--seconds", "60", "--out", tmp_path]
    assert evaluate(streets, *arguments, "--demands", "3", "--first-seed", "7") == 0
    assert [(job.street, job.seed) for job in jobs] == [
        (street, seed) for street, first in zip(streets, (7, 8), strict=True) for seed in range(first, first + 3)
    ]
    assert len({job.vehicles_per_lane_h for job in jobs[:3]}) == 3
    rows = table(tmp_path)
    assert [(row["street"], row["demand"]) for row in rows] == [(street.name, k) for street in streets for k in "123"]
    assert len({row["delay_s"] for row in rows}) == 6 and "2 streets; means" in capsys.readouterr().out
    assert evaluate(streets, *arguments, "--first-seed", "9") == 0
    assert table(tmp_path)[0]["delay_s"] == rows[2]["delay_s"]


@pytest.mark.slow
def test_plain_streets_have_their_own_demand_and_times(tmp_path, monkeypatch, capsys):
    write, kinds = streets_command.plain_kinds.write, streets_command.plain_kinds.KINDS
    monkeypatch.setattr(streets_command.plain_kinds, "write", lambda folder: write(folder, kinds[:1]))
    arguments = ["--streets", "plain", "--arms", "fixed,actuated", "--out", str(tmp_path)]
    assert main(["pretrain", "evaluate", *arguments]) == 0
    assert "6 streets; means over the 6 of them" in capsys.readouterr().out
    rows = table(tmp_path)
    totals = {row["street"]: int(row["total"]) for row in rows}
    assert totals["lanes-1-30"] < totals["lanes-1-60"] < totals["lanes-1-90"] and all(
        (tmp_path / "streets" / street / "city.toml").exists() for street in totals
    )
    assert {(row["delta_time_s"], row["all_red_s"], row["max_red_s"]) for row in rows} == {("", "", "300.0")}
    code = main(["pretrain", "evaluate", "--streets", "plain", "--arms", "fixed"])
    refused(capsys, code, "--streets plain needs --out")


@pytest.mark.parametrize(("all_red_s", "written"), [(None, ""), (0.0, "0.0"), ("computed", "computed")])
def test_the_table_has_the_times_of_a_streets_tls(all_red_s, written, tmp_path, monkeypatch, streets):
    """Each time is another number, so that no two columns can be exchanged."""

    def drawn(folder):
        city = city_of(folder)
        tls = {name: replace(tl, delta_time_s=3, min_green_s=7.0) for name, tl in city.tls.items()}
        return replace(city, safety=replace(city.safety, all_red_s=all_red_s, max_red_s=120.0), tls=tls)

    monkeypatch.setattr(streets_command, "city_of", drawn)
    monkeypatch.setattr(street_results, "run_job", lambda job: result(10))
    assert evaluate(streets, "--arms", "fixed", "--out", tmp_path) == 0
    for row in table(tmp_path):
        assert [float(row[name]) for name in ("delta_time_s", "min_green_s", "max_red_s")] == [3, 7, 120]
        assert row["all_red_s"] == written


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--arms", "served,fixed"], "arm served is for a city"),
        (["--arms", "fixed", "--gate", "fixed"], "unrecognized arguments: --gate fixed"),
        (["--arms", "policy:missing.policy"], "missing.policy"),
        (["--arms", "policy:"], "is not one of"),
    ],
)
def test_wrong_flags_are_one_line(flags, text, streets, capsys):
    refused(capsys, evaluate(streets, "--seconds", "60", *flags), text)


@pytest.mark.slow
def test_the_pretrained_policy_is_an_arm_of_a_city_of_any_dialect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "city.toml").write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.A]\nsignals = ["A0"]\ndialect = "sumo-rl"\n'
        '[tl.B]\nsignals = ["C1", "C2"]\ndialect = "sappo"\nstate = "vd"\naction = "kc"\naction_t_s = 5\n'
    )
    assert main(["evaluate", "--arms", "pretrained,fixed", "--seeds", "1", "--seconds", "120", "--out", "out"]) == 0
    assert "pretrained" in capsys.readouterr().out and "SHA-256" in (tmp_path / "out" / "report.html").read_text()
    pictures = (tmp_path / "out" / "signals-1-pretrained.html").read_text()
    assert all(signal in pictures for signal in ("A0", "C1", "C2"))


def test_only_tls_of_another_dialect_get_the_default_times():
    city = config.load(GRID / "city.toml")
    own = config.TL(("A0",), "street", "A", delta_time_s=8, min_green_s=9.0)
    other = config.TL(("B0",), "sumo-rl", "B", delta_time_s=8, min_green_s=9.0)
    tls = with_street_dialect(replace(city, tls={"A": own, "B": other})).tls
    assert tls == {"A": own, "B": config.TL(("B0",), "street", "B")}


def test_a_tl_with_the_name_of_one_of_several_signals_is_refused():
    city = config.load(GRID / "city.toml")
    several = next(name for name, tl in city.tls.items() if len(tl.signals) > 1)
    single = next(tl for tl in city.tls.values() if len(tl.signals) == 1)
    tls = {**city.tls, f"{several}.2": replace(single, name=f"{several}.2")}
    with pytest.raises(
        InputError, match=rf"\[tl.{several}\] has several signals.*{several}\.2 is the name of another TL"
    ):
        with_street_dialect(replace(city, tls=tls))
