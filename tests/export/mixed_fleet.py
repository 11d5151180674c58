"""A fleet of categorical and continuous actors: stacked ones, q-values, one that joins as a graph."""

from dataclasses import replace

import numpy as np

from benchmarks.random_models import random_actor
from export.__main__ import main
from export.saved_model import write
from export.saved_model.write import CONTRACT
from protos import policy_pb2 as pb
from serving.contract import DEFAULT_SIGNATURE, SCORES, parse, to_json
from tests.serving.saved_models import edited

ACTORS = {
    "SA101": random_actor(9, 3, 1, True),
    "SA102": random_actor(7, 5, 2, True),
    "SA103": replace(random_actor(8, 4, 3, True), scores="q_values"),
    "SA104": random_actor(9, 2, 4, False),
    "SA105": random_actor(6, 3, 5, True),
    "SA106": replace(random_actor(5, 2, 6, True), scores="q_values"),
}
CATEGORICAL = ("SA101", "SA102", "SA103", "SA105", "SA106")
GRAPHS = ("SA105", "SA106")
"""TLs without a file of steps, which join a fleet as graphs."""


def write_models(folder):
    """Write version 1 of every TL's model and of their fleet `city`."""
    for tl, actor in ACTORS.items():
        kind = "categorical" if tl in CATEGORICAL else "kc"
        contract = pb.PolicyContract(
            tl=tl,
            observation=pb.Observation(size=actor.inputs),
            action=pb.Action(kind=kind, size=actor.outputs, scores=actor.scores if actor.scores == "q_values" else ""),
            origin=pb.Origin(model_number=1),
        )
        version = folder / tl / "1"
        version.mkdir(parents=True)
        write.write(version, actor, contract)
        if tl in GRAPHS:
            (version / write.ACTOR_FILE).unlink()
    assert main(["fleet", "city", "--tl", "all", "--models-dir", str(folder)]) == 0
    return folder


def remove_scores(version):
    """Make a fleet one of version 0.1, without scores in its signature and contract."""
    with edited(version) as meta:
        del meta.signature_def[DEFAULT_SIGNATURE].outputs[SCORES]
        (constant,) = (node for node in meta.graph_def.node if node.name == CONTRACT)
        contract = parse(constant.attr["value"].tensor.string_val[0])
        for member in contract.members:
            member.ClearField("score_begin")
            member.ClearField("score_size")
        constant.attr["value"].tensor.string_val[0] = contract.SerializeToString(deterministic=True)
    (version / "assets.extra" / "policy.json").write_text("".join(to_json(contract)))
    write.write_warmup(version, contract)


def expected_scores(tl, observation):
    """[n] float64 probabilities or q-values of an observation [O], evaluated in NumPy."""
    return ACTORS[tl].evaluate(np.asarray(observation)[None], True)[0]
