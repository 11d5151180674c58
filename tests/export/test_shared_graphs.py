"""TLs of a policy for any junction share one graph: it is made once, and rewritten once in the parity check."""

import numpy as np
import pytest
import tensorflow as tf

from export.actors import Actor, phase_competition_graph
from export.actors.phase_competition import Junction, PhaseCompetition
from export.saved_model import read, verify, warmup, write
from tests.export.exporting import run
from tests.export.phase_competition_models import random_network
from tests.export.test_rule_bounds import SIGNALS, changed, street_contract

NETWORK = random_network(np.random.default_rng(0))


def written(folder, name):
    """(folder, actor, contract) of the written model of a signal."""
    contract = street_contract(name)
    actor = Actor("phase-competition", (PhaseCompetition(NETWORK, Junction.of_contract(contract)),))
    folder.mkdir()
    write.write(folder, actor, contract)
    warmup.write(folder, contract, 1)
    return folder, actor, contract


@pytest.fixture(autouse=True)
def sessions(monkeypatch):
    """The options of the sessions of parity checks in a process that has made no graph yet."""
    options, session = [], verify.session
    monkeypatch.setattr(write, "_templates", {})
    monkeypatch.setattr(verify, "_optimised", set())
    monkeypatch.setattr(verify, "session", lambda *args: (options.append(args[1]), session(*args))[1])
    return options


def test_junctions_of_any_size_have_one_graph_and_their_own_sizes(tmp_path):
    for name in SIGNALS:
        folder, actor, _ = written(tmp_path / name, name)
        meta_graph = read.meta_graph(folder)
        signature = meta_graph.signature_def["serving_default"]
        (placeholder,) = (node for node in meta_graph.graph_def.node if node.name == "observation")
        shapes = placeholder.attr["shape"].shape, signature.inputs["observation"].tensor_shape
        shapes += (signature.outputs["probabilities"].tensor_shape,)
        assert [shape.dim[1].size for shape in shapes] == [actor.inputs, actor.inputs, actor.outputs]
        assert run(folder, "serving_default", observation=np.zeros((2, actor.inputs)))["action"].shape == (2,)
        # 16 is the number of a lane's features
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            run(folder, "serving_default", observation=np.zeros((2, actor.inputs + 16)))
    assert len(write._templates) == 1


def test_a_graph_is_rewritten_in_its_first_parity_check_alone(tmp_path, sessions, monkeypatch):
    for name in SIGNALS:
        verify.compare_with_checkpoint(*written(tmp_path / name, name), None)
    # another constant in a rule is another graph, though it decides the same
    monkeypatch.setattr(phase_competition_graph, "PADDING_SCORE", -2e9)
    write._templates.clear()
    verify.compare_with_checkpoint(*written(tmp_path / "changed", "six links"), None)
    assert sessions == [None, verify.UNOPTIMISED, verify.UNOPTIMISED, None]


def test_a_graph_that_has_failed_is_rewritten_again(tmp_path, sessions, monkeypatch):
    late = changed(phase_competition_graph, "greens_allowed", ">= MAX_RED_S", "> MAX_RED_S")
    monkeypatch.setattr(phase_competition_graph, "greens_allowed", late)
    for folder in ("first", "second"):
        with pytest.raises(verify.ParityError, match="differ from the checkpoint's"):
            verify.compare_with_checkpoint(*written(tmp_path / folder, "four greens"), None)
    assert sessions == [None, None]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_wrong_rule_is_found_without_rewriting_too(name, tmp_path, monkeypatch):
    late = changed(phase_competition_graph, "greens_allowed", ">= MAX_RED_S", "> MAX_RED_S")
    monkeypatch.setattr(phase_competition_graph, "greens_allowed", late)
    model = written(tmp_path / "wrong", name)
    monkeypatch.setattr(verify, "_optimised", {verify._digest(read.meta_graph(model[0]).graph_def)})
    with pytest.raises(verify.ParityError, match="differ from the checkpoint's"):
        verify.compare_with_checkpoint(*model, None)
