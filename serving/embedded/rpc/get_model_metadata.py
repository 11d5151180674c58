"""PredictionService.GetModelMetadata, with the checks and texts of tensorflow/serving's get_model_metadata_impl.cc."""

from grpc import StatusCode

from protos import predict_pb2 as wire
from serving.embedded.models.manager import ModelManager
from serving.embedded.status import StatusError

_FIELD = "signature_def"
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


def get_model_metadata(manager: ModelManager, request: wire.GetModelMetadataRequest) -> wire.GetModelMetadataResponse:
    """Return the signatures of a model. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec")
    if not request.metadata_field:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for name in request.metadata_field:
        if name != _FIELD:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"Metadata field {name} is not supported")
    version, servable = manager.find(request.model_spec)
    response = wire.GetModelMetadataResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = version
    response.metadata[_FIELD].type_url = _TYPE_URL
    response.metadata[_FIELD].value = servable.definitions.SerializeToString()
    return response
