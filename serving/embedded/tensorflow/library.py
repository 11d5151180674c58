"""The part of TensorFlow's C API that loads and runs a SavedModel, through ctypes.

The shared library is opened without TensorFlow's Python package. Models are then
loaded by the C++ loader that TensorFlow Serving calls, without Python's GIL; the
server starts in a second, and a run takes a quarter of the time of
`tf.compat.v1.Session` (`python -m benchmarks.session`). Declarations:
tensorflow/c/c_api.h, tf_tensor.h, tf_tstring.h.
"""

import ctypes
import functools
import importlib.util
import os
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from serving.tensors import DT_STRING

STRING_SIZE = 24
"""Bytes of a TF_TString."""


class Output(Structure):
    """TF_Output: one output of an operation."""

    _fields_ = (("oper", c_void_p), ("index", c_int))


class _Buffer(Structure):
    _fields_ = (("data", c_void_p), ("length", c_size_t), ("data_deallocator", c_void_p))


_P = c_void_p
_Deallocator = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_void_p)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TF_Version": (c_char_p, ()),
    "TF_NewStatus": (_P, ()),
    "TF_GetCode": (c_int, (_P,)),
    "TF_Message": (c_char_p, (_P,)),
    "TF_DeleteStatus": (None, (_P,)),
    "TF_NewBuffer": (_P, ()),
    "TF_DeleteBuffer": (None, (_P,)),
    "TF_NewGraph": (_P, ()),
    "TF_DeleteGraph": (None, (_P,)),
    "TF_GraphOperationByName": (_P, (_P, c_char_p)),
    "TF_OperationNumOutputs": (c_int, (_P,)),
    "TF_NewOperation": (_P, (_P, c_char_p, c_char_p)),
    "TF_FinishOperation": (_P, (_P, _P)),
    "TF_NewSession": (_P, (_P, _P, _P)),
    "TF_NewSessionOptions": (_P, ()),
    "TF_SetConfig": (None, (_P, c_char_p, c_size_t, _P)),
    "TF_DeleteSessionOptions": (None, (_P,)),
    "TF_LoadSessionFromSavedModel": (_P, (_P, _P, c_char_p, POINTER(c_char_p), c_int, _P, _P, _P)),
    "TF_CloseSession": (None, (_P, _P)),
    "TF_DeleteSession": (None, (_P, _P)),
    "TF_SessionRun": (None, (_P, _P, _P, _P, c_int, _P, _P, c_int, _P, c_int, _P, _P)),
    "TF_AllocateTensor": (_P, (c_int, _P, c_int, c_size_t)),
    "TF_DeleteTensor": (None, (_P,)),
    "TF_NewTensor": (_P, (c_int, _P, c_int, _P, c_size_t, _P, _P)),
    "TF_TensorData": (_P, (_P,)),
    "TF_TensorByteSize": (c_size_t, (_P,)),
    "TF_TensorType": (c_int, (_P,)),
    "TF_NumDims": (c_int, (_P,)),
    "TF_Dim": (c_int64, (_P, c_int)),
    "TF_StringInit": (None, (_P,)),
    "TF_StringCopy": (None, (_P, c_char_p, c_size_t)),
    "TF_StringGetDataPointer": (_P, (_P,)),
    "TF_StringGetSize": (c_size_t, (_P,)),
    "TF_StringDealloc": (None, (_P,)),
}
_SLOW = ("TF_LoadSessionFromSavedModel", "TF_SessionRun", "TF_CloseSession", "TF_DeleteSession", "TF_DeleteGraph")
"""Functions that may take long. They are called without the GIL, so that other Python threads run."""


class TensorFlowError(Exception):
    """An error of TensorFlow, with its text; `code` is the number of a gRPC status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Library:
    """The functions of the C API, by their names without the prefix `TF_`."""

    def __init__(self, path: Path) -> None:
        """Open the library. Raises OSError."""
        # PyDLL keeps the GIL: releasing and acquiring it takes longer than these functions
        gil_released, gil_held = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(gil_released if name in _SLOW else gil_held, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("TF_"), function)
        self._strings: dict[int, Any] = {}
        """Address -> memory of each string tensor that TensorFlow still references."""
        self._deallocator = _Deallocator(self._free)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"TF_{name} is not declared here")

    def new_string_tensor(self, strings: list[bytes], dims: Any) -> int:
        """Create a TF_Tensor of strings. TensorFlow frees them with the last reference, which may be a variable's."""
        size = STRING_SIZE * len(strings)
        memory = ctypes.create_string_buffer(max(size, 1))
        begin = ctypes.addressof(memory)
        for i, string in enumerate(strings):
            self.StringInit(begin + i * STRING_SIZE)
            self.StringCopy(begin + i * STRING_SIZE, string, len(string))
        self._strings[begin] = memory
        tensor: int = self.NewTensor(DT_STRING, dims, len(dims), begin, size, self._deallocator, None)
        return tensor

    def _free(self, begin: int, size: int, _: Any) -> None:
        for address in range(begin, begin + size, STRING_SIZE):
            self.StringDealloc(address)
        del self._strings[begin]

    def raise_for(self, status: int) -> None:
        """Raise TensorFlowError unless a TF_Status is OK."""
        code = self.GetCode(status)
        if code:
            raise TensorFlowError(code, self.Message(status).decode(errors="replace"))

    @staticmethod
    def content(buffer: int) -> bytes:
        """The bytes of a TF_Buffer."""
        view = _Buffer.from_address(buffer)
        return ctypes.string_at(view.data, view.length)


@functools.cache
def library() -> Library:
    """Open TensorFlow's library once. Raises ImportError if it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN's operations double the time of a 64-64 actor's run
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    spec = importlib.util.find_spec("tensorflow")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    libraries = sorted(path for folder in folders for path in Path(folder).glob("libtensorflow_cc.*"))
    if not libraries:
        raise ImportError("TensorFlow's libtensorflow_cc is not installed: pip install 'greenserve[serving]'")
    tf = Library(libraries[0])
    _run_no_op(tf)
    return tf


def _run_no_op(tf: Library) -> None:
    """Run a first session, of one NoOp, and discard stderr: TensorFlow logs two lines there at every log level."""
    graph = tf.NewGraph()
    options = tf.NewSessionOptions()
    status = tf.NewStatus()
    sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        no_op = tf.FinishOperation(tf.NewOperation(graph, b"NoOp", b"no_op"), status)
        session = tf.NewSession(graph, options, status)
        tf.raise_for(status)
        tf.SessionRun(session, None, None, None, 0, None, None, 0, (c_void_p * 1)(no_op), 1, None, status)
        tf.raise_for(status)
        tf.CloseSession(session, status)
        tf.DeleteSession(session, status)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
        tf.DeleteGraph(graph)
        tf.DeleteSessionOptions(options)
        tf.DeleteStatus(status)
