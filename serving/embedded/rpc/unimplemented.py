"""PredictionService's RPCs that no policy uses: answered UNIMPLEMENTED with a reference to TensorFlow Serving."""

from collections.abc import Callable
from typing import Any, NoReturn

from google.protobuf import empty_pb2

from protos import predict_pb2 as wire
from serving.embedded.status import StatusError, unimplemented

RPCS: dict[str, Any] = {
    "Classify": wire.GetModelStatusRequest,
    "Regress": wire.GetModelStatusRequest,
    "MultiInference": empty_pb2.Empty,
}
"""Name -> message that takes the request: of Classify and Regress it reads the model, which metrics count."""


def not_implemented(name: str) -> StatusError:
    """The error of an RPC that this server does not implement."""
    return unimplemented(f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it")


def unimplemented_rpc(name: str) -> Callable[[Any], NoReturn]:
    """The function of an RPC that this server does not implement."""

    def function(_request: Any) -> NoReturn:
        raise not_implemented(name)

    return function
