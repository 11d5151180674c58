"""Model configs: a model's folder, the versions to serve, and their labels.

They come from TensorFlow Serving's text proto (--model_config_file), from a reload
request, or from a folder of models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from city import model_folders
from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.embedded.models.version_policy import NEWEST, VersionPolicy
from serving.embedded.status import StatusError, refuse

_Message = TypeVar("_Message", bound=Message)
NO_REQUEST_LOG = (
    "this server logs no requests; leave logging_config out (greenserve control --record keeps what was asked)"
)
"""Error about a model's logging_config."""
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


def read_text(path: Path, message: _Message) -> _Message:
    """Parse a file in protobuf's text format into this message and return it. Raises InputError."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), message)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; check its name and permissions") from None
    except text_format.ParseError as error:
        # our messages are TensorFlow Serving's, in a package of their own
        name = message.DESCRIPTOR.name
        text = str(error).replace(f"{message.DESCRIPTOR.file.package}.", "tensorflow.serving.")
        remedy = NO_REQUEST_LOG if '"logging_config"' in text else "correct the file"
        raise InputError(f"{path}: not a tensorflow.serving.{name}: {text}; {remedy}") from None


def from_file(path: Path) -> dict[str, ModelConfig]:
    """Read a ModelServerConfig as text proto. Raises InputError."""
    config = read_text(path, pb.ModelServerConfig())
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
        own = f"model {entry.name}: "
        policy = entry.model_version_policy
        refuse(
            (not entry.name, "a model in model_config_list has no name; add name"),
            (entry.name in configs, f"Illegal to list model {entry.name} multiple times in config list"),
            (
                (entry.model_type, entry.model_platform) not in _PLATFORMS,
                f"{own}model_platform {entry.model_platform!r} must be 'tensorflow', without model_type",
            ),
            (
                "://" in entry.base_path,
                f"{own}{entry.base_path}: this server reads local folders only; copy the model to one",
            ),
            (
                not Path(entry.base_path).is_absolute(),
                f"Expected model {entry.name} to have an absolute path or URI; got base_path()={entry.base_path}",
            ),
            # the one field of tensorflow.serving.ModelConfig that our message lacks
            (len(UnknownFieldSet(entry)), f"{own}{NO_REQUEST_LOG}"),
            (
                policy.HasField("specific") and not policy.specific.versions,
                f"the specific version policy of model {entry.name} has no versions; add them",
            ),
        )
        configs[entry.name] = ModelConfig(entry.name, Path(entry.base_path), _policy(entry), dict(entry.version_labels))
    return configs


def _policy(entry: pb.ModelConfig) -> VersionPolicy:
    policy = entry.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return VersionPolicy(latest=None)
        case "specific":
            return VersionPolicy(latest=None, specific=tuple(policy.specific.versions))
        case "latest":
            # 0 means the default, 1, as in TensorFlow Serving
            return VersionPolicy(latest=policy.latest.num_versions or 1)
    return NEWEST
