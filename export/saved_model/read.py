"""Reading an exported model back: its contract, and its actor as steps or as its graph."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from city.errors import InputError
from export.actors import WEIGHTS, Activation, Actor, BatchNorm, Branch, Dense, Join, Step, numpy_actor, weight_name
from export.checkpoints import tensorflow_files
from export.checkpoints.checkpoint import Checkpoint
from export.graphs.graph_actor import ACTION_OUTPUT, GraphActor, TrainedGraph, cut, node_of
from export.saved_model import manifest
from export.saved_model.meta_graph import CONTRACT
from protos import policy_pb2 as pb
from serving.contract import ACTION, CATEGORICAL, INPUT, SIGNATURE, ContractError, parse


def meta_graph(folder: Path) -> meta_graph_pb2.MetaGraphDef:
    """The MetaGraph of a version's folder. Raises InputError where it holds no model."""
    try:
        model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        return model.meta_graphs[0]
    except (OSError, IndexError, ValueError, DecodeError) as error:
        raise InputError(f"{folder}: holds no SavedModel that can be read: {error}") from None


def policy(folder: Path, meta: meta_graph_pb2.MetaGraphDef) -> pb.PolicyContract:
    """The contract that a model carries. Raises InputError where it carries none."""
    for node in meta.graph_def.node:
        if node.name == CONTRACT:
            try:
                return parse(node.attr["value"].tensor.string_val[0])
            except (ContractError, IndexError) as error:
                raise InputError(f"{folder}: {error}") from None
    raise InputError(f"{folder}: is a SavedModel without a policy contract")


def read(folder: Path) -> tuple[pb.PolicyContract, Actor | GraphActor]:
    """Contract and actor of an exported version. Raises InputError."""
    meta = meta_graph(folder)
    told = policy(folder, meta)
    checkpoint = tensorflow_files.open_checkpoint(folder / "variables" / "variables")
    try:
        actor = Actor("exported", tuple(_steps(folder, checkpoint) or ()))
        categorical = told.action.kind == CATEGORICAL
        answers = numpy_actor.evaluate(actor, np.zeros((1, told.observation.size), np.float32), categorical)
        if answers.shape == (1, told.action.size):
            return told, actor
    except (LookupError, TypeError, ValueError, AttributeError):
        pass  # no manifest, or a damaged one: the graph itself tells what the model does
    return told, _graph(folder, meta, checkpoint, told)


def _steps(folder: Path, checkpoint: Checkpoint) -> list[Step] | None:
    """The steps that the manifest lists; None where the model is a trainer's graph."""
    path = folder / "assets.extra" / manifest.FILE_NAME
    try:
        listed: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["actor"]["steps"]
        kinds = [next(iter(step)) for step in listed]
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None  # no manifest of ours: the graph itself tells what the model does
    if kinds == ["graph"]:
        return None
    made: list[Step] = []
    for k, (kind, told) in enumerate(zip(kinds, listed, strict=True)):
        named = {part: weight_name(k, part) for part in WEIGHTS}
        parts = {part: checkpoint.value(name) for part, name in named.items() if name in checkpoint.stored}
        match kind:
            case "dense":
                made.append(Dense(told["dense"], parts["kernel"], parts.get("bias")))
            case "batch_norm":
                norm = BatchNorm(
                    told["batch_norm"], parts.get("gamma"), parts.get("beta"), parts["mean"], parts["variance"], told["epsilon"]
                )
                made.append(norm)
            case "activation":
                made.append(Activation(told["activation"]))
            case "branch":
                made.append(Branch())
            case "join":
                made.append(Join())
            case _:
                return None
    return made


def _graph(folder: Path, meta: meta_graph_pb2.MetaGraphDef, checkpoint: Checkpoint, told: pb.PolicyContract) -> GraphActor:
    """The graph from observation to action, as it stands in the model."""
    if SIGNATURE not in meta.signature_def:
        raise InputError(f"{folder}: has no signature {SIGNATURE}; export it again")
    signature = meta.signature_def[SIGNATURE]
    try:
        graph = graph_pb2.GraphDef.FromString(meta.graph_def.SerializeToString())
        observation, output = node_of(signature.inputs[INPUT].name), signature.outputs[ACTION].name
        variables = {
            node.name: (name, checkpoint.value(name))
            for node in graph.node
            if node.op == "VarHandleOp" and (name := node.attr["shared_name"].s.decode()) in checkpoint.stored
        }
    except (KeyError, ValueError) as error:
        raise InputError(f"{folder}: is no model of an actor: {error}") from None
    columns = 1 if told.action.kind == CATEGORICAL else told.action.size
    trained = TrainedGraph(folder, graph, observation, output, {}, variables)
    return cut(trained, told.observation.size, columns, ACTION_OUTPUT)
