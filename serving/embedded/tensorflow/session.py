"""A loaded SavedModel, ready to run: the only file of the server that reaches TensorFlow.

Loaded by TensorFlow's own C++ loader, tag `serve`, into a session set up as
TensorFlow Serving sets one up. Graphs of actors are small, so an operation runs
in its caller's thread: handing it to a pool would cost more than the operation.
"""

import ctypes
import math
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from city.errors import first_line
from protos import predict_pb2 as wire
from protos import tensorflow_pb2
from serving.embedded.status import StatusError
from serving.embedded.tensorflow.library import STRING, STRING_SIZE, Library, Output, TensorFlowError, library
from serving.tensors import BITS, TensorError, to_array

_CONFIG = tensorflow_pb2.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
_TENSOR_NAME = re.compile(r"\^?([^:]+)(?::(\d+))?")
_DTYPES = {number: np.dtype(name) for number, name in BITS.items()}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_here = threading.local()


class LoadError(Exception):
    """A version folder that cannot be loaded; the text says why."""


@dataclass(frozen=True)
class Signature:
    """A SignatureDef as plain Python, in the order of its keys."""

    method_name: str
    inputs: Mapping[str, int]
    """Key -> dtype."""
    outputs: Mapping[str, int]
    defaults: Mapping[str, NDArray[Any]]
    """Inputs that a request may leave out."""


class _RunArguments(NamedTuple):
    """Arguments of TF_SessionRun for one signature and choice of outputs."""

    keys: tuple[str, ...]
    feeds: Any
    fetches: Any
    output_count: int


class Session:
    """One version of a model. Safe to use from many threads; freed with its last reference."""

    def __init__(self, path: Path) -> None:
        """Load. Raises LoadError."""
        tf = self._tf = library()
        options, status, buffer, graph = tf.NewSessionOptions(), tf.NewStatus(), tf.NewBuffer(), tf.NewGraph()
        session = None
        try:
            config = _CONFIG.SerializeToString()
            tf.SetConfig(options, config, len(config), status)
            tf.raise_for(status)
            tags = (ctypes.c_char_p * 1)(b"serve")
            session = tf.LoadSessionFromSavedModel(options, None, str(path).encode(), tags, 1, graph, buffer, status)
            tf.raise_for(status)
            self.definitions = wire.SignatureDefMap()
            for name, definition in tensorflow_pb2.MetaGraphDef.FromString(tf.content(buffer)).signature_def.items():
                self.definitions.signature_def[name].CopyFrom(definition)
            self.signatures = {name: _signature(found) for name, found in self.definitions.signature_def.items()}
        except BaseException as error:
            _free(tf, session, graph)
            if isinstance(error, TensorFlowError | TensorError | UnicodeEncodeError):
                raise LoadError(first_line(error)) from error
            raise
        finally:
            tf.DeleteBuffer(buffer)
            tf.DeleteStatus(status)
            tf.DeleteSessionOptions(options)
        self._session, self._graph = session, graph
        self._all_outputs: dict[str, _RunArguments] = {}
        """By signature, the arguments that request every output; clients choose other orders, so those are not kept."""
        # the process's end frees it too, and another thread may still be running it then
        weakref.finalize(self, _free, tf, session, graph).atexit = False

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """The named outputs of a signature for arrays by input key, in order.

        Numbers that NumPy does not know are the integers that hold them
        (`serving.tensors.BITS`). Raises StatusError with TensorFlow's own code
        and words.
        """
        tf = self._tf
        arguments = self._arguments(signature, tuple(outputs))
        types = self.signatures[signature].inputs
        status = _status(tf)
        fed: list[int] = []
        fetched = (ctypes.c_void_p * arguments.output_count)()
        try:
            for key in arguments.keys:
                fed.append(_to_tensor(tf, inputs[key], types[key]))
            feeds = (ctypes.c_void_p * len(fed))(*fed)
            tf.SessionRun(
                self._session,
                None,
                arguments.feeds,
                feeds,
                len(fed),
                arguments.fetches,
                fetched,
                arguments.output_count,
                None,
                0,
                None,
                status,
            )
            tf.raise_for(status)
            return [_to_array(tf, int(tensor)) for tensor in fetched if tensor is not None]
        except TensorFlowError as error:
            raise StatusError(_CODES[error.code], str(error)) from None
        finally:
            for tensor in fetched:
                if tensor:
                    tf.DeleteTensor(tensor)
            # only now: what was fetched may be what was fed
            for tensor in fed:
                tf.DeleteTensor(tensor)

    def _arguments(self, signature: str, outputs: tuple[str, ...]) -> _RunArguments:
        is_all = outputs == tuple(self.signatures[signature].outputs)
        if is_all and (known := self._all_outputs.get(signature)) is not None:
            return known
        definition = self.definitions.signature_def[signature]
        keys = tuple(sorted(definition.inputs))
        feeds = (Output * len(keys))(*(self._output(definition.inputs[key].name) for key in keys))
        fetches = (Output * len(outputs))(*(self._output(definition.outputs[key].name) for key in outputs))
        arguments = _RunArguments(keys, feeds, fetches, len(outputs))
        if is_all:
            self._all_outputs[signature] = arguments
        return arguments

    def _output(self, name: str) -> Output:
        """A tensor of the graph by its name. Raises StatusError where the graph has none."""
        found = _TENSOR_NAME.fullmatch(name)
        operation = self._tf.GraphOperationByName(self._graph, found[1].encode()) if found else None
        index = int(found[2] or 0) if found else 0
        if not operation or index >= self._tf.OperationNumOutputs(operation):
            message = f"Tensor {name}, specified in either feed_devices or fetch_devices was not found in the Graph"
            raise StatusError(grpc.StatusCode.NOT_FOUND, message)
        return Output(operation, index)


