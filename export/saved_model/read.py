"""Read an exported model back: its contract, and its actor as steps or as a graph."""

import contextlib
import hashlib
import json
import operator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from city.errors import InputError, errors_about
from export.actors import ACTION_OUTPUT, Actor, GraphActor, weight_name
from export.actors.steps import from_json
from export.checkpoints import tensorflow_files
from export.checkpoints.checkpoint import Checkpoint
from export.graphs.graph_actor import TrainedGraph, extract_from_graph, node_of
from export.saved_model.write import ACTOR_FILE, CONTRACT
from protos import policy_pb2 as pb
from serving.contract import (
    ACTION,
    CATEGORICAL,
    DEFAULT_SIGNATURE,
    INPUT,
    PROBABILITIES,
    ContractError,
    parse,
    scores_name,
)

Arrays = dict[tuple[bytes, tuple[int, ...]], NDArray[Any]]
"""Weights by digest and shape."""


def meta_graph(folder: Path) -> meta_graph_pb2.MetaGraphDef:
    """The MetaGraph of a version's folder. Raises InputError if the folder is not a model's."""
    if not (folder / "saved_model.pb").is_file():
        raise InputError("has no saved_model.pb; pass the folder of a version, such as models/SA101/1")
    try:
        model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        return model.meta_graphs[0]
    except (OSError, IndexError, ValueError, DecodeError) as error:
        raise InputError(f"its SavedModel cannot be read: {error}; export it again") from None


def contract_of(meta: meta_graph_pb2.MetaGraphDef) -> pb.PolicyContract:
    """The contract in a model's graph. Raises InputError if it is missing or damaged."""
    for node in meta.graph_def.node:
        if node.name == CONTRACT:
            try:
                return parse(node.attr["value"].tensor.string_val[0])
            except (ContractError, IndexError) as error:
                raise InputError(str(error)) from None
    raise InputError("is a SavedModel without a policy contract; export it with greenserve export")


def read(folder: Path, known: Arrays | None = None) -> tuple[pb.PolicyContract, Actor | GraphActor]:
    """Contract and actor of an exported version; `known`: as for `_steps`. Raises InputError."""
    with errors_about(folder):
        meta = meta_graph(folder)
        contract = contract_of(meta)
        # in this process, which loads exported models to verify them, too
        variables = tensorflow_files.open_checkpoint(folder / "variables" / "variables", operator.call)
        actor = _steps(folder, variables, {} if known is None else known)
        if actor is not None:
            observation = np.zeros((1, contract.observation.size), np.float32)
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):  # the steps are damaged
                actions = actor.evaluate(observation, contract.action.kind == CATEGORICAL)
                if actions.shape == (1, contract.action.size):
                    return contract, actor
        return contract, _graph(meta, variables, contract)


def _steps(folder: Path, variables: Checkpoint, known: Arrays) -> Actor | None:
    """The actor of a SavedModel, from its steps and its variables, or `None` if the file is missing or damaged.

    Args:
        folder: the SavedModel.
        variables: its variables.
        known: weights of models that were read before, added to by this one: equal weights are in memory once.

    Raises:
        InputError: a variable cannot be read.
    """

    def value(name: str) -> NDArray[Any]:
        values = variables.value(name)
        return known.setdefault((hashlib.sha256(values.tobytes()).digest(), values.shape), values)

    try:
        stored = json.loads((folder / ACTOR_FILE).read_text(encoding="utf-8"))
        steps = []
        for k, step in enumerate(stored["steps"]):
            prefix = weight_name(k, "")
            names = [name for name in variables.stored if name.startswith(prefix)]
            steps.append(from_json(step, {name.removeprefix(prefix): value(name) for name in names}))
        scores = str(stored.get("scores", PROBABILITIES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    return Actor("exported", tuple(steps), scores=scores) if any(step.parts for step in steps) else None


def _graph(meta: meta_graph_pb2.MetaGraphDef, checkpoint: Checkpoint, contract: pb.PolicyContract) -> GraphActor:
    """The model's own graph, from observation to action and scores. Raises InputError."""
    if DEFAULT_SIGNATURE not in meta.signature_def:
        raise InputError(f"has no signature {DEFAULT_SIGNATURE}; export it again")
    signature = meta.signature_def[DEFAULT_SIGNATURE]
    try:
        graph = graph_pb2.GraphDef.FromString(meta.graph_def.SerializeToString())
        tensors = {key: info.name for key, info in signature.outputs.items()}
        observation, output = node_of(signature.inputs[INPUT].name), tensors[ACTION]
        scores = tensors[key] if (key := scores_name(contract)) else ""
        variables = {
            node.name: (name, checkpoint.value(name))
            for node in graph.node
            if node.op == "VarHandleOp" and (name := node.attr["shared_name"].s.decode()) in checkpoint.stored
        }
    except (KeyError, ValueError) as error:
        raise InputError(f"is not a model of an actor: {error}; export it again") from None
    trained = TrainedGraph(graph, observation, output, {}, variables, scores)
    return extract_from_graph(trained, contract.observation.size, contract.action.size, ACTION_OUTPUT)
