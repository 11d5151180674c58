"""Actors as TensorFlow functions: SavedModels from training, whole Keras models, a user's own builder.

The actor is extracted from the function's graph and the variables that it captures,
as from a MetaGraph.
"""

import collections
import contextlib
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import saved_model_pb2

from city.errors import InputError, first_line, library_errors
from export.checkpoints.linear_layers import checkpoint_of
from export.checkpoints.source import ActorRequest, KerasModel
from export.graphs import graph_check, output_tensor, training_graph
from export.graphs.graph_actor import TrainedActor, TrainedGraph
from export.graphs.training_graph import RUN_ERRORS
from serving.contract import DEFAULT_SIGNATURE

GPU_KERNEL = "_could_use_gpu_kernel"
"""Attribute of Keras 2's recurrent layers. If it is true, their graph holds a second implementation, for GPUs."""
_NOT_THE_MEAN = re.compile(r"value|critic|log_?prob|std|sigma|scale|entropy|sample|hidden|state", re.I)
_THE_MEAN = re.compile(
    r"((actor|action|policy|pi)_)?(means?|mu|loc|logits?|probs?|probabilities|actions?|actor|policy|pi)", re.I
)
"""For the full name of an output: a part of it is not enough, as in queue_prob."""


def from_saved_model(path: Path, request: ActorRequest) -> TrainedActor:
    """Read the actor of a SavedModel that training wrote; its output is KEY or SIGNATURE:KEY. Raises InputError."""
    with library_errors("cannot be read as a SavedModel"):
        model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        if not model.meta_graphs:
            raise ValueError("it holds no graph")
        for meta_graph in model.meta_graphs:
            graph_check.check_loading(meta_graph)
        loaded = tf.saved_model.load(os.fspath(path))
        functions = _functions(loaded)
    signature, _, key = (request.output_tensor or "").rpartition(":")
    concrete = functions[_chosen(functions, signature)]
    return from_function(concrete, {}, replace(request, output_tensor=key or None), owner=loaded)


def _chosen(functions: Mapping[str, Any], signature: str) -> str:
    """The requested function, else the usual one, else the only one. Raises InputError."""
    if not functions:
        raise InputError("has neither a signature nor a traced function; save it with one that takes an observation")
    if signature and signature not in functions:
        raise InputError(f"has no signature {signature}; there are {', '.join(functions)}")
    usual = [name for name in (signature, DEFAULT_SIGNATURE, "serve", "__call__") if name in functions]
    if not usual and len(functions) > 1:
        raise InputError(f"has the functions {', '.join(functions)}; choose one with --output-tensor FUNCTION:OUTPUT")
    return next(iter(usual or functions))


def from_model(model: Any, size: int | None, names: Mapping[int, str], request: ActorRequest) -> TrainedActor:
    """Trace a Keras model, or another callable on an observation, as an actor.

    Args:
        model: the callable.
        size: size of an observation, if the model does not define it.
        names: id of each variable -> its name in the checkpoint.
        request: the requested actor.

    Raises:
        InputError: the model is not an actor.
    """
    inputs = getattr(model, "inputs", None)
    if inputs is not None and len(inputs) > 1:
        raise InputError(
            f"the model takes {len(inputs)} inputs, but an actor takes one observation; export its actor alone"
        )
    if inputs:
        _check_row(f"the model takes {tuple(inputs[0].shape[1:])}", inputs[0].shape)
    size = inputs[0].shape[-1] if inputs else size
    if size is None:
        raise InputError("the model does not define the size of an observation; pass --city, which does")

    def call_model(observation: Any) -> Any:
        return model(observation, training=False)

    spec = tf.TensorSpec([None, int(size)], tf.float32, name="observation")
    function = tf.function(call_model, input_signature=[spec], autograph=False)
    with library_errors("the model cannot be called on an observation"):
        concrete = function.get_concrete_function()
    stored_as = {v.ref(): names[id(v)] for v in concrete.variables if id(v) in names}
    return from_function(concrete, stored_as, request, owner=(model, function))


def from_keras_file(path: Path, request: ActorRequest, stored: KerasModel) -> tuple[TrainedActor | None, str]:
    """(the actor, ""), or (None, the reason) if Keras cannot load the model. Its weights may still be readable.

    Raises InputError if the loaded model is not an actor.
    """
    model, reason = _load_keras(path, stored)
    if model is None:
        return None, f"Keras cannot load it{reason}"
    for layer in model.submodules if isinstance(model, tf.Module) else ():
        if hasattr(layer, GPU_KERNEL):
            setattr(layer, GPU_KERNEL, False)
    names = {id_of(weight): path_of(weight) for weight in model.weights}
    return from_model(model, request.inputs, names, request), ""


