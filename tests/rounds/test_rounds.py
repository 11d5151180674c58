"""Rounds: groups, what is kept, a round on the sample city's own checkpoints, and what is resumed."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from city import config, run_lock
from city.errors import InputError
from evaluation import statistics
from export import pretrained
from export.checkpoints import phase_networks
from greenserve.__main__ import main as greenserve
from rounds import rounds as rounds_module
from rounds.__main__ import LOCK_FILE, main
from rounds.rounds import GroupTraining, Rounds, RoundsConfig, TrainedGroup, train_group
from simulation import model_files
from simulation.executors import ThisProcess
from tests.conftest import GRID
from tests.error_lines import assert_refused as refused
from tests.evaluation.outcomes import ZERO
from training.episode import TrainingTask
from training.learning import Learning
from training.phase_competition.networks import load_policy
from training.settings import Settings, TrainingStart
from training.statistics import NotFinite

CITY = ("--city", str(GRID / "city.toml"))
GROUPS = (("SA101", "SA102", "SA103", "SA104"), ("SA105", "SA106", "SA107", "SA108"))
REACHABLE_LEVEL = 0.05
"""A family-wise level that three simulations can reach in the first round."""
EVERY = ";".join(",".join(group) for group in GROUPS)


def outcomes(delays, **by_tl):
    return [
        replace(ZERO, seed=k, delay_s=delay, delay_by_tl={tl: values[k] for tl, values in by_tl.items()})
        for k, delay in enumerate(delays)
    ]


def test_new_model_is_better_if_its_whole_interval_is():
    before = outcomes([9, 9, 9], A=[5, 6, 7], B=[5, 6, 7], C=[5, 6, 7])
    new = outcomes([9, 9, 9], A=[3, 4, 5.1], B=[1, 9, 2], C=[6, 7, 8])
    assert rounds_module.better_tls(before, new, 1) == ["A"], "B only by chance, C is worse"


def test_tls_that_are_better_by_chance_alone_are_rare():
    """16 TLs and 5 rounds, without any difference: a wrong TL in at most 2.5 % of such runs of rounds."""
    rng = np.random.default_rng(1)
    wrong, single = 0, 0
    for _ in range(30):
        for number, (before, new) in enumerate(rng.normal(10, 1, (5, 2, 16, 10)), 1):
            arms = ({f"T{tl}": values.tolist() for tl, values in enumerate(arm)} for arm in (before, new))
            wrong += bool(rounds_module.better_tls(*(outcomes([9] * 10, **by_tl) for by_tl in arms), number))
            single += sum(statistics.p_value(a, b) < 0.025 for a, b in zip(new, before, strict=True))
    assert wrong <= 2 and single > 45, "uncorrected, two TLs of a run"


def test_levels_of_any_number_of_rounds_add_up_to_the_family_level():
    """`--resume` may raise `--rounds`: a round's level must not depend on how many were planned."""
    levels = [rounds_module.level_of(number) for number in range(1, 1001)]
    assert (
        sum(levels) == pytest.approx(rounds_module.FAMILY_LEVEL, rel=2e-3) and sum(levels) < rounds_module.FAMILY_LEVEL
    )
    assert rounds_module.better_tls(outcomes([9] * 3, A=[5, 6, 7.0]), outcomes([9] * 3, A=[3, 4, 5.5]), 1) == ["A"]
    assert rounds_module.better_tls(outcomes([9] * 3, A=[5, 6, 7.0]), outcomes([9] * 3, A=[3, 4, 5.5]), 9) == []


