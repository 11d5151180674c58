"""RPCs of PredictionService that no policy uses. They fail with UNIMPLEMENTED and refer to TensorFlow Serving."""

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
"""Name -> message that parses the request; that of Classify and Regress finds the model spec, which metrics need."""


def not_implemented(name: str) -> StatusError:
    """The error of an RPC that this server does not implement."""
    return unimplemented(f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it")


def unimplemented_rpc(name: str) -> Callable[[Any], NoReturn]:
    """The function of an RPC that this server does not implement."""

    def function(_request: Any) -> NoReturn:
        raise not_implemented(name)

    return function
