"""A loaded SavedModel, ready to run (models/servable.Servable), through TensorFlow's C API.

TensorFlow's C++ loader loads tag `serve`, as in TensorFlow Serving. Operations of
most actors are small, so they run in the calling thread: a thread pool would cost
more than the operation. Large graphs run in TensorFlow's threads, as in TensorFlow
Serving, and graphs with loops, with a time limit.
"""

import ctypes
import math
import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grpc import StatusCode
from numpy.typing import NDArray

from city.errors import first_line
from protos import predict_pb2 as wire
from protos import tensorflow_pb2
from serving.embedded.models.servable import LoadError, Signature
from serving.embedded.status import StatusError
from serving.embedded.tensorflow import graph_check
from serving.embedded.tensorflow.library import STRING_SIZE, Library, Output, TensorFlowError, library
from serving.tensors import DT_STRING, STORAGE_DTYPES, TensorError, to_array

MAX_RUN_MS = 10_000
"""Maximum duration of a run with loops."""
_CONFIG = tensorflow_pb2.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
"""Operations run in the calling thread."""
_LARGE_CONFIG = tensorflow_pb2.ConfigProto()
"""Operations that do not depend on each other run in TensorFlow's threads."""
MIN_LARGE_SIZE = 10_000_000
"""Size of the work (`graph_check.Work`) from which threads gain time. One street policy has 0.2 million, a fleet of 12
1.8 million (threads take 1.2 x the time), of 50 8.8 million (0.97 x), of 300 44 million (0.85 x); a fleet of 1,000
64-64 networks has 1.9 million (1.05 x)."""
_LOOP_CONFIG = tensorflow_pb2.ConfigProto(intra_op_parallelism_threads=1, operation_timeout_in_ms=MAX_RUN_MS)
"""Operations run in TensorFlow's threads, because a run in the calling thread has no time limit."""
_TENSOR_NAME = re.compile(r"\^?([^:]+)(?::(\d+))?")
_CODES = {code.value[0]: code for code in StatusCode}


class Session:
    """One version of a model. Thread-safe; TensorFlow's session is freed with the last reference."""

    def __init__(self, path: Path, allow_any_operation: bool = False) -> None:
        """Load a version's folder. Raises LoadError, also for what `graph_check` refuses."""
        tf = self._tf = library()
        work = graph_check.check(path, allow_any_operation)
        options = tf.NewSessionOptions()
        status = tf.NewStatus()
        buffer = tf.NewBuffer()
        graph = tf.NewGraph()
        session = None
        try:
            config = _config(work).SerializeToString()
            tf.SetConfig(options, config, len(config), status)
            tf.raise_for(status)
            tags = (ctypes.c_char_p * 1)(b"serve")
            session = tf.LoadSessionFromSavedModel(options, None, str(path).encode(), tags, 1, graph, buffer, status)
            tf.raise_for(status)
            self.definitions = wire.SignatureDefMap()
            for name, definition in tensorflow_pb2.MetaGraphDef.FromString(tf.content(buffer)).signature_def.items():
                self.definitions.signature_def[name].CopyFrom(definition)
            self.signatures: Mapping[str, Signature] = {
                name: _signature(definition) for name, definition in self.definitions.signature_def.items()
            }
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
        self._all_outputs: dict[str, tuple[Any, Any]] = {}
        """Signature -> its feeds, and fetches of all outputs in the signature's order. Other lists of outputs are not
        cached, because clients choose them without bound."""
        # not at exit: the process frees the session anyway, and another thread may still run it
        weakref.finalize(self, _free, tf, session, graph).atexit = False

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run a signature and return the named outputs, in order.

        Args:
            signature: name of the signature.
            inputs: arrays by input key. A dtype that NumPy lacks is passed and returned as the
                integers that store it (`serving.tensors.STORAGE_DTYPES`).
            outputs: output keys.

        Raises:
            StatusError: with TensorFlow's code and text.
        """
        tf = self._tf
        feeds, fetches = self._feeds_and_fetches(signature, tuple(outputs))
        status = tf.NewStatus()
        input_tensors: list[int] = []
        output_tensors = (ctypes.c_void_p * len(fetches))()
        try:
            for key, dtype in self.signatures[signature].inputs.items():
                input_tensors.append(_to_tensor(tf, inputs[key], dtype))
            feed_values = (ctypes.c_void_p * len(input_tensors))(*input_tensors)
            tf.SessionRun(
                self._session,
                None,
                feeds,
                feed_values,
                len(input_tensors),
                fetches,
                output_tensors,
                len(fetches),
                None,
                0,
                None,
                status,
            )
            tf.raise_for(status)
            return [_to_array(tf, int(tensor)) for tensor in output_tensors if tensor is not None]
        except TensorFlowError as error:
            raise StatusError(_CODES[error.code], str(error)) from None
        finally:
            for tensor in output_tensors:
                if tensor:
                    tf.DeleteTensor(tensor)
            # after the fetched tensors: an output may share an input's memory
            for tensor in input_tensors:
                tf.DeleteTensor(tensor)
            tf.DeleteStatus(status)

    def _feeds_and_fetches(self, signature: str, outputs: tuple[str, ...]) -> tuple[Any, Any]:
        """TF_SessionRun's arrays of TF_Output for all inputs and these outputs. Raises StatusError."""
        fetches_all = outputs == tuple(self.signatures[signature].outputs)
        if fetches_all and (cached := self._all_outputs.get(signature)) is not None:
            return cached
        definition = self.definitions.signature_def[signature]
        keys = self.signatures[signature].inputs
        feeds = (Output * len(keys))(*(self._output(definition.inputs[key].name) for key in keys))
        fetches = (Output * len(outputs))(*(self._output(definition.outputs[key].name) for key in outputs))
        if fetches_all:
            self._all_outputs[signature] = feeds, fetches
        return feeds, fetches

    def _output(self, name: str) -> Output:
        """The graph's tensor of this name. Raises StatusError if there is none."""
        if match := _TENSOR_NAME.fullmatch(name):
            operation = self._tf.GraphOperationByName(self._graph, match[1].encode())
            index = int(match[2] or 0)
            if operation and index < self._tf.OperationNumOutputs(operation):
                return Output(operation, index)
        message = f"Tensor {name}, specified in either feed_devices or fetch_devices was not found in the Graph"
        raise StatusError(StatusCode.NOT_FOUND, message)


