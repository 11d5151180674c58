"""Model configs: a model's folder, the versions to serve, and their labels.

Read from TensorFlow Serving's text proto (--model_config_file), from a reload
request, or from a folder of models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.embedded.models.version_policy import NEWEST, VersionPolicy
from serving.embedded.status import StatusError, invalid_argument

PLATFORM = "tensorflow"


@dataclass(frozen=True)
class ModelConfig:
    """One model."""

    name: str
    base_path: Path
    policy: VersionPolicy = NEWEST
    labels: Mapping[str, int] = field(default_factory=dict)
    """Version label -> version."""


def from_folder(models_dir: Path) -> dict[str, ModelConfig]:
    """Configs of every model in a folder, newest version each. Raises OSError if it cannot be listed."""
    try:
        folders = sorted(path for path in models_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {folder.name: ModelConfig(folder.name, folder) for folder in folders}


def from_file(path: Path) -> dict[str, ModelConfig]:
    """Read a ModelServerConfig as text proto. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    config = pb.ModelServerConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise InputError(f"{path}: cannot be read as ModelServerConfig: {error}") from None
    try:
        return from_proto(config)
    except StatusError as error:
        raise InputError(f"{path}: {error}") from None


def from_proto(config: pb.ModelServerConfig) -> dict[str, ModelConfig]:
    """The models of a ModelServerConfig. Raises StatusError (INVALID_ARGUMENT) if any entry is wrong."""
    if config.WhichOneof("config") == "custom_model_config":
        raise invalid_argument("custom_model_config is not supported; list the models in model_config_list")
    configs: dict[str, ModelConfig] = {}
    for entry in config.model_config_list.config:
        if not entry.name:
            raise invalid_argument("a model in model_config_list has no name; add name")
        if entry.name in configs:
            raise invalid_argument(f"Duplicate model name {entry.name} in model_config_list")
        if not entry.base_path:
            raise invalid_argument(f"model {entry.name} has no base_path; add the folder of its versions")
        platform = entry.model_platform or (PLATFORM if entry.model_type == pb.TENSORFLOW else "")
        if platform != PLATFORM:
            raise invalid_argument(f'model {entry.name} has model_platform "{entry.model_platform}"; it must be "{PLATFORM}"')
        configs[entry.name] = ModelConfig(entry.name, Path(entry.base_path), _policy(entry), dict(entry.version_labels))
    return configs


def _policy(entry: pb.ModelConfig) -> VersionPolicy:
    policy = entry.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return VersionPolicy(latest=None)
        case "specific":
            if not policy.specific.versions:
                raise invalid_argument(f"the specific version policy of model {entry.name} has no versions; add them")
            return VersionPolicy(latest=None, specific=tuple(policy.specific.versions))
        case "latest":
            # 0 means the default, 1, as in TensorFlow Serving
            return VersionPolicy(latest=policy.latest.num_versions or 1)
    return NEWEST