def _load_keras(path: Path, stored: KerasModel) -> tuple[Any, str]:
    """(the model, ""), or (None, the reason).

    No code in the file is run: a Lambda is refused, because Keras 2 runs its pickled code by default.
    """
    try:
        has_lambda = _has_lambda(json.loads(stored.config)) if stored.config else False
    except (ValueError, RecursionError) as error:
        return None, f": its architecture cannot be read: {first_line(error)}"
    if has_lambda:
        return None, ": it has a Lambda layer, whose code would be run"
    reason = ""
    is_keras_2 = stored.version.startswith("2.")
    # tf_keras is Keras 2; it may not be installed
    for name in ["tf_keras", "keras"] if is_keras_2 else ["keras", "tf_keras"]:
        if name == "keras" and is_keras_2 and "hard_sigmoid" in stored.config:
            reason = reason or ": Keras 3 has another hard_sigmoid than Keras 2; install tf_keras"
            continue
        try:
            keras = importlib.import_module(name)
        except ImportError:
            continue
        # Keras 2 takes `safe_mode` for .keras files alone; within its scope it also holds for HDF5
        scopes = importlib.import_module("tf_keras.src.saving.serialization_lib") if name == "tf_keras" else None
        try:
            with scopes.SafeModeScope(safe_mode=True) if scopes else contextlib.nullcontext():
                return keras.models.load_model(str(path), compile=False, safe_mode=True), ""
        except Exception as error:  # noqa: BLE001 - Keras raises many kinds, mostly for unknown classes
            reason = reason or f", so its wiring is unknown: {first_line(error)}"
    return None, reason


def _has_lambda(config: Any) -> bool:
    if isinstance(config, dict):
        return str(config.get("class_name")).rpartition(">")[2] == "Lambda" or any(map(_has_lambda, config.values()))
    return isinstance(config, list) and any(map(_has_lambda, config))


def path_of(weight: Any) -> str:
    """Name of a weight in its model, in Keras 2 or 3."""
    return str(getattr(weight, "path", weight.name)).split(":")[0]


def id_of(weight: Any) -> int:
    """id of a weight's variable, which Keras 3 wraps."""
    return id(getattr(weight, "_value", weight))


def from_function(concrete: Any, names: Mapping[Any, str], request: ActorRequest, owner: Any) -> TrainedActor:
    """Read the actor that a concrete function computes.

    Args:
        concrete: the function.
        names: reference of a variable -> its name in the checkpoint (default: its own name).
        request: the requested actor.
        owner: the owner of the variables, which the function itself does not keep alive.

    Raises:
        InputError: the function is not an actor, or does more than an actor. Nothing of it is run then.
    """
    graph_check.check_graph(concrete.graph.as_graph_def())
    parameters = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    observation = _observation(parameters)
    constants, variables = _captured(concrete, names)
    for tensor in parameters:
        if tensor is not observation:
            constants[tensor.op.name] = _switch(tensor)
    observation_name = observation.op.name

    def call(x: NDArray[Any]) -> list[Any]:
        arguments = {tensor.op.name: tf.constant(constants.get(tensor.op.name, False)) for tensor in parameters}
        arguments[observation_name] = tf.constant(x, observation.dtype)
        positional, keywords = concrete.structured_input_signature
        assert owner is not None  # the reference keeps the variables alive
        values = [arguments[tensor.op.name] for tensor in parameters]
        outputs = concrete(*values) if positional else concrete(**dict(zip(sorted(keywords), values, strict=True)))
        return list(tf.nest.flatten(outputs))

    shape = observation.shape
    size = shape[1] if shape.rank == 2 and shape[1] is not None else training_graph.input_size(variables)
    if size is None:
        raise InputError("does not define the size of an observation; export a model whose input has a fixed size")
    index, key = _output(concrete, request.output_tensor, call, size)
    graph = TrainedGraph(
        concrete.graph.as_graph_def(), observation_name, concrete.outputs[index].name, constants, variables
    )

    def run(x: NDArray[Any]) -> NDArray[Any]:
        with library_errors("cannot be run", RUN_ERRORS):
            return np.asarray(call(x)[index])

    reference_model = training_graph.validated_reference_model(graph, run, size, request, key)
    return TrainedActor(graph, reference_model, checkpoint_of(dict(variables.values()), True))


