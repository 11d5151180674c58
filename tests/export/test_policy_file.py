"""The .policy file: written and read again; a damaged one is refused in one clear line."""

import json
import os
import zipfile

import numpy as np
import pytest

from city.errors import InputError
from export.actors.phase_competition import LANE_INPUTS, SHAPES
from export.checkpoints import regular_files
from export.checkpoints.phase_networks import description_of, load, save
from export.show import inspect_checkpoint
from signals.approach_features import FEATURES
from tests.export.exporting import export, refused
from tests.export.phase_competition_models import random_network
from training.phase_competition.networks import CRITIC_SHAPES

DESCRIPTION = json.dumps({"features": FEATURES})


@pytest.fixture
def network():
    return random_network(np.random.default_rng(0))


@pytest.fixture
def critic():
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in CRITIC_SHAPES.items()}


@pytest.fixture
def path(tmp_path, network, critic):
    save(tmp_path / "any.policy", network, critic, {"trained": "for a test"})
    return tmp_path / "any.policy"


def write(path, network, description=DESCRIPTION, **others):
    """A file of arrays, without the checks of `save`."""
    description = {} if description is None else {"description": description}
    with path.open("wb") as file:
        np.savez(file, **description, **network, **others)
    return path


def test_file_has_the_networks_and_how_they_were_trained(path, network, critic):
    actor, _ = load(path)
    assert actor.keys() == SHAPES.keys()
    _, again = load(path, CRITIC_SHAPES)
    for expected, found in ((network, actor), (critic, again)):
        assert expected.keys() == found.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == np.float32
    assert description_of(path) == {"features": list(FEATURES), "trained": "for a test"}


def test_saving_replaces_the_file_at_once(path, network):
    changed = {name: array + 1 for name, array in network.items()}
    save(path, changed, {}, {})
    np.testing.assert_array_equal(load(path)[0]["lane_bias_1"], changed["lane_bias_1"])
    assert [other.name for other in path.parent.iterdir()] == ["any.policy"]


def without(network, name):
    return {key: array for key, array in network.items() if key != name}


def damage(change):
    """A file of network with one change."""
    return lambda path, network: write(path, change(network))


def truncate(path, network):
    path.write_bytes(path.read_bytes()[:-100])


def fifo(path, network):
    path.unlink()
    os.mkfifo(path)


def bomb(path, network):
    """A small file whose arrays are larger than a checkpoint may be."""
    write(path, network)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("description2.npy", bytes(2 << 20))


def nan(network):
    network["score_kernel_1"][3, 4] = np.nan
    return network