def test_holm_rejects_step_by_step_and_equal_differences_are_certain():
    assert statistics.holm([0.02, 0.001, 0.5], 0.05) == [True, True, False]
    assert statistics.holm([0.03, 0.03, 0.03], 0.05) == [False] * 3
    assert statistics.holm([], 0.05) == []
    assert [statistics.p_value([delay_s] * 3, [2, 2, 2]) for delay_s in (1, 2, 3)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("new", "mixed", "chosen"),
    [
        ([20, 21, 22], [25, 26, 27], "new"),
        ([20, 21, 22], [15, 16, 17.1], "mixed"),
        ([40, 41, 42], [31, 32, 33], "before"),
        ([10, 50, 20], [31, 32, 33], "before"),
        ([40, 41, 42], None, "before"),
    ],
)
def test_what_is_kept_is_better_than_before_by_the_interval(new, mixed, chosen):
    results = {"before": outcomes([30, 31, 32.1]), "new": outcomes(new)}
    # the fresh demand has more delay in both arms
    fresh = {"before": outcomes([40, 41, 42.1]), "mixed": outcomes([delay + 10 for delay in mixed])} if mixed else {}
    assert rounds_module.choose(results, fresh, 1) == chosen


class SampleCheckpoints(ThisProcess):
    """Instead of hours of training, the sample city's checkpoints; everything else is as ever."""

    def __init__(self):
        self.trainings = []

    def run(self, function, jobs, cpus=1):
        if function is not train_group:
            yield from super().run(function, jobs, cpus)
            return
        for index, job in enumerate(jobs):
            self.trainings.append(job)
            files = {path.name: path for path in (GRID / "checkpoints").iterdir() if path.name != "README.md"}
            yield index, TrainedGroup(40.0, model_files.pack(files))


def plan(out, rounds=1, seconds=450.0, seeds=3):
    city = config.load(GRID / "city.toml")
    task, settings = TrainingTask(city, (), seconds=seconds), Settings(out, varies=False)
    return RoundsConfig(city, GROUPS, rounds, task, settings, seeds)


def rounds(config, executor=None, resume=False, report=print):
    return Rounds(config, executor or SampleCheckpoints(), resume, report)


@pytest.fixture(scope="module")
def first_round(tmp_path_factory):
    """(folder, executor, kept versions, lines) of a round whose models are better than fixed plans."""
    out, executor, lines = tmp_path_factory.mktemp("rounds"), SampleCheckpoints(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds_module, "FAMILY_LEVEL", REACHABLE_LEVEL)
        kept = rounds(plan(out), executor, report=lines.append).run()
    return out, executor, kept, lines


def test_models_that_are_better_are_kept_under_the_rounds_number(first_round):
    out, _, kept, lines = first_round
    (decision,) = json.loads((out / "rounds.json").read_text())["rounds"]
    fresh_s, validated_s = decision["mean_delay_on_fresh_demand_s"], decision["mean_delay_s"]
    reduced_s = {"new": validated_s["before"] - validated_s["new"], "mixed": fresh_s["before"] - fresh_s["mixed"]}
    assert decision["chosen"] == max(reduced_s, key=reduced_s.get) and min(reduced_s.values()) > 0
    seeds = {arm: [s["seed"] for s in decision["simulations"] if s["arm"] == arm] for arm in ("before", "new", "mixed")}
    assert seeds["before"] == seeds["new"] + seeds["mixed"] and not set(seeds["new"]) & set(seeds["mixed"])
    assert kept and {tl: path.relative_to(out.resolve()) for tl, path in kept.items()} == {
        tl: Path("models") / tl / "1" for tl in decision["kept"]
    }
    assert {path.name for path in (out / "models").iterdir()} == decision["kept"].keys()
    assert all((path / "saved_model.pb").is_file() for path in kept.values())
    assert lines[-1].startswith("round 1: mean delay before ")


