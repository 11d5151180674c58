"""RPCs of PredictionService that no policy uses. They fail with UNIMPLEMENTED and refer to TensorFlow Serving."""

from typing import Any, NoReturn

from google.protobuf import empty_pb2
from grpc import StatusCode

from protos import predict_pb2 as wire
from serving.embedded.status import StatusError

UNIMPLEMENTED_RPCS: dict[str, Any] = {
    "Classify": wire.GetModelStatusRequest,
    "Regress": wire.GetModelStatusRequest,
    "MultiInference": empty_pb2.Empty,
}
"""Name -> message that parses the request; that of Classify and Regress finds the model spec, which metrics need."""


def unimplemented(name: str, _request: Any = None) -> NoReturn:
    """Raise the StatusError of an RPC that this server does not implement."""
    raise StatusError(
        StatusCode.UNIMPLEMENTED,
        f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it",
    )
