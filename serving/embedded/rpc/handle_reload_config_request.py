"""ModelService.HandleReloadConfigRequest: replaces the whole configuration, or leaves it unchanged."""

from collections.abc import Callable, Mapping
from typing import NoReturn

from grpc import StatusCode

from protos import model_server_config_pb2 as pb
from serving.embedded.models import model_config
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.status import StatusError
from serving.embedded.telemetry.metrics import ServerMetrics


def handle_reload_config_request(
    reconfigure: Callable[[Mapping[str, ModelConfig]], None], metrics: ServerMetrics, request: pb.ReloadConfigRequest
) -> pb.ReloadConfigResponse:
    """Serve the models that the request lists, and no others; return the increases of the named metrics.

    As in tensorflow/serving's model_service_impl.cc, the RPC itself fails with the status
    that the response has a field for. Raises StatusError.
    """
    if request.config.WhichOneof("config") != "model_config_list":
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently "
            "supported",
        )
    before = metrics.totals(request.metric_names)
    reconfigure(model_config.from_proto(request.config.model_config_list))
    after = metrics.totals(before)
    increases = [pb.Metric(name=name, int64_value_increase=after[name] - total) for name, total in before.items()]
    return pb.ReloadConfigResponse(metric=increases)


def switched_off(_request: pb.ReloadConfigRequest) -> NoReturn:
    """The RPC of a server with --enable_reload_config_request=false. Raises StatusError."""
    raise StatusError(
        StatusCode.UNIMPLEMENTED, "HandleReloadConfigRequest is switched off (--enable_reload_config_request=false)"
    )