def _config(work: graph_check.Work) -> tensorflow_pb2.ConfigProto:
    if work.has_loops:
        return _LOOP_CONFIG
    return _LARGE_CONFIG if work.size >= MIN_LARGE_SIZE else _CONFIG


def _signature(definition: wire.SignatureDef) -> Signature:
    return Signature(
        {key: definition.inputs[key].dtype for key in sorted(definition.inputs)},
        # an output that is a TF1 variable has the reference dtype, 100 above that of the fetched values
        {key: definition.outputs[key].dtype % 100 for key in sorted(definition.outputs)},
        {key: to_array(tensor, raw=True) for key, tensor in definition.defaults.items()},
    )


def _to_tensor(tf: Library, array: NDArray[Any], dtype: int) -> int:
    """A new TF_Tensor with a copy of the array."""
    shape = array.shape
    dims = (ctypes.c_int64 * len(shape))(*shape)
    if dtype == DT_STRING:
        return tf.new_string_tensor([bytes(string) for string in array.reshape(-1).tolist()], dims)
    size = array.nbytes
    tensor: int = tf.AllocateTensor(dtype, dims, len(shape), size)
    # copying a small array's bytes is faster than ctypes' look-up of its address
    contiguous = np.ascontiguousarray(array)
    data: Any = contiguous.tobytes() if size < 1 << 14 else contiguous.ctypes.data
    address = tf.TensorData(tensor)
    if size and not address:
        tf.DeleteTensor(tensor)
        raise StatusError(StatusCode.RESOURCE_EXHAUSTED, f"no memory for an input of {size} bytes")
    ctypes.memmove(address, data, size)
    return tensor


def _to_array(tf: Library, tensor: int) -> NDArray[Any]:
    """A copy of a TF_Tensor's values. Raises StatusError for a dtype that cannot be sent."""
    dtype = tf.TensorType(tensor)
    shape = [tf.Dim(tensor, i) for i in range(tf.NumDims(tensor))]
    data = tf.TensorData(tensor)
    if dtype == DT_STRING:
        strings = np.empty(math.prod(shape), object)
        for i in range(len(strings)):
            string = data + i * STRING_SIZE
            strings[i] = ctypes.string_at(tf.StringGetDataPointer(string), tf.StringGetSize(string))
        return strings.reshape(shape)
    numpy_dtype = STORAGE_DTYPES.get(dtype)
    if numpy_dtype is None:
        raise StatusError(StatusCode.UNIMPLEMENTED, f"an output of dtype {dtype} cannot be sent")
    content = ctypes.string_at(data, tf.TensorByteSize(tensor)) if data else b""
    return np.frombuffer(content, numpy_dtype).reshape(shape)


def _free(tf: Library, session: int | None, graph: int) -> None:
    if session:
        status = tf.NewStatus()
        tf.CloseSession(session, status)
        tf.DeleteSession(session, status)
        tf.DeleteStatus(status)
    tf.DeleteGraph(graph)
