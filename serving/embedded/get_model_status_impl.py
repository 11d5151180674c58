"""ModelService.GetModelStatus, worded as tensorflow/serving's get_model_status_impl.cc."""

from protos import predict_pb2 as wire
from serving.embedded.model_manager import ModelManager
from serving.embedded.status import Answer, invalid_argument


def get_model_status(manager: ModelManager, request: wire.GetModelStatusRequest) -> Answer:
    """States of a model's versions, newest first. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return Answer(0, wire.GetModelStatusResponse(model_version_status=manager.states(request.model_spec)))