DAMAGES = {
    "truncated": (truncate, "cannot be read as an .npz archive"),
    "empty": (lambda path, network: path.write_bytes(b""), "cannot be read as an .npz archive"),
    "not an archive": (lambda path, network: path.write_bytes(b"x" * 1000), "cannot be read as an .npz archive"),
    "FIFO": (fifo, "it is a FIFO"),
    "bomb": (bomb, "its arrays have more than"),
    "no description": (lambda path, network: write(path, network, None), "has no description"),
    "description without features": (lambda path, n: write(path, n, "{}"), "its description cannot be read"),
    "description of another type": (lambda path, n: write(path, n, np.array(3)), "its description cannot be read"),
    "description that is no JSON": (lambda path, n: write(path, n, "{"), "its description cannot be read"),
    "description of many lists": (lambda path, n: write(path, n, "[" * 100_000), "its description cannot be read"),
    "description that is a list": (lambda path, n: write(path, n, "[1]"), "its description cannot be read"),
    "description that is an object": (
        lambda path, n: write(path, n, np.array({}, object)),
        "description cannot be read",
    ),
    "other features": (
        lambda path, n: write(path, n, json.dumps({"features": [*FEATURES, "noise"]})),
        "for other lane features",
    ),
    "features in another order": (
        lambda path, n: write(path, n, json.dumps({"features": FEATURES[::-1]})),
        "for other lane features",
    ),
    "missing first array": (damage(lambda n: without(n, "lane_kernel_1")), "lane_kernel_1 is missing"),
    "missing array": (damage(lambda n: without(n, "score_bias_2")), "score_bias_2 is missing, but must have shape"),
    "arrays of a usual actor": (
        lambda path, n: write(path, {"dense/kernel": np.ones((9, 2), np.float32)}),
        "lane_kernel_1 is missing",
    ),
    "first array without an axis": (
        damage(lambda n: {**n, "lane_kernel_1": np.float32(1)}),
        "lane_kernel_1 has shape []",
    ),
    "other shape": (damage(lambda n: {**n, "green_kernel": n["green_kernel"][:, 1:]}), "green_kernel has shape"),
    "several networks": (
        damage(lambda n: {name: array[None] for name, array in n.items()}),
        f"lane_kernel_1 has shape [1, {LANE_INPUTS}, 32], but must have shape [{LANE_INPUTS}, 32]",
    ),
    "NaN": (damage(nan), "score_kernel_1 has a value that is not a finite float32"),
    "text": (
        damage(lambda n: {**n, "lane_bias_1": n["lane_bias_1"].astype(str)}),
        "lane_bias_1 has a value that is not a",
    ),
    "complex numbers": (
        damage(lambda n: {**n, "lane_bias_1": n["lane_bias_1"] + 1j}),
        "lane_bias_1 has a value that is not",
    ),
    "objects": (damage(lambda n: {**n, "lane_bias_1": n["lane_bias_1"].astype(object)}), "lane_bias_1 cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_file_is_refused_in_one_line(name, path, network, monkeypatch):
    monkeypatch.setattr(regular_files, "MAX_BYTES", 1 << 20)
    apply, message = DAMAGES[name]
    apply(path, network)
    with pytest.raises(InputError) as refusal:
        load(path)
    assert message in str(refusal.value) and str(path) in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("damaged", [None, np.zeros((1, 32), np.float32), np.full(32, np.nan, np.float32)])
def test_damaged_critics_are_refused_in_one_line_where_they_are_read(damaged, path, network, critic):
    others = {f"critic_{name}": array for name, array in without(critic, "green_bias").items()}
    write(path, network, **others, **({} if damaged is None else {"critic_green_bias": damaged}))
    load(path)
    with pytest.raises(InputError, match=r"critic_green_bias (is missing|has)"):
        load(path, CRITIC_SHAPES)


def test_policy_without_a_street_is_refused_by_an_export(path, capsys):
    assert export(path.parent) == 2
    refused(
        capsys,
        "any.policy: is a policy for the dialect street, and city.toml has no dialect for SA101",
        "greenserve city init",
    )


@pytest.mark.parametrize(("flag", "message"), [("--scope", "leave the scope out"), ("--output-tensor", "leave it out")])
def test_flags_of_other_formats_are_refused(path, flag, message, capsys):
    assert export(path.parent, flag, "x") == 2
    refused(capsys, message)


def test_inspect_lists_the_arrays_of_a_policy(path, capsys):
    assert inspect_checkpoint.main([str(path)]) == 0
    *variables, summary = capsys.readouterr().out.splitlines()
    assert summary == ANY_TL
    uses = dict(line.split(maxsplit=1) for line in variables)
    assert uses.keys() == {*SHAPES, "description", *(f"critic_{name}" for name in CRITIC_SHAPES)}
    assert uses["lane_kernel_1"].endswith("float32  phase competition")
    assert uses["critic_green_bias"].endswith("- (critic)")


ANY_TL = "a network for any TL of the dialect street"
TRAINING = {"--seed": 7, "--streets": ["a", "b"], "--updates": 5, "--episodes-per-update": 8, "--seconds": 900}
GATE = {"simulations": 80, "streets": 40, "seconds": 900, "mean_delay_s": 30.5}


@pytest.mark.parametrize(
    ("description", "lines"),
    [
        (
            {"training": TRAINING, "gate": GATE},
            [
                "seed 7, streets: 2, 5 updates of 8 episodes of 900 s",
                "gate: 80 simulations of 40 streets, 900 s each: 30.5 s in the geometric mean",
            ],
        ),
        ({"training": {"trained_on": ["SA101", "SA102"]}}, ["trained on TLs SA101, SA102"]),
        ({"training": 3, "gate": 5}, []),
        (
            {"training": [1, 2], "gate": {"streets": [], "mean_delay_s": None}},
            ["gate: None simulations of [] streets, None s each: None s in the geometric mean"],
        ),
        (
            {"training": {"--streets": None, "--updates": []}},
            ["seed unknown, streets: None, [] updates of ? episodes of ? s"],
        ),
    ],
)
def test_inspect_shows_how_a_policy_was_trained_and_its_gate(path, network, description, lines, capsys):
    save(path, network, {}, description)
    assert inspect_checkpoint.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1 - len(lines) :] == [ANY_TL, *lines]
