"""`greenserve pretrain train`, from streets to a policy file."""

import csv
from pathlib import Path

import numpy as np
import pytest

from city.errors import InputError
from export.checkpoints import phase_networks
from greenserve.__main__ import main
from pretraining import streets_trainer as trainer
from pretraining import train_command as command
from pretraining.street_results import StreetEpisode
from pretraining.streets_trainer import StreetsSettings, StreetsTrainer
from pretraining.synthetic.streets import generate
from simulation.street_simulation import SimulationFailed
from simulation.trips import Trips
from tests.error_lines import refused
from training.settings import StreetPpo

FLAGS = ["--episodes", "4", "--episodes-per-update", "2", "--seconds", "100"]
TRIPS = Trips(1, 1, 100.0, 0, 0, 0, {}, ())


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    return [generate(folder, seed) for seed in (0, 3)]


def settings(streets, out, **changes):
    values = {
        "updates": 2,
        "episodes_per_update": 2,
        "seconds": 100.0,
        "cloning_episodes": 2,
        "ppo": StreetPpo(n_epochs=1),
    }
    return StreetsSettings(out, tuple(streets), **values | changes)


def trained(streets, out, **changes):
    lines = []
    path = StreetsTrainer(settings(streets, out, **changes), lines.append).run()
    return phase_networks.load(path)[0], lines


def test_episodes_are_simulated_fullest_first_and_returned_in_order(streets, tmp_path, monkeypatch):
    own, simulated = StreetsTrainer(settings(streets, tmp_path), print), []

    def run(simulate, jobs):
        simulated.extend(jobs)
        return list(enumerate(jobs))[::-1]

    monkeypatch.setattr(own._executor, "run", run)
    jobs = [("a", [], 100.0), ("b", [], 300.0), ("c", [], 200.0)]
    assert own._simulated(jobs) == jobs
    assert [street for street, *_ in simulated] == ["b", "c", "a"]


