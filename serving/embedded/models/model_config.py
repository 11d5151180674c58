"""Model configs: a model's folder, the versions to serve, and their labels.

They come from TensorFlow Serving's text proto (--model_config_file), from a reload
request, or from a folder of models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet
from grpc import StatusCode

from city import model_folders
from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.embedded import text_proto
from serving.embedded.models.version_policy import NEWEST, VersionPolicy
from serving.embedded.status import StatusError
from serving.embedded.text_proto import NO_REQUEST_LOG

_PLATFORMS = ((pb.MODEL_TYPE_UNSPECIFIED, "tensorflow"), (pb.TENSORFLOW, ""))
"""(deprecated model_type, model_platform) of a model that can be served."""


@dataclass(frozen=True)
class ModelConfig:
    """A model to serve."""

    name: str
    base_path: Path
    policy: VersionPolicy = NEWEST
    labels: Mapping[str, int] = field(default_factory=dict)
    """Version label -> version."""


def from_folder(models_dir: Path) -> dict[str, ModelConfig]:
    """The configs of all models in a folder, with their newest version. Raises OSError if it cannot be listed."""
    return {folder.name: ModelConfig(folder.name, folder) for folder in model_folders.subfolders(models_dir)}


def from_file(path: Path) -> dict[str, ModelConfig]:
    """Read a ModelServerConfig as text proto. Raises InputError."""
    config = text_proto.read(path, pb.ModelServerConfig())
    if config.WhichOneof("config") == "custom_model_config":
        raise InputError(f"{path}: custom_model_config is not supported; list the models in model_config_list")
    try:
        return from_proto(config.model_config_list)
    except StatusError as error:
        raise InputError(f"{path}: {error}") from None


def from_proto(models: pb.ModelConfigList) -> dict[str, ModelConfig]:
    """Convert a list of models, with the checks and texts of tensorflow/serving's server_core.cc.

    Raises StatusError (INVALID_ARGUMENT) if an entry is invalid.
    """
    configs: dict[str, ModelConfig] = {}
    for entry in models.config:
        if not entry.name:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "a model in model_config_list has no name; add name")
        if entry.name in configs:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"Illegal to list model {entry.name} multiple times in config list"
            )
        if (entry.model_type, entry.model_platform) not in _PLATFORMS:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"model {entry.name}: model_platform {entry.model_platform!r} must be 'tensorflow', without model_type",
            )
        if "://" in entry.base_path:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"model {entry.name}: {entry.base_path}: this server reads local folders only; copy the model to one",
            )
        if not Path(entry.base_path).is_absolute():
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"Expected model {entry.name} to have an absolute path or URI; got base_path()={entry.base_path}",
            )
        if len(UnknownFieldSet(entry)):  # the one field of tensorflow.serving.ModelConfig that our message lacks
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"model {entry.name}: {NO_REQUEST_LOG}")
        configs[entry.name] = ModelConfig(entry.name, Path(entry.base_path), _policy(entry), dict(entry.version_labels))
    return configs


def _policy(entry: pb.ModelConfig) -> VersionPolicy:
    policy = entry.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return VersionPolicy(latest=None)
        case "specific":
            if not policy.specific.versions:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"the specific version policy of model {entry.name} has no versions; add them",
                )
            return VersionPolicy(latest=None, specific=tuple(policy.specific.versions))
        case "latest":
            # 0 means the default, 1, as in TensorFlow Serving
            return VersionPolicy(latest=policy.latest.num_versions or 1)
    return NEWEST