def test_groups_learn_beside_the_models_of_the_round_before(first_round, tmp_path, monkeypatch):
    out, executor, kept, _ = first_round
    assert [(job.task.target_tls, job.task.infer_tls) for job in executor.trainings] == [(g, ()) for g in GROUPS]
    shutil.copytree(out, tmp_path / "out")
    second = SampleCheckpoints()

    monkeypatch.setattr(rounds_module.single_model, "export", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rounds(plan(tmp_path / "out", 2), second, resume=True).run()
    for group, job in zip(GROUPS, second.trainings, strict=True):
        assert job.task.target_tls == group and set(job.task.infer_tls) == kept.keys() - set(group) == job.models.keys()
        assert job.settings.number == 2 and job.settings.seed != executor.trainings[0].settings.seed


@pytest.mark.slow
def test_interrupted_round_is_resumed_where_it_was(first_round, tmp_path, monkeypatch):
    decided = json.loads((first_round[0] / "rounds.json").read_text())
    executor = SampleCheckpoints()
    monkeypatch.setattr(rounds_module, "FAMILY_LEVEL", REACHABLE_LEVEL)

    with monkeypatch.context() as patch:
        patch.setattr(rounds_module.paired_runs, "run", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rounds(plan(tmp_path), executor).run()
    assert len(executor.trainings) == 2
    shutil.rmtree(tmp_path / "round_1" / "group_2")
    shutil.rmtree(tmp_path / "round_1" / "models" / "SA101")
    lines = []
    rounds(plan(tmp_path), executor, resume=True, report=lines.append).run()
    assert len(executor.trainings) == 3, "only the group without a result was trained again"
    assert [line.partition(":")[0] for line in lines if " -> " in line] == ["SA101"], "exported once more"
    assert json.loads((tmp_path / "rounds.json").read_text())["rounds"] == decided["rounds"]


def test_rounds_are_resumed_with_the_same_flags_only(first_round):
    out = first_round[0]
    city = replace(plan(out).city, safety=config.Safety(min_green_s=20))
    for rounds_config, resume, message in (
        (plan(out), False, r"there are rounds already; pass --resume"),
        (plan(out, seconds=700.0), True, r"had another --seconds; pass the same"),
        (replace(plan(out), city=city, task=replace(plan(out).task, city=city)), True, r"had another .*\[safety\]"),
        (plan(out / "other"), True, r"there are no rounds to resume"),
    ):
        with pytest.raises(InputError, match=message):
            rounds(rounds_config, resume=resume)


def test_second_rounds_in_a_folder_are_refused(tmp_path, capsys):
    with run_lock.held(tmp_path / LOCK_FILE, ""):
        assert main([*CITY, "--groups", EVERY, "--out", str(tmp_path)]) == 2
    refused(capsys, f"{tmp_path}: other rounds run in this folder; wait for their end, or pass another --out")


@pytest.mark.parametrize("damaged", ["{", '{"identity": null, "rounds": []}', None])
def test_rounds_whose_state_is_damaged_or_gone_are_refused(damaged, tmp_path):
    (tmp_path / "round_1" / "group_1").mkdir(parents=True)
    if damaged is not None:
        (tmp_path / "rounds.json").write_text(damaged)
    message = r"has results of rounds, but no rounds\.json; pass another --out"
    with pytest.raises(InputError, match=message if damaged is None else "is not the state of rounds"):
        rounds(plan(tmp_path), resume=damaged is not None)


@pytest.mark.slow
def test_group_whose_numbers_are_not_finite_ends_with_its_best_state(tmp_path, monkeypatch):
    """The round goes on with the other groups' models, and without this one's if it was never evaluated."""

    class Diverging(SampleCheckpoints):
        def run(self, function, jobs, cpus=1):
            for index, trained in super().run(function, jobs, cpus):
                if function is train_group and index == 0:
                    trained = TrainedGroup(math.inf, model_files.pack({}), "a loss is not finite any more")
                yield index, trained

    lines = []
    monkeypatch.setattr(rounds_module, "FAMILY_LEVEL", REACHABLE_LEVEL)
    kept = rounds(plan(tmp_path), Diverging(), report=lines.append).run()
    assert "round 1, group SA101,SA102,SA103,SA104: no validation" in lines[0] and "ended early: a loss" in lines[0]
    assert kept and not kept.keys() & set(GROUPS[0])


def test_training_of_a_group_survives_a_number_that_is_not_finite(grid_city, tmp_path, monkeypatch):
    monkeypatch.setattr(Learning, "learn", Mock(side_effect=NotFinite("a loss is not finite any more")))
    task = TrainingTask(grid_city, ("SA101",), seconds=50.0)
    trained = train_group(GroupTraining("g", task, Settings(tmp_path, episodes=1, evaluate_every=1, held_out=1), {}))
    assert trained.reason == "a loss is not finite any more" and trained.validation_delay_s == math.inf


def street_city(folder):
    sumocfg, city = str(GRID / "grid.sumocfg"), folder / "city.toml"
    assert greenserve(["city", "init", "--sumocfg", sumocfg, "--dialect", "street", "--out", str(city)]) == 0
    return city


@pytest.mark.slow
def test_group_starts_from_a_policy(tmp_path):
    """The files of a group's training are those of the policy that it started from, with other weights or the same."""
    city_file = street_city(tmp_path)
    start = TrainingStart(street=load_policy(pretrained.policy()))
    settings = Settings(tmp_path, episodes=1, episodes_per_update=1, evaluate_every=1, held_out=1, start=start)
    task = TrainingTask(config.load(city_file), ("A0",), seconds=100.0)
    model_files.unpack(train_group(GroupTraining("g", task, settings, {})).files, tmp_path)
    training = phase_networks.description_of(tmp_path / "street_trial_1.policy")["training"]
    assert training["trained_on"] == ["A0"]


@pytest.mark.slow
def test_groups_of_the_street_dialect_train_one_network_each(tmp_path):
    """Real training, from a city's network to the decision on its models."""
    city = street_city(tmp_path)
    groups, out = (("A0", "A1", "A2", "B0", "B1"), ("B2", "C0", "C1", "C2")), tmp_path / "out"
    flags = ["--rounds", "1", "--seeds", "2", "--episodes", "2", "--episodes-per-update", "1", "--evaluate-every", "1"]
    flags += ["--seconds", "300", "--held-out", "1", "--groups", ";".join(",".join(group) for group in groups)]
    assert main(["--city", str(city), "--out", str(out), *flags]) == 0
    for number, group in enumerate(groups, 1):
        policy = out / "round_1" / f"group_{number}" / "street_trial_1.policy"
        training = phase_networks.description_of(policy)["training"]
        assert training["trained_on"] == list(group)
    (decision,) = json.loads((out / "rounds.json").read_text())["rounds"]
    assert {simulation["arm"] for simulation in decision["simulations"]} >= {"before", "new"}
    assert sorted(path.parent.name for path in (out / "round_1" / "models").glob("*/1")) == sorted(sum(groups, ()))


def test_city_without_vehicles_is_refused(tmp_path):
    with pytest.raises(InputError, match="no vehicle departs"):
        rounds(plan(tmp_path, seconds=1.0)).run()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--groups", "SA101"), "SA102, SA103, SA104, SA105, SA106, SA107, SA108 are in no group"),
        (("--groups", EVERY + ";SA101"), "SA101 is in two groups"),
        (("--groups", EVERY + ";SA999"), "SA999 is not one of the TLs"),
        (("--groups", "SA101,SA101;" + EVERY), "SA101 is twice in 'SA101,SA101'"),
        (("--groups", ";"), "are in no group"),
        (("--groups", EVERY, "--rounds", "0"), "--rounds: 0 must lie between 1"),
        (("--groups", EVERY, "--seeds", "1"), "--seeds: 1 must lie between 2"),
        (("--groups", EVERY, "--ray", "127.0.0.1:1"), "no Ray cluster answers there"),
        (("--groups", EVERY, "--ray", "auto", "--tasks", "2"), "leave one of them out"),
        (("--groups", EVERY, "--hidden-sizes", "x"), "--hidden-sizes 'x' must be integers"),
        (
            ("--groups", EVERY, "--start-from", "pretrained"),
            "is a policy for the dialect street, and city.toml has dialect sumo-rl for SA101",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(flags, message, tmp_path, capsys):
    assert main([*CITY, "--out", str(tmp_path / "out"), *flags]) == 2
    refused(capsys, message)
    assert not (tmp_path / "out").exists()