@pytest.fixture(scope="module")
def whole(streets, tmp_path_factory):
    """(folder, arrays, lines) of a training of two updates."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, *trained(streets, folder)


@pytest.mark.slow
def test_a_training_clones_and_learns_the_same_with_two_workers_and_another_with_another_seed(whole, streets, tmp_path):
    folder, first, lines = whole
    assert lines[0].startswith("cloned ") and lines[-1].startswith("update 2 of 2")
    assert len(list(csv.DictReader((folder / "trial_1_curve.csv").open()))) == 2
    assert all(np.isfinite(array).all() for array in first.values())
    again, other = trained(streets, tmp_path / "a", workers=2)[0], trained(streets, tmp_path / "b", seed=2)[0]
    np.testing.assert_equal(again, first)
    assert not np.array_equal(first["lane_kernel_1"], other["lane_kernel_1"])


@pytest.mark.slow
def test_a_resumed_training_ends_like_an_uninterrupted_one(whole, streets, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_EVERY", 1)
    cut = StreetsTrainer(settings(streets, tmp_path), lambda line: None)
    step = cut._next_update

    def once():
        if cut._update == 1:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(cut, "_next_update", once)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    resumed, _ = trained(streets, tmp_path, resume=True)
    folder, arrays, _ = whole
    np.testing.assert_equal(resumed, arrays)
    assert (folder / "trial_1_curve.csv").read_bytes() == (tmp_path / "trial_1_curve.csv").read_bytes()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"updates": 3, "seed": 2}, "had another --seed, --episodes; pass the same flags"),
        ({"heavy": 0.9}, "was begun by another version of greenserve or SUMO"),
    ],
)
def test_a_training_resumes_with_the_same_flags_and_version_only(change, message, streets, tmp_path):
    begun = StreetsTrainer(settings(streets, tmp_path), lambda line: None)
    begun._save()
    with pytest.raises(InputError, match=message):
        StreetsTrainer(settings(streets, tmp_path, resume=True, **change), lambda line: None)


def test_an_episode_that_sumo_ends_early_is_left_out_of_an_update(streets, tmp_path, monkeypatch):
    lines, outcomes = [], ["it crashed", StreetEpisode((), (), TRIPS)]
    own = StreetsTrainer(settings(streets, tmp_path), lines.append)
    monkeypatch.setattr(own._executor, "run", lambda simulate, jobs: enumerate(outcomes))
    assert own._episodes(np.random.default_rng(0), 2, [])[0] == outcomes[1:]
    assert lines == ["left out an episode: it crashed"]
    outcomes[1] = outcomes[0]
    with pytest.raises(SimulationFailed, match="SUMO has ended every episode of an update early"):
        own._episodes(np.random.default_rng(0), 2, [])


def test_the_defaults_of_a_training_are_those_that_its_page_states(tmp_path, monkeypatch):
    prepared = []

    class Prepared:
        def __init__(self, settings, report):
            prepared.append(settings)

        def run(self):
            return tmp_path / "street_trial_1.policy"

    monkeypatch.setattr(trainer, "StreetsTrainer", Prepared)
    monkeypatch.setattr(command, "synthetic", lambda folder, seeds: [folder / f"street_{seed}" for seed in seeds])
    assert main(["pretrain", "train", "--streets", "synthetic", "--out", str(tmp_path)]) == 0
    (used,) = prepared
    page = " ".join((Path(__file__).parents[2] / "docs" / "training.md").read_text().split())
    assert (
        f"on {len(used.streets)} random streets (`--street-count`), in {used.updates} updates of "
        f"{used.episodes_per_update} episodes of {used.seconds:,.0f} s"
    ) in page
    assert f"{used.heavy:.0%} of the episodes are saturated".replace("%", " %") in page
    assert f"{used.light:.0%} have light traffic".replace("%", " %") in page


@pytest.mark.slow
def test_the_command_trains_on_the_streets_of_a_folder(streets, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "train", "--streets", str(streets[0].parent), *FLAGS, "--out", "out"]) == 0
    assert "out/street_trial_1.policy" in capsys.readouterr().out
    assert phase_networks.description_of(tmp_path / "out" / "street_trial_1.policy")["training"]["--seed"] == 1
    again = main(["pretrain", "train", "--streets", str(streets[0].parent), *FLAGS, "--out", "out"])
    refused(capsys, again, "already exists")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--streets", "missing"], "no such folder"),
        (["--streets", "empty"], "none of its folders has a street.sumocfg"),
        (["--streets", "synthetic", "--street-count", "0"], "--street-count: 0 must lie between"),
        (["--city", "city.toml"], "unrecognized arguments: --city city.toml"),
        (["--streets", "here", "--street-count", "5"], "--street-count is for --streets synthetic; leave it out"),
        (["--networks", "2"], "unrecognized arguments: --networks 2"),
        (["--episodes", "0"], "--episodes: 0 must lie between"),
        (["--streets", "synthetic", "--ray", "auto", "--workers", "2"], "--ray uses every CPU of its cluster"),
        (["--streets", "synthetic", "--ray", "127.0.0.1:1"], "--ray 127.0.0.1:1: no Ray cluster answers there"),
    ],
)
def test_wrong_flags_are_one_line(flags, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    refused(capsys, main(["pretrain", "train", *flags]), text)


@pytest.mark.parametrize(
    ("shares", "bounds"),
    [((0, 0), (0.55, 1.1)), ((1, 0), (1.2, 1.7)), ((0, 1), (0.05, 0.5)), ((0.5, 0.5), (0.05, 1.7))],
)
def test_only_usual_demands_adapt_the_rate_of_a_street(shares, bounds, streets, tmp_path, monkeypatch):
    heavy, light = shares
    moves = heavy + light == 0
    prepared = StreetsTrainer(settings(streets[:1], tmp_path, heavy=heavy, light=light), lambda line: None)
    monkeypatch.setattr(
        prepared._executor, "run", lambda simulate, jobs: enumerate(StreetEpisode((), (), TRIPS) for _ in jobs)
    )
    prepared._episodes(np.random.default_rng(0), 1, [])
    assert (prepared._rates[0] < trainer.FIRST_VEHICLES_PER_LANE_H) is moves
    prepared._rates[0] = 100.0
    monkeypatch.setattr(trainer, "_rate_factor", lambda delay_s, factor: 1.0)
    _, loads = prepared._episodes(np.random.default_rng(0), 200, [])
    low, high = bounds
    assert 100 * low <= min(loads) < 100 * (low + 0.05) and 100 * (high - 0.05) < max(loads) <= 100 * high
    if heavy == light == 0.5:
        assert 0.35 < np.mean(np.array(loads) < 50) < 0.65 and not any(50 < load < 120 for load in loads)
