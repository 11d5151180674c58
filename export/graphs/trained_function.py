"""Actors that come as TensorFlow functions: SavedModels from training, whole Keras models, a user's own builder.

A function's graph and the variables it captures are all that is needed: the
actor is extracted from it as from a MetaGraph.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import saved_model_pb2

from city.errors import InputError, first_line
from export.checkpoints.checkpoint import Checkpoint, StoredVariable
from export.graphs import output_tensor, training_graph
from export.graphs.graph_actor import ReferenceModel, TrainedGraph
from serving.contract import DEFAULT_SIGNATURE

_NOT_THE_MEAN = re.compile(r"value|critic|log_?prob|std|sigma|scale|entropy|sample|hidden|state", re.I)
_THE_MEAN = re.compile(r"((actor|action|policy|pi)_)?(means?|mu|loc|logits?|probs?|probabilities|actions?|actor|policy|pi)", re.I)
"""The whole name of an output; queue_prob may be anything."""


@dataclass(frozen=True)
class TrainedActor:
    """An actor as a function, its reference model, and its variables by name."""

    graph: TrainedGraph
    reference_model: ReferenceModel
    checkpoint: Checkpoint


def of_saved_model(path: Path, output: str | None, categorical: bool) -> TrainedActor:
    """The actor of a SavedModel that training wrote; `output`: KEY or SIGNATURE:KEY. Raises InputError."""
    try:
        model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        if not model.meta_graphs:
            raise ValueError("it holds no graph")
        loaded = tf.saved_model.load(os.fspath(path))
        functions = _functions(loaded)
    except Exception as error:  # noqa: BLE001 - TensorFlow raises several exceptions for corrupt files
        raise InputError(f"{path}: cannot be read as a SavedModel: {first_line(error)}") from None
    signature, _, key = (output or "").rpartition(":")
    if not functions:
        raise InputError(f"{path}: has neither a signature nor a function that takes an observation")
    if signature and signature not in functions:
        raise InputError(f"{path}: has no signature {signature}; there are {', '.join(functions)}")
    chosen = signature or next((name for name in (DEFAULT_SIGNATURE, "serve", "__call__") if name in functions), None)
    if chosen is None and len(functions) > 1:
        raise InputError(f"{path}: has the functions {', '.join(functions)}; choose one with --output-tensor FUNCTION:OUTPUT")
    concrete = functions[chosen or next(iter(functions))]
    return of_function(path, concrete, _named_variables(concrete), key or None, categorical, keep=loaded)


def of_keras(
    where: Path, model: Any, size: int | None, names: Mapping[int, str], output: str | None, categorical: bool
) -> TrainedActor:
    """The actor that a Keras model (or any callable of an observation) is. Raises InputError.

    Args:
        where: the file, for messages.
        model: the callable.
        size: size of an observation, if the model does not define it.
        names: id of each variable -> its name in the checkpoint.
        output: name of the output; None: it is searched for.
        categorical: whether the output is logits or probabilities.
    """
    inputs = getattr(model, "inputs", None)
    if inputs is not None and len(inputs) > 1:
        raise InputError(
            f"{where}: the model takes {len(inputs)} inputs, but an actor takes one observation; export its actor alone"
        )
    size = inputs[0].shape[-1] if inputs else size
    if size is None:
        raise InputError(f"{where}: the model does not define the size of an observation; pass --city, which does")

    def call_model(observation: Any) -> Any:
        return model(observation, training=False)

    spec = tf.TensorSpec([None, int(size)], tf.float32, name="observation")
    act = tf.function(call_model, input_signature=[spec], autograph=False)

    try:
        concrete = act.get_concrete_function()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model of the user's raises
        raise InputError(f"{where}: the model cannot be called on an observation: {first_line(error)}") from None
    stored = {v.ref(): names.get(id(v), v.name.split(":")[0]) for v in concrete.variables}
    return of_function(where, concrete, stored, output, categorical, keep=(model, act))


def of_function(
    where: Path, concrete: Any, names: Mapping[Any, str], output: str | None, categorical: bool, keep: Any
) -> TrainedActor:
    """The actor that a concrete function computes; `keep`: the owner of its variables. Raises InputError."""
    parameters = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    floats = [tensor for tensor in parameters if tensor.dtype.is_floating]
    if len(floats) > 1:
        floats = [tensor for tensor in floats if re.search(r"obs|state", tensor.name)] or floats
    if len(floats) != 1:
        arguments = ", ".join(tensor.op.name for tensor in parameters) or "nothing"
        raise InputError(
            f"{where}: its function takes {arguments}, but an actor takes one observation; "
            "choose another signature with --output-tensor SIGNATURE:OUTPUT"
        )
    constants, variables = _captured(where, concrete, names)
    for tensor in parameters:
        if tensor is not floats[0]:
            value = output_tensor.switch_value(tensor.op.name) if tensor.dtype == tf.bool else None
            if value is None:
                raise InputError(
                    f"{where}: its function takes {tensor.op.name} beside the observation, with an unknown value at inference; "
                    "choose another signature with --output-tensor SIGNATURE:OUTPUT"
                )
            constants[tensor.op.name] = value
    observation = floats[0].op.name
    dtype = floats[0].dtype

    def call(x: NDArray[Any]) -> list[Any]:
        arguments = {tensor.op.name: tf.constant(constants.get(tensor.op.name, False)) for tensor in parameters}
        arguments[observation] = tf.constant(x, dtype)
        positional, named = concrete.structured_input_signature
        held = keep  # a function does not own the variables it captures
        if positional:
            outputs = concrete(*(arguments[tensor.op.name] for tensor in parameters))
        else:
            outputs = concrete(**{key: arguments[tensor.op.name] for key, tensor in zip(sorted(named), parameters, strict=True)})
        assert held is not None
        return list(tf.nest.flatten(outputs))

    size = _size(floats[0], variables, concrete)
    if size is None:
        raise InputError(f"{where}: does not define the size of an observation; export a model whose input has a fixed size")
    index = _output(where, concrete, output, lambda x: call(x), size)
    graph = TrainedGraph(where, concrete.graph.as_graph_def(), observation, concrete.outputs[index].name, constants, variables)

    def run(x: NDArray[Any]) -> NDArray[Any]:
        try:
            return np.asarray(call(x)[index])
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise InputError(f"{where}: cannot be run: {first_line(error)}") from None

    reference_model = training_graph.validated_reference_model(graph, run, size, categorical, output is not None)
    return TrainedActor(graph, reference_model, _checkpoint(where, variables))


def _functions(loaded: Any) -> dict[str, Any]:
    """Functions of a loaded SavedModel that can be an actor: its signatures, else its traced methods."""
    functions = {name: function for name, function in loaded.signatures.items() if function.outputs}
    if functions:
        return functions
    for name in dir(loaded):
        traced = getattr(getattr(loaded, name, None), "concrete_functions", None)
        for concrete in traced or ():
            # use the inference trace: its training flag is bound to False
            if concrete.outputs and not any(value is True for value in tf.nest.flatten(concrete.structured_input_signature)):
                functions.setdefault(name, concrete)
    return functions


def _named_variables(concrete: Any) -> dict[Any, str]:
    return {variable.ref(): variable.name.split(":")[0] for variable in concrete.variables}


def _captured(where: Path, concrete: Any, names: Mapping[Any, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a function captures, by placeholder: constants, and (name, values) of variables."""
    handles = {id(variable.handle): variable for variable in concrete.variables}
    constants: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    taken: dict[str, int] = {}
    placeholders = concrete.inputs[len(concrete.inputs) - len(concrete.captured_inputs) :]
    for captured, placeholder in zip(concrete.captured_inputs, placeholders, strict=True):
        if captured.dtype != tf.resource:
            constants[placeholder.op.name] = captured.numpy()
        elif id(captured) in handles:
            variable = handles[id(captured)]
            name = names.get(variable.ref(), variable.name.split(":")[0])
            taken[name] = taken.get(name, 0) + 1
            unique = name if taken[name] == 1 else f"{name}#{taken[name]}"
            variables[placeholder.op.name] = unique, variable.numpy()
        else:
            raise InputError(
                f"{where}: its function needs {placeholder.op.name}, which is not a variable; such an actor cannot be exported"
            )
    return constants, variables


