"""ModelService.GetModelStatus, with the checks and texts of tensorflow/serving's get_model_status_impl.cc."""

from grpc import StatusCode

from protos import predict_pb2 as wire
from serving.embedded.models.manager import ModelManager
from serving.embedded.status import StatusError


def get_model_status(manager: ModelManager, request: wire.GetModelStatusRequest) -> wire.GetModelStatusResponse:
    """Return the states of a model's versions, newest first. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec")
    return wire.GetModelStatusResponse(model_version_status=manager.states(request.model_spec))
