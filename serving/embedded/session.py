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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import predict_pb2 as wire
from protos import tensorflow_pb2
from serving.embedded.status import StatusError
from serving.embedded.tensorflow_library import STRING, STRING_SIZE, Library, Output, TensorFlowError, library
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


class _Plan(NamedTuple):
    """What TF_SessionRun needs for one choice of outputs."""

    keys: tuple[str, ...]
    feeds: Any
    fetches: Any
    count: int


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
                raise LoadError((str(error).splitlines() or [type(error).__name__])[0]) from error
            raise
        finally:
            tf.DeleteBuffer(buffer)
            tf.DeleteStatus(status)
            tf.DeleteSessionOptions(options)
        self._session, self._graph = session, graph
        self._plans: dict[tuple[str, tuple[str, ...]], _Plan] = {}
        # the process's end frees it too, and another thread may still be running it then
        weakref.finalize(self, _free, tf, session, graph).atexit = False

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """The named outputs of a signature for arrays by input key, in order.

        Numbers that NumPy does not know are the integers that hold them
        (`serving.tensors.BITS`). Raises StatusError with TensorFlow's own code
        and words.
        """
        tf = self._tf
        plan = self._plans.get((signature, tuple(outputs))) or self._plan(signature, tuple(outputs))
        types = self.signatures[signature].inputs
        status = _status(tf)
        fed: list[int] = []
        fetched = (ctypes.c_void_p * plan.count)()
        try:
            for key in plan.keys:
                fed.append(_to_tensor(tf, inputs[key], types[key]))
            feeds = (ctypes.c_void_p * len(fed))(*fed)
            tf.SessionRun(
                self._session, None, plan.feeds, feeds, len(fed), plan.fetches, fetched, plan.count, None, 0, None, status
            )
            tf.raise_for(status)
            return [_to_array(tf, tensor) for tensor in fetched]
        except TensorFlowError as error:
            raise StatusError(_CODES[error.code], str(error)) from None
        finally:
            for tensor in fetched:
                if tensor:
                    tf.DeleteTensor(tensor)
            # only now: what was fetched may be what was fed
            for tensor in fed:
                tf.DeleteTensor(tensor)

    def bind(
        self, signature: str, key: str, shape: Sequence[int], outputs: tuple[str, ...], shapes: Sequence[tuple[int, ...]]
    ) -> Callable[[bytes], list[bytes] | None]:
        """A function of one input's bytes to the outputs' bytes, for one shape of each.

        It gives None where an output has another shape, and raises StatusError as
        `run` does. No strings. It does not keep the session: who calls it does.
        """
        plan = self._plans.get((signature, outputs)) or self._plan(signature, outputs)
        return _BoundRun(self._tf, self._session, plan, self.signatures[signature].inputs[key], shape, shapes)

    def _plan(self, signature: str, outputs: tuple[str, ...]) -> _Plan:
        definition = self.definitions.signature_def[signature]
        keys = tuple(sorted(definition.inputs))
        feeds = (Output * len(keys))(*(self._output(definition.inputs[key].name) for key in keys))
        fetches = (Output * len(outputs))(*(self._output(definition.outputs[key].name) for key in outputs))
        plan = self._plans[signature, outputs] = _Plan(keys, feeds, fetches, len(outputs))
        return plan

    def _output(self, name: str) -> Output:
        """A tensor of the graph by its name. Raises StatusError where the graph has none."""
        found = _TENSOR_NAME.fullmatch(name)
        operation = self._tf.GraphOperationByName(self._graph, found[1].encode()) if found else None
        index = int(found[2] or 0) if found else 0
        if not operation or index >= self._tf.OperationNumOutputs(operation):
            words = f"Tensor {name}, specified in either feed_devices or fetch_devices was not found in the Graph"
            raise StatusError(grpc.StatusCode.NOT_FOUND, words)
        return Output(operation, index)


class _BoundRun:
    """A session's run for one shape of input and outputs. Input tensors are kept for the next call, one a thread at most."""

    def __init__(
        self, tf: Library, session: Any, plan: _Plan, dtype: int, shape: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self._tf, self._session, self._plan = tf, session, plan
        self._dtype, self._shape = dtype, (ctypes.c_int64 * len(shape))(*shape)
        self._expected = [(len(sizes), list(enumerate(sizes))) for sizes in shapes]
        self._one, self._many = ctypes.c_void_p * 1, ctypes.c_void_p * plan.count
        self._free: list[tuple[Any, int, int]] = []

    def __call__(self, content: bytes) -> list[bytes] | None:
        tf, plan = self._tf, self._plan
        try:
            feeds, tensor, place = fed = self._free.pop()
        except IndexError:
            tensor = tf.AllocateTensor(self._dtype, self._shape, len(self._shape), len(content))
            feeds, place = self._one(tensor), tf.TensorData(tensor)
            if not place:
                tf.DeleteTensor(tensor)
                raise _no_memory(len(content)) from None
            fed = (feeds, tensor, place)
        ctypes.memmove(place, content, len(content))
        fetched, status = self._many(), _status(tf)
        tf.SessionRun(self._session, None, plan.feeds, feeds, 1, plan.fetches, fetched, plan.count, None, 0, None, status)
        if fetched[0] is None:
            self._keep(fed)
            try:
                tf.raise_for(status)
            except TensorFlowError as error:
                raise StatusError(_CODES[error.code], str(error)) from None
            raise StatusError(grpc.StatusCode.INTERNAL, "the run gave no output")
        found, fits = [], True
        for output, (rank, sizes) in zip(fetched, self._expected, strict=True):
            fits = fits and tf.NumDims(output) == rank
            for i, size in sizes if fits else ():
                fits = fits and tf.Dim(output, i) == size
            if fits:
                found.append(ctypes.string_at(tf.TensorData(output), tf.TensorByteSize(output)))
            tf.DeleteTensor(output)
        # only now: what was fetched may have been what was fed
        self._keep(fed)
        return found if fits else None

    def _keep(self, fed: tuple[Any, int, int]) -> None:
        """Keep an input tensor for the next call, unless the graph does (a variable assigned holds what was fed)."""
        if self._tf.TensorMaybeMove(fed[1]):
            self._free.append(fed)
        else:
            self._tf.DeleteTensor(fed[1])

    def __del__(self) -> None:
        for _, tensor, _ in self._free:
            self._tf.DeleteTensor(tensor)


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
    return status.pointer


def _to_tensor(tf: Library, array: NDArray[Any], dtype: int) -> int:
    """A tensor with a copy of the array."""
    shape = array.shape
    dims = (ctypes.c_int64 * len(shape))(*shape)
    if dtype == STRING:
        return tf.new_texts([bytes(text) for text in array.reshape(-1).tolist()], dims)
    size = array.nbytes
    tensor = tf.AllocateTensor(dtype, dims, len(shape), size)
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
