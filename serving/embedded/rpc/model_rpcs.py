"""The RPCs beside Predict and reloads: a model's signatures and states, and those that no policy uses.

Checks and texts are those of tensorflow/serving's get_model_metadata_impl.cc and get_model_status_impl.cc.
"""

from typing import Any, NoReturn

from google.protobuf import empty_pb2
from grpc import StatusCode

from protos import predict_pb2 as wire
from serving.embedded.models.manager import ModelManager
from serving.embedded.status import StatusError, refuse

_FIELD = "signature_def"
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
UNIMPLEMENTED_RPCS: dict[str, Any] = {
    "Classify": wire.GetModelStatusRequest,
    "Regress": wire.GetModelStatusRequest,
    "MultiInference": empty_pb2.Empty,
}
"""RPCs that fail with UNIMPLEMENTED: name -> message that parses the request; that of Classify and Regress finds the
model spec, which metrics need."""


def get_model_metadata(manager: ModelManager, request: wire.GetModelMetadataRequest) -> wire.GetModelMetadataResponse:
    """Return the signatures of a model. Raises StatusError."""
    refuse(
        (not request.HasField("model_spec"), "Missing ModelSpec"),
        (not request.metadata_field, "GetModelMetadataRequest must specify at least one metadata_field"),
        *((name != _FIELD, f"Metadata field {name} is not supported") for name in request.metadata_field),
    )
    version, servable = manager.find(request.model_spec)
    response = wire.GetModelMetadataResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = version
    response.metadata[_FIELD].type_url = _TYPE_URL
    response.metadata[_FIELD].value = servable.definitions.SerializeToString()
    return response


def get_model_status(manager: ModelManager, request: wire.GetModelStatusRequest) -> wire.GetModelStatusResponse:
    """Return the states of a model's versions, newest first. Raises StatusError."""
    refuse((not request.HasField("model_spec"), "Missing ModelSpec"))
    return wire.GetModelStatusResponse(model_version_status=manager.states(request.model_spec))


def unimplemented(name: str, _request: Any = None) -> NoReturn:
    """Raise the StatusError of an RPC that this server does not implement."""
    raise StatusError(
        StatusCode.UNIMPLEMENTED,
        f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it",
    )
