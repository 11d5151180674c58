"""`greenserve pretrain train --networks` and `select`: trainings, the gate, and the product of the networks that pass it."""

import csv
import shutil

import numpy as np
import pytest

from export import pretrained
from export.checkpoints import phase_networks
from export.locate import find_candidates
from greenserve.__main__ import main
from pretraining import gate, selection, street_results, train_command
from pretraining import streets_trainer as trainer
from pretraining.streets_trainer import StreetsTrainer
from pretraining.synthetic.streets import generate
from training import saved_state
from training.phase_competition import policy_file
from training.phase_competition.networks import CRITIC_SHAPES, initial_arrays
from training.statistics import NotFinite

pytestmark = pytest.mark.slow

TRAINING = ["--episodes", "2", "--episodes-per-update", "1", "--seconds", "60"]
GATE = ["--gate-streets", "2"]
NETWORKS = ["--networks", "2", "--seed", "5"]
SHARED = [*NETWORKS, "--shared-updates", "1"]


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    generate(folder, 0)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def short_trainings(tmp_path_factory):
    """One cloned episode, a state after each update, and gate streets that are generated once."""
    gate_streets = tmp_path_factory.mktemp("gate_streets")
    found = selection.gate.streets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "SAVE_EVERY", 1)
        patch.setattr(trainer, "CLONING_STEPS", 5)
        patch.setattr(trainer.StreetsSettings, "__init__", _with_one_cloning_episode(trainer.StreetsSettings.__init__))
        patch.setattr(selection.gate, "streets", lambda folder, count: found(gate_streets, count))
        yield


@pytest.fixture(scope="module")
def trained(streets, short_trainings, tmp_path_factory):
    """The folder of a training of two networks, seeds 5 and 6."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        any_network_passes(patch)
        assert train(streets, folder, *NETWORKS) == 0
    return folder


@pytest.fixture(scope="module")
def shared_training(streets, short_trainings, tmp_path_factory):
    """(folder, lines) of a training of two networks, seeds 6 and 7, that share their first update, with seed 5."""
    folder, lines = tmp_path_factory.mktemp("shared"), []
    with pytest.MonkeyPatch.context() as patch:
        any_network_passes(patch)
        patch.setattr(train_command, "print_line", lines.append)
        assert train(streets, folder, *SHARED) == 0
    return folder, lines


@pytest.fixture
def shared(shared_training, tmp_path, monkeypatch):
    """A copy of this training's folder; any network passes."""
    any_network_passes(monkeypatch)
    return shutil.copytree(shared_training[0], tmp_path / "out")


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _with_one_cloning_episode(initialise):
    def changed(self, *arguments, **values):
        initialise(self, *arguments, **{"cloning_episodes": 1} | values)

    return changed


def train(streets, out, *flags):
    return main(["pretrain", "train", "--streets", streets, *TRAINING, *GATE, "--out", str(out), *flags])


def any_network_passes(monkeypatch):
    """A network of two updates is no good."""
    monkeypatch.setattr(selection.gate, "MAX_RATIO", 1e6)
    monkeypatch.setattr(selection.gate, "MAX_MEAN_RATIO", 1e6)
    monkeypatch.setattr(selection.gate, "moves_too_few", lambda candidate, reference: False)


def write_parts(folder):
    """The first network of the pretrained policy, one that differs a little from it, and one with its scores
    negated."""
    actors, critics = (
        {name: array[:1] for name, array in arrays.items()}
        for arrays in phase_networks.load(pretrained.policy(), CRITIC_SHAPES)
    )
    for k, (name, factor) in enumerate((("good", 1.0), ("other", 1.02))):
        scaled = {array: np.float32(factor) * values for array, values in actors.items()}
        phase_networks.save(folder / f"{name}.policy", scaled, critics, {"training": [{"--seed": k}]})
    bad = {
        name: array * (-1 if name.startswith("score") and name.endswith("2") else 1) for name, array in actors.items()
    }
    phase_networks.save(folder / "bad.policy", bad, critics, {})


def without_network(folder, seed):
    """Remove a network and its state; return its policy."""
    policy = folder / ".trial_1_networks" / f"street_trial_{seed}.policy"
    content = policy.read_bytes()
    policy.unlink()
    (policy.parent / f".trial_{seed}.progress.npz").unlink()
    return content


