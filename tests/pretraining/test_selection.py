"""`greenserve pretrain select`: trained networks at the gate, and the policy of the best one that passes."""

import csv

import numpy as np
import pytest

from evaluation.arms import BASELINES
from export.checkpoints import phase_networks
from export.locate import find_candidates
from greenserve.__main__ import main
from pretraining import gate, plain_kinds, street_results
from tests.error_lines import refused
from training import saved_state
from training.phase_competition.networks import CRITIC_SHAPES, initial_arrays, save_policy

SECONDS = ["--seconds", "100"]
GATE = ["--gate-streets", "1", *SECONDS]
FILES = ("a.policy", "b.policy")


@pytest.fixture(scope="module")
def gate_streets(tmp_path_factory):
    """A synthetic street and a plain one, which are generated once."""
    folder = tmp_path_factory.mktemp("gate_streets")
    found, (plain, *_) = gate.streets, plain_kinds.write(folder / "plain", plain_kinds.KINDS[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "streets", lambda _, count: found(folder, count))
        patch.setattr(gate.plain_kinds, "write", lambda _: [plain])
        yield


@pytest.fixture(autouse=True)
def folder(gate_streets, tmp_path, monkeypatch):
    """The current folder, with two networks of which `passing` are good enough for the gate."""
    monkeypatch.chdir(tmp_path)
    for k, name in enumerate(FILES):
        save_policy(tmp_path / name, initial_arrays(np.random.default_rng(k)), 1.0, {"--seed": k})
    return tmp_path


@pytest.fixture
def passing(monkeypatch):
    """Names of the networks that pass: none of them is trained."""
    names = set(FILES)
    monkeypatch.setattr(gate.Verdict, "failure", property(lambda own: "" if own.name in names else "too slow"))
    return names


@pytest.fixture
def simulated(monkeypatch):
    """Names of the arms that are simulated."""
    names, run_job = [], street_results.run_job
    monkeypatch.setattr(street_results, "run_job", lambda job: names.append(job.arm.name) or run_job(job))
    return names


def select(*arguments):
    return main(["pretrain", "select", *arguments, *([] if "--seconds" in arguments else GATE), "--out", "out"])


def arrays(path):
    return {f"{k}{n}": a for k, own in enumerate(phase_networks.load(path, CRITIC_SHAPES)) for n, a in own.items()}


def test_the_best_network_that_passes_is_written_with_its_verdict(folder, passing, simulated, capsys):
    assert select(*FILES) == 0
    # two simulations of the synthetic street, and two of the plain one
    assert sorted(simulated) == sorted([*FILES * 4, *["max-pressure"] * 2, *BASELINES * 2])
    policy = folder / "out" / "street_trial_1.policy"
    description = phase_networks.description_of(policy)
    own = description["gate"]
    assert own["name"] in FILES and (own["simulations"], own["streets"], own["plain_count"]) == (2, 1, 1)
    assert (own["seconds"], own["reference"]) == (100.0, "max-pressure") and own["mean_ratio"] > 0 < own["mean_delay_s"]
    assert description["training"] == {"--seed": FILES.index(own["name"])}
    written, network = arrays(policy), arrays(folder / own["name"])
    assert all((written[name] == network[name]).all() for name in network) and written.keys() == network.keys()
    rows = list(csv.DictReader((folder / "out" / "trial_1_gate.csv").open()))
    assert {(row["street"], row["network"]) for row in rows if row["vehicles_per_lane_h"] == ""} == {
        (f"lanes-1-30{demand}", name) for demand in ("", " (2)") for name in (*FILES, *BASELINES)
    }
    output = capsys.readouterr().out
    means_s = [float(line.split("gate: ")[1].split(" s ")[0]) for line in output.splitlines()[:2]]
    assert own["name"] == FILES[int(np.argmin(means_s))] and "out/street_trial_1.policy: one policy" in output
    assert [found.path.name for found in find_candidates(folder / "out")] == ["street_trial_1.policy"]
    # the faster one fails: the other one is written
    passing.remove(own["name"])
    assert select(*FILES, "--resume") == 0
    assert f"warning: {own['name']} is dropped: too slow" in capsys.readouterr().err
    assert phase_networks.description_of(policy)["gate"]["name"] != own["name"]


@pytest.mark.slow
def test_without_a_network_that_passes_no_policy_is_written(folder, passing, simulated, capsys):
    assert select("a.policy") == 0
    passing.clear()
    simulated.clear()
    assert select(*FILES, "--resume") == 3
    assert simulated == ["b.policy"] * 4, "what is saved is not simulated again"
    assert "no network passes the gate, so no policy is written" in capsys.readouterr().err
    assert not (folder / "out" / "street_trial_1.policy").exists() and (folder / "out" / "trial_1_gate.csv").exists()


@pytest.mark.slow
def test_a_gate_resumes_with_its_own_flags_and_version_only(folder, passing, monkeypatch, capsys):
    assert select("a.policy") == 0
    policy, state = folder / "out" / "street_trial_1.policy", folder / "out" / ".trial_1.gate.npz"
    content, saved = policy.read_bytes(), state.read_bytes()
    refused(capsys, select("a.policy"), "street_trial_1.policy: already exists, with model number 1")
    line = "the gate to resume had another --gate-streets"
    refused(capsys, select("a.policy", "--resume", "--gate-streets", "2", *SECONDS), line)
    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "VERSION", "of another time")
        line = "was begun by another version of greenserve or SUMO; remove it and repeat the command"
        refused(capsys, select("a.policy", "--resume"), line)
    state.write_bytes(b"garbage")
    refused(capsys, select("a.policy", "--resume"), "is not the state of this gate (it is damaged, or not a .npz file)")
    assert policy.read_bytes() == content, "a refused command removes nothing"
    state.write_bytes(saved)
    assert select("a.policy", "--resume") == 0 and policy.read_bytes() == content


def test_a_trained_policy_is_not_replaced(folder, passing, capsys):
    own = folder / "out" / "street_trial_1.policy"
    own.parent.mkdir()
    own.write_bytes(content := (folder / "a.policy").read_bytes())
    for network in ("out/street_trial_1.policy", "out/../out/street_trial_1.policy"):
        refused(capsys, select(network, "--resume"), "is a network and the file of the result")
    refused(capsys, select("b.policy", "--resume"), "already exists")
    assert own.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("missing.policy", "missing.policy: no such .policy file"),
        ("text.txt", "text.txt: no such .policy file"),
        ("", "the following arguments are required: FILE"),
        ("a.policy ./a.policy", "a.policy is named twice"),
        ("a.policy old.policy", "old.policy: its weights are for other lane features"),
        ("a.policy --gate-streets 0", "--gate-streets: 0 must lie between"),
        ("a.policy --keep 2", "unrecognized arguments: --keep 2"),
        ("a.policy --ray 127.0.0.1:1", "--ray 127.0.0.1:1: no Ray cluster answers there"),
    ],
)
def test_wrong_flags_are_one_line(arguments, text, folder, capsys):
    phase_networks.save(folder / "old.policy", *phase_networks.load(folder / "a.policy"), {"features": ["halting"]})
    (folder / "text.txt").touch()
    refused(capsys, main(["pretrain", "select", *arguments.split()]), text)
