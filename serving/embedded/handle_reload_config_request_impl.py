"""ModelService.HandleReloadConfigRequest: the whole configuration is replaced, or nothing of it."""

from collections.abc import Callable, Mapping

from protos import model_server_config_pb2 as pb
from serving.embedded import model_config
from serving.embedded.model_config import ModelConfig
from serving.embedded.status import Answer, invalid_argument


def handle_reload_config_request(
    reconfigure: Callable[[Mapping[str, ModelConfig]], None], request: pb.ReloadConfigRequest
) -> Answer:
    """Serve what the request lists, and nothing else. Raises StatusError.

    As in tensorflow/serving's model_service_impl.cc the RPC fails with the same
    status that the response would carry.
    """
    if request.config.WhichOneof("config") is None:
        raise invalid_argument("ModelServerConfig is empty: it needs a model_config_list")
    reconfigure(model_config.of_proto(request.config))
    return Answer(0, pb.ReloadConfigResponse())