def _size(observation: Any, variables: Mapping[str, Any], concrete: Any) -> int | None:
    shape = observation.shape
    if shape.rank == 2 and shape[1] is not None:
        return int(shape[1])
    kernels = [values.shape for name, values in variables.values() if name.endswith("kernel") and values.ndim == 2]
    takes = {shape[0] for shape in kernels} - {shape[1] for shape in kernels}
    return int(takes.pop()) if len(takes) == 1 else None


def _output(where: Path, concrete: Any, output: str | None, call: Callable[[Any], list[Any]], size: int) -> int:
    """Which of a function's outputs is the mean (or the logits). Raises InputError."""
    structure = concrete.structured_outputs
    named = isinstance(structure, dict)
    keys = sorted(structure) if named else [f"output_{k}" for k in range(len(concrete.outputs))]
    if output is not None:
        if output not in keys:
            raise InputError(f"{where}: has no output {output}; there are {', '.join(keys)}")
        return keys.index(output)
    if len(keys) == 1 and not _NOT_THE_MEAN.search(keys[0]):
        return 0
    probe = np.random.default_rng(1).random((4, size)).astype(np.float32)
    first, again = call(probe), call(probe)
    fitting = [
        k
        for k, (before, after) in enumerate(zip(first, again, strict=True))
        if before.dtype.is_floating and before.shape.rank in (1, 2) and before.shape[0] == 4 and np.array_equal(before, after)
    ]
    # of several outputs, one is chosen by its name, never by elimination
    fitting = [k for k in fitting if named and _THE_MEAN.fullmatch(keys[k]) and not _NOT_THE_MEAN.search(keys[k])]
    if len(fitting) != 1:
        raise InputError(f"{where}: has the outputs {', '.join(keys)}; choose the mean with --output-tensor")
    return fitting[0]


def _checkpoint(where: Path, variables: Mapping[str, tuple[str, Any]]) -> Checkpoint:
    values = dict(variables.values())
    stored = {name: StoredVariable(name, array.shape, array.dtype.name) for name, array in values.items()}
    return Checkpoint(where, stored, lambda name: values[name], ordered=True, first_number=None)
