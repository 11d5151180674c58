"""ModelService.HandleReloadConfigRequest: replaces the whole configuration, or nothing of it."""

from collections.abc import Callable, Mapping

from protos import model_server_config_pb2 as pb
from serving.embedded.models import model_config
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.status import invalid_argument


def handle_reload_config_request(
    reconfigure: Callable[[Mapping[str, ModelConfig]], None], request: pb.ReloadConfigRequest
) -> pb.ReloadConfigResponse:
    """Serve the models that the request lists, and no others. Raises StatusError.

    As in tensorflow/serving's model_service_impl.cc the RPC fails with the status
    that the response would carry.
    """
    if request.config.WhichOneof("config") is None:
        raise invalid_argument("ModelServerConfig is empty: it needs a model_config_list")
    reconfigure(model_config.from_proto(request.config))
    return pb.ReloadConfigResponse()
