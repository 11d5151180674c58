"""TLs of a policy for any junction share one graph, which is made once; a wrong rule in it is found for each size."""

import numpy as np
import pytest
import tensorflow as tf

from export.actors import Actor, phase_competition_graph
from export.actors.phase_competition import Junction, PhaseCompetition
from export.saved_model import read, verify, write
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
    return folder, actor, contract


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch):
    """A process that has made no graph yet."""
    monkeypatch.setattr(write, "_templates", {})


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


@pytest.mark.parametrize("name", SIGNALS)
def test_a_wrong_rule_is_found_for_junctions_of_any_size(name, tmp_path, monkeypatch):
    late = changed(phase_competition_graph, "greens_allowed", ">= MAX_RED_S", "> MAX_RED_S")
    monkeypatch.setattr(phase_competition_graph, "greens_allowed", late)
    model = written(tmp_path / "wrong", name)
    with pytest.raises(verify.ParityError, match="differ from the checkpoint's"):
        verify.compare_with_checkpoint(*model, None)