def files(folder):
    """Contents of the results, without logs and locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts and path.suffix != ".lock"
    }


def test_each_network_is_that_of_a_training_with_its_seed(streets, trained, tmp_path):
    assert train(streets, "alone", "--seed", "6") == 0
    alone, _ = phase_networks.load(tmp_path / "alone" / "street_trial_1.policy")
    product, _ = phase_networks.load(trained / "street_trial_1.policy")
    for name, array in alone.items():
        np.testing.assert_array_equal(product[name][1:], array)
    curves = [
        folder / f"{name}_curve.csv" for folder, name in ((tmp_path / "alone", "trial_1"), (trained, "trial_1_seed_6"))
    ]
    assert curves[0].read_text() == curves[1].read_text()


def test_networks_share_their_first_updates(shared_training, trained, capsys):
    folder, lines = shared_training
    first, second = ((folder / f"trial_1_seed_{seed}_curve.csv").read_text().splitlines() for seed in (6, 7))
    assert first[:2] == second[:2]
    assert sum(line.startswith("update 1 of 2: ") for line in lines) == 1, "made once"
    # those of a training with --seed, from which each network continues in its own way
    alone = (trained / "trial_1_seed_5_curve.csv").read_text().splitlines()
    assert first[:2] == alone[:2]
    assert len({first[2], second[2], alone[2]}) == 3
    assert main(["inspect", str(folder / "street_trial_1.policy")]) == 0
    trained_by = "network 2: seed 7, streets: 1, 2 updates of 1 episodes of 60.0 s; the first 1 updates have seed 5"
    assert trained_by in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([*NETWORKS], "--seed, --shared-updates"),
        (["--networks", "2", "--seed", "6", "--shared-updates", "1"], "--seed"),
    ],
)
def test_other_shared_updates_are_refused_before_anything_is_trained(flags, named, streets, shared, capsys):
    before = files(shared)
    assert train(streets, shared, *flags, "--resume") == 2
    error = capsys.readouterr().err
    assert f"the training to resume had another {named}; pass the same flags" in error and error.count("\n") == 1
    assert files(shared) == before


def test_a_network_without_a_saved_state_starts_from_the_shared_updates(streets, shared, capsys):
    trained = without_network(shared, 6)
    assert train(streets, shared, *SHARED, "--resume") == 0
    assert "update 1 of 2: " not in capsys.readouterr().err
    assert (shared / ".trial_1_networks" / "street_trial_6.policy").read_bytes() == trained


def test_a_training_interrupted_before_a_network_is_saved_resumes_from_the_shared_updates(
    streets, shared, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(trainer, "SAVE_EVERY", 5)
    step = StreetsTrainer._next_update

    def interrupted(self):
        if self._update == 1:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(StreetsTrainer, "_next_update", interrupted)
    assert train(streets, "cut", *SHARED) == 1
    assert "interrupted; --resume continues" in capsys.readouterr().err
    monkeypatch.setattr(StreetsTrainer, "_next_update", step)
    assert train(streets, "cut", *SHARED, "--resume") == 0
    assert "update 1 of 2: " not in capsys.readouterr().err
    assert files(tmp_path / "cut") == files(shared)


def test_shared_updates_that_diverge_end_all_trainings(streets, monkeypatch, capsys):
    def diverged(self):
        raise NotFinite("diverged")

    monkeypatch.setattr(StreetsTrainer, "_next_update", diverged)
    assert train(streets, "out", *SHARED) == 1
    output = capsys.readouterr().err
    assert "network 1 of 2" in output and "network 2 of 2" not in output


def test_a_damaged_shared_state_is_refused_and_without_it_the_numbers_are_the_same(streets, shared, capsys):
    second, state = without_network(shared, 7), shared / ".trial_1_networks" / ".shared.progress.npz"
    for damaged in (b"garbage", b"", state.read_bytes()[:3000]):
        state.write_bytes(damaged)
        assert train(streets, shared, *SHARED, "--resume") == 2
        reason = (
            "is not the state of this training (it is damaged, or not a .npz file); remove it and repeat the command"
        )
        assert f"{state.name}: {reason}" in capsys.readouterr().err
        assert state.read_bytes() == damaged
    state.unlink()
    assert train(streets, shared, *SHARED, "--resume") == 0
    assert (shared / ".trial_1_networks" / "street_trial_7.policy").read_bytes() == second


@pytest.mark.parametrize("damaged", [".trial_1.gate.npz", ".trial_1_networks/.trial_6.progress.npz"])
def test_a_damaged_state_of_a_part_can_be_removed_and_the_rest_is_kept(
    damaged, streets, trained, tmp_path, monkeypatch, capsys
):
    any_network_passes(monkeypatch)
    out = shutil.copytree(trained, tmp_path / "out")
    product = (out / "street_trial_1.policy").read_bytes()
    (out / "street_trial_1.policy").unlink()
    (out / ".trial_1_networks" / "street_trial_6.policy").unlink()
    (out / damaged).write_bytes(b"garbage")
    assert train(streets, out, *NETWORKS, "--resume") == 2
    assert f"{out / damaged}: is not the state of this " in (error := capsys.readouterr().err)
    assert "; remove it and repeat the command" in error and (out / damaged).read_bytes() == b"garbage"
    (out / damaged).unlink()
    assert train(streets, out, *NETWORKS, "--resume") == 0
    assert (out / "street_trial_1.policy").read_bytes() == product
    assert "network 1 of 2, seed 5\nnetwork 2 of 2, seed 6\n" in capsys.readouterr().err


def test_inspect_shows_what_a_product_consists_of(trained, capsys):
    assert main(["inspect", str(trained / "street_trial_1.policy")]) == 0
    *_, summary, first, second, gate, seed_5, seed_6, product = capsys.readouterr().out.splitlines()
    assert summary.startswith("a policy of 2 networks")
    assert first == "network 1: seed 5, streets: 1, 2 updates of 1 episodes of 60.0 s" and second.startswith(
        "network 2: seed 6"
    )
    assert gate == "gate: 4 simulations of 2 streets, 60.0 s each, from seed 2000000"
    assert [line.split(": ")[1] for line in (seed_5, seed_6, product)] == ["seed 5", "seed 6", "product"]


def test_an_export_takes_the_product_and_not_its_networks(trained):
    assert [found.path.name for found in find_candidates(trained)] == ["street_trial_1.policy"]


def test_a_training_interrupted_in_its_second_network_resumes_to_the_same_files(
    streets, trained, tmp_path, monkeypatch, capsys
):
    any_network_passes(monkeypatch)
    step, steps = StreetsTrainer._next_update, []

    def interrupted(self):
        if steps == [5, 5, 6]:
            raise KeyboardInterrupt
        counted(self)

    def counted(self):
        steps.append(self._settings.seed)
        step(self)

    monkeypatch.setattr(StreetsTrainer, "_next_update", interrupted)
    assert train(streets, "cut", *NETWORKS) == 1
    assert "interrupted; --resume continues" in capsys.readouterr().err
    monkeypatch.setattr(StreetsTrainer, "_next_update", counted)
    assert train(streets, "cut", *NETWORKS, "--resume") == 0
    assert steps == [5, 5, 6, 6], "the first network is not trained again"
    output = capsys.readouterr()
    assert "network 2 of 2, seed 6" in output.err and "cut/street_trial_1.policy" in output.out
    lines = [line.split(" passes the gate: ")[0] for line in output.out.splitlines()]
    assert lines[:-1] == ["seed 5", "seed 6", "product"]
    assert files(trained) == files(tmp_path / "cut")
    assert b"seed 6 (kept): " in files(trained)["trial_1_curves.svg"]


def test_a_product_that_fails_is_written_with_a_warning(trained, tmp_path, monkeypatch, capsys):
    networks = [str(trained / ".trial_1_networks" / f"street_trial_{seed}.policy") for seed in (5, 6)]
    monkeypatch.setattr(
        selection.gate.Verdict, "failure", property(lambda self: "too slow" if self.name == "product" else "")
    )  # fmt: skip
    assert main(["pretrain", "select", *networks, "--seconds", "60", *GATE, "--out", "out"]) == 3
    assert "warning: the product fails the gate: too slow" in capsys.readouterr().err
    written = phase_networks.description_of(tmp_path / "out" / "street_trial_1.policy")
    assert written["gate"]["product"]["failure"] == "too slow"


def test_a_product_far_slower_than_its_best_network_fails():
    parts = [gate.Verdict(name, delay_s, 1.0, 1.0, "a", ()) for name, delay_s in (("a", 10.0), ("b", 11.0))]
    for delay_s, passes in ((11.4, True), (11.6, False)):
        selected = selection.Selected({}, (*parts, gate.Verdict("product", delay_s, 1.0, 1.0, "a", ())), ("a", "b"))
        assert selected.passes is passes and selected.state(selected.verdicts[-1]) == ("passes" if passes else "fails")


def test_a_network_that_diverges_does_not_end_the_others(streets, tmp_path, monkeypatch, capsys):
    def run(self):
        if self._settings.seed == 5:
            raise NotFinite("a loss is not finite")
        policy_file.save(self._settings.policy_file, initial_arrays(np.random.default_rng(6)), 1.0, {})
        return self._settings.policy_file

    any_network_passes(monkeypatch)
    monkeypatch.setattr(StreetsTrainer, "run", run)
    assert train(streets, "out", *NETWORKS, "--keep", "1") == 0
    assert "warning: seed 5 is dropped: a loss is not finite" in capsys.readouterr().err


def test_the_gate_drops_a_bad_network_and_resumes_with_a_smaller_product(tmp_path, capsys, monkeypatch):
    write_parts(tmp_path)
    command = [
        "pretrain",
        "select",
        "good.policy",
        "bad.policy",
        "other.policy",
        *GATE,
        "--seconds",
        "300",
        "--out",
        "out",
    ]
    assert main(command) == 3
    output = capsys.readouterr()
    assert (
        "warning: bad.policy is dropped: " in output.err
        and "2 of 3 networks pass the gate, fewer than --keep 3" in output.err
    )
    assert not (tmp_path / "out" / "street_trial_1.policy").exists()
    rows = list(csv.DictReader((tmp_path / "out" / "trial_1_gate.csv").open()))
    assert {row["network"] for row in rows} == {"good.policy", "bad.policy", "other.policy", "max-pressure"}

    simulated = []
    run_job = street_results.run_job
    monkeypatch.setattr(street_results, "run_job", lambda job: simulated.append(job.arm.name) or run_job(job))
    assert main([*command, "--keep", "2", "--resume"]) == 0
    assert simulated == ["product"] * 4, "results of the earlier run are used"
    description = phase_networks.description_of(tmp_path / "out" / "street_trial_1.policy")
    assert [training["--seed"] for training in description["training"]] == [0, 1]
    assert [(n["name"], n["is_kept"], bool(n["failure"])) for n in description["gate"]["networks"]] == [
        ("good.policy", True, False), ("bad.policy", False, True), ("other.policy", True, False)
    ]  # fmt: skip
    capsys.readouterr()
    assert main([*command, "--gate-streets", "1", "--resume"]) == 2
    assert "the gate to resume had another --gate-streets" in capsys.readouterr().err
    monkeypatch.setattr(saved_state, "VERSION", "of another time")
    assert main([*command, "--resume"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was begun by another version of greenserve or SUMO; remove it and repeat the command" in line
    assert (tmp_path / "out" / "street_trial_1.policy").exists(), "a refused command removes nothing"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train --networks 2 --keep 3", "--keep 3 is more than there are networks, 2"),
        ("train --keep 0", "--keep 0 must lie between"),
        ("train --networks 2 --episodes 48 --shared-updates 2", "--shared-updates 2 leaves none of the 2 updates to"),
        ("train --shared-updates 2", "--shared-updates is for several networks; pass --networks"),
        ("train --streets here --street-count 5", "--street-count is for --streets synthetic; leave it out"),
        ("select missing.policy", "missing.policy: no such file"),
        ("select", "the following arguments are required: FILE"),
        ("select good.policy --keep 2", "--keep 2 is more than there are networks, 1"),
        ("select good.policy ./good.policy", "good.policy is named twice"),
        ("select good.policy old.policy", "old.policy: its weights are for other lane features"),
        ("select good.policy --gate-streets 0", "--gate-streets 0 must lie between"),
        ("select good.policy --networks 2", "unrecognized arguments: --networks 2"),
        ("select good.policy --ray 127.0.0.1:1", "--ray 127.0.0.1:1: no Ray cluster answers there"),
    ],
)
def test_wrong_flags_are_one_line(command, text, tmp_path, capsys):
    write_parts(tmp_path)
    actors, critics = phase_networks.load(tmp_path / "good.policy", CRITIC_SHAPES)
    phase_networks.save(tmp_path / "old.policy", actors, critics, {"features": ["halting"]})
    assert main(["pretrain", *command.split()]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def test_a_new_training_does_not_replace_networks(streets, tmp_path, capsys):
    (tmp_path / "out" / ".trial_1_networks").mkdir(parents=True)
    (tmp_path / "out" / ".trial_1_networks" / "street_trial_2.policy").touch()
    assert train(streets, "out", "--networks", "2") == 2
    assert "street_trial_2.policy: already exists, and there is no saved state" in capsys.readouterr().err
