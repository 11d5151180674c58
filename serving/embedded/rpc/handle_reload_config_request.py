"""ModelService.HandleReloadConfigRequest: replaces the whole configuration, or leaves it unchanged.

Any client that reaches the port chooses base paths, so the models must lie in one folder, their root.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from grpc import StatusCode

from protos import model_server_config_pb2 as pb
from serving.embedded.models import model_config
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.status import StatusError, refuse
from serving.embedded.telemetry import ServerMetrics


def handle_reload_config_request(
    reconfigure: Callable[[Mapping[str, ModelConfig]], None],
    root: Path | None,
    metrics: ServerMetrics,
    request: pb.ReloadConfigRequest,
) -> pb.ReloadConfigResponse:
    """Serve the models that the request lists, and no others; return the increases of the named metrics.

    Args:
        reconfigure: replaces the configuration. Raises StatusError.
        root: folder in which the models must lie; None permits no folder.
        metrics: the server's.
        request: the models, and names of metrics.

    As in tensorflow/serving's model_service_impl.cc, the RPC itself fails with the status
    that the response has a field for. Raises StatusError.
    """
    refuse(
        (
            not request.config.HasField("model_config_list"),
            "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently "
            "supported",
        )
    )
    configs = model_config.from_proto(request.config.model_config_list)
    for config in configs.values():
        _check_folder(config, root)
    before = metrics.totals(request.metric_names)
    reconfigure(configs)
    after = metrics.totals(before)
    increases = [pb.Metric(name=name, int64_value_increase=after[name] - total) for name, total in before.items()]
    return pb.ReloadConfigResponse(metric=increases)


def switched_off(_request: pb.ReloadConfigRequest) -> NoReturn:
    """The RPC of a server with --enable_reload_config_request=false. Raises StatusError."""
    raise StatusError(
        StatusCode.UNIMPLEMENTED, "HandleReloadConfigRequest is switched off (--enable_reload_config_request=false)"
    )


def common_folder(configs: Mapping[str, ModelConfig]) -> Path | None:
    """The folder that holds the folders of all these models, with links resolved; None without models."""
    parents = [os.path.realpath(config.base_path.parent) for config in configs.values()]
    return Path(os.path.commonpath(parents)) if parents else None


def _check_folder(config: ModelConfig, root: Path | None) -> None:
    """Raise StatusError (INVALID_ARGUMENT) unless the model's folder lies in the root, with links resolved."""
    model = f"model {config.name}: {str(config.base_path)!r}"
    try:
        folder = Path(os.path.realpath(config.base_path))
    except ValueError as error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"{model} cannot be read: {error}") from None
    refuse(
        (
            root is None,
            f"{model} lies in no permitted folder: the server started without models; start it with --models_root",
        ),
        (
            not folder.is_relative_to(os.path.realpath(root or folder)),
            f"{model} lies outside of {root}; move the model, or start the server with --models_root",
        ),
    )