def _observation(parameters: Sequence[Any]) -> Any:
    """The one parameter of a function that is an observation. Raises InputError."""
    floats = [tensor for tensor in parameters if tensor.dtype.is_floating]
    if len(floats) > 1:
        floats = [tensor for tensor in floats if re.search(r"obs|state", tensor.name)] or floats
    if len(floats) != 1:
        arguments = ", ".join(tensor.op.name for tensor in parameters) or "nothing"
        raise InputError(
            f"its function takes {arguments}, but an actor takes one observation; "
            "choose another signature with --output-tensor SIGNATURE:OUTPUT"
        )
    if floats[0].shape.rank is not None:
        _check_row(f"its function takes {floats[0].op.name} {tuple(floats[0].shape[1:])}", floats[0].shape)
    return floats[0]


def _check_row(taken: str, shape: Sequence[int | None]) -> None:
    """Raise InputError unless an input is [n, O]. `taken`: the begin of the message, with the input's shape."""
    if len(shape) != 2:
        raise InputError(
            f"{taken}, not one row of numbers: an observation is one of the last step, and no sequence or image; "
            "train an actor on such observations"
        )


def _switch(tensor: Any) -> bool:
    """The value at inference of a parameter beside the observation. Raises InputError if it is unknown."""
    value = output_tensor.switch_value(tensor.op.name) if tensor.dtype == tf.bool else None
    if value is None:
        raise InputError(
            f"its function takes {tensor.op.name} beside the observation, and the value at inference "
            "is unknown; choose another signature with --output-tensor SIGNATURE:OUTPUT"
        )
    return value


def _functions(loaded: Any) -> dict[str, Any]:
    """The functions of a loaded SavedModel that may be an actor: its signatures, or its traced methods if it has
    none."""
    functions = {name: function for name, function in loaded.signatures.items() if function.outputs}
    if functions:
        return functions
    for name in dir(loaded):
        traced = getattr(getattr(loaded, name, None), "concrete_functions", None)
        for concrete in traced or ():
            # not the training trace, whose training flag is bound to True
            if concrete.outputs and not any(
                value is True for value in tf.nest.flatten(concrete.structured_input_signature)
            ):
                functions.setdefault(name, concrete)
    return functions


def _captured(concrete: Any, names: Mapping[Any, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(constants, (name, values) of variables) that a function captures, each by placeholder. Raises InputError."""
    handles = {id(variable.handle): variable for variable in concrete.variables}
    constants: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    name_counts: collections.Counter[str] = collections.Counter()
    placeholders = concrete.inputs[len(concrete.inputs) - len(concrete.captured_inputs) :]
    for captured, placeholder in zip(concrete.captured_inputs, placeholders, strict=True):
        if captured.dtype != tf.resource:
            constants[placeholder.op.name] = captured.numpy()
        elif id(captured) in handles:
            variable = handles[id(captured)]
            name = names.get(variable.ref(), variable.name.split(":")[0])
            name_counts[name] += 1
            unique = name if name_counts[name] == 1 else f"{name}#{name_counts[name]}"
            variables[placeholder.op.name] = unique, variable.numpy()
        else:
            raise InputError(
                f"its function uses {placeholder.op.name}, a resource that is not a variable; it cannot be exported"
            )
    return constants, variables


def _output(concrete: Any, output: str | None, call: Callable[[Any], list[Any]], size: int) -> tuple[int, str]:
    """(index, name) of the output that is the mean (or the logits). Raises InputError if it is not clear."""
    structure = concrete.structured_outputs
    # a nested structure has the names of its outer level only, which may hold several tensors each
    has_names = isinstance(structure, dict) and len(structure) == len(concrete.outputs)
    keys = sorted(structure) if has_names else [f"output_{k}" for k in range(len(concrete.outputs))]
    if output is not None:
        if output not in keys:
            raise InputError(f"has no output {output}; there are {', '.join(keys)}")
        return keys.index(output), output
    if len(keys) == 1 and not _NOT_THE_MEAN.search(keys[0]):
        return 0, keys[0]
    probe = np.random.default_rng(1).random((4, size)).astype(np.float32)
    is_random = [not np.array_equal(*values) for values in zip(call(probe), call(probe), strict=True)]
    # one of several outputs is chosen by its name, never by elimination
    candidates = [
        k
        for k, (key, tensor) in enumerate(zip(keys, concrete.outputs, strict=True))
        if has_names and tensor.dtype.is_floating and not is_random[k]
        if _THE_MEAN.fullmatch(key) and not _NOT_THE_MEAN.search(key)
    ]
    if len(candidates) != 1:
        raise InputError(f"has the outputs {', '.join(keys)}; choose the mean with --output-tensor")
    return candidates[0], keys[candidates[0]]
