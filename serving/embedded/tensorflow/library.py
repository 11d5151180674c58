"""TensorFlow's C API by ctypes: as much of it as it takes to load a SavedModel and run it.

TensorFlow's shared library is opened by itself, without its Python package:
what loads a model is then the C++ loader that TensorFlow Serving calls, which
holds no Python lock while it works, a server is up in a second, and a run costs
a quarter of what it costs through `tf.compat.v1.Session`
(`python -m benchmarks.session`). Declarations: tensorflow/c/c_api.h, tf_tensor.h,
tf_tstring.h.
"""

import ctypes
import functools
import importlib.util
import os
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

STRING = 7
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
    "TF_OperationOutputType": (c_int, (Output,)),
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
    "TF_TensorMaybeMove": (_P, (_P,)),
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
"""What may take long, and so must let other threads of Python go on."""


class TensorFlowError(Exception):
    """What TensorFlow refused: `code` is a gRPC status code's number, the text its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Library:
    """The functions of the C API, by their names without `TF_`."""

    NewTensor: Any
    StringInit: Any
    StringCopy: Any
    StringDealloc: Any

    def __init__(self, path: Path) -> None:
        """Raises OSError where the library cannot be opened."""
        # the second handle keeps Python's lock: giving it up and taking it again costs more than these functions
        patient, brief = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(patient if name in _SLOW else brief, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("TF_"), function)
        self._texts: dict[int, Any] = {}
        """Memory of the text tensors that are alive, by its address."""
        self._free_texts = _Deallocator(self._free)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the C API has no {name}, or it is not declared here")

    def new_texts(self, texts: list[bytes], dims: Any) -> int:
        """A tensor of texts. They are freed with the last that holds them, which may be a variable of the graph."""
        size = STRING_SIZE * len(texts)
        memory = ctypes.create_string_buffer(max(size, 1))
        begin = ctypes.addressof(memory)
        for i, text in enumerate(texts):
            self.StringInit(begin + i * STRING_SIZE)
            self.StringCopy(begin + i * STRING_SIZE, text, len(text))
        self._texts[begin] = memory
        tensor: int = self.NewTensor(STRING, dims, len(dims), begin, size, self._free_texts, None)
        return tensor

    def _free(self, begin: int, size: int, _: Any) -> None:
        for at in range(begin, begin + size, STRING_SIZE):
            self.StringDealloc(at)
        del self._texts[begin]

    def raise_for(self, status: int) -> None:
        """Raise TensorFlowError where a TF_Status is none of success."""
        code = self.GetCode(status)
        if code:
            raise TensorFlowError(code, self.Message(status).decode(errors="replace"))

    @staticmethod
    def content(buffer: int) -> bytes:
        """The bytes of a TF_Buffer."""
        found = _Buffer.from_address(buffer)
        return ctypes.string_at(found.data, found.length)


@functools.cache
def library() -> Library:
    """TensorFlow's library, opened once. Raises ImportError where there is none."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # of a 64-64 actor they make a run twice as long
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    spec = importlib.util.find_spec("tensorflow")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for place in places for path in Path(place).glob("libtensorflow_cc.*"))
    if not found:
        raise ImportError("TensorFlow is not installed, or without libtensorflow_cc: pip install 'greenserve[serving]'")
    return Library(found[0])