def _signature(definition: wire.SignatureDef) -> Signature:
    return Signature(
        definition.method_name,
        {key: definition.inputs[key].dtype for key in sorted(definition.inputs)},
        # a variable itself (TF1) is told as a reference, 100 above its numbers' dtype; what is fetched are the numbers
        {key: definition.outputs[key].dtype % 100 for key in sorted(definition.outputs)},
        {key: to_array(tensor, bits=True) for key, tensor in definition.defaults.items()},
    )


class _Status:
    """A TF_Status, freed with the thread that it belongs to."""

    def __init__(self, tf: Library) -> None:
        self._tf = tf
        self.pointer: int = tf.NewStatus()

    def __del__(self) -> None:
        self._tf.DeleteStatus(self.pointer)


def _status(tf: Library) -> int:
    """This thread's TF_Status."""
    status: _Status | None = getattr(_here, "status", None)
    if status is None:
        status = _here.status = _Status(tf)
    return int(status.pointer)


def _to_tensor(tf: Library, array: NDArray[Any], dtype: int) -> int:
    """A tensor with a copy of the array."""
    shape = array.shape
    dims = (ctypes.c_int64 * len(shape))(*shape)
    if dtype == STRING:
        return tf.new_texts([bytes(text) for text in array.reshape(-1).tolist()], dims)
    size = array.nbytes
    tensor: int = tf.AllocateTensor(dtype, dims, len(shape), size)
    # a small array's bytes are had faster than its address
    contiguous = np.ascontiguousarray(array)
    data: Any = contiguous.tobytes() if size < 1 << 14 else contiguous.ctypes.data
    place = tf.TensorData(tensor)
    if size and not place:
        tf.DeleteTensor(tensor)
        raise _no_memory(size)
    ctypes.memmove(place, data, size)
    return tensor


def _no_memory(size: int) -> StatusError:
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"no memory for an input of {size} bytes")


def _to_array(tf: Library, tensor: int) -> NDArray[Any]:
    dtype = tf.TensorType(tensor)
    shape = [tf.Dim(tensor, i) for i in range(tf.NumDims(tensor))]
    data = tf.TensorData(tensor)
    if dtype == STRING:
        found = np.empty(math.prod(shape), object)
        for i in range(len(found)):
            text = data + i * STRING_SIZE
            found[i] = ctypes.string_at(tf.StringGetDataPointer(text), tf.StringGetSize(text))
        return found.reshape(shape)
    kind = _DTYPES.get(dtype)
    if kind is None:
        raise StatusError(grpc.StatusCode.UNIMPLEMENTED, f"an output of dtype {dtype} cannot be sent")
    content = ctypes.string_at(data, tf.TensorByteSize(tensor)) if data else b""
    return np.frombuffer(content, kind).reshape(shape)


def _free(tf: Library, session: int | None, graph: int) -> None:
    if session:
        status = tf.NewStatus()
        tf.CloseSession(session, status)
        tf.DeleteSession(session, status)
        tf.DeleteStatus(status)
    tf.DeleteGraph(graph)
