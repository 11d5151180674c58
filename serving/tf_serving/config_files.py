"""TensorFlow Serving's configuration files for exported models: which versions of which models, metrics, TLS, flags.

    models.config      ModelServerConfig: pinned versions and their labels, or the newest versions
    monitoring.config  MonitoringConfig: Prometheus metrics on the REST port
    ssl.config         SSLConfig, if there are certificates
    flags              one flag of tensorflow_model_server a line

A fleet replaces the models of its TLs: TensorFlow Serving takes minutes to load 1,000 models, and loads their fleet at
once.

TensorFlow Serving refuses the whole configuration if it moves a label to a version that is not loaded. So a label moves
in two steps: `intermediate_versions` loads the new version beside the labelled ones, then the label moves.

It unloads a version at once if it is no longer listed, and controllers request a fleet's version by number. So the
versions that labels have left stay listed until the files are written again (`with_previous_versions`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from city import whole_files
from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.contract import ContractError, from_saved_model
from serving.embedded.config import METRICS_PATH
from serving.embedded.models import version_files

STABLE, CANARY = LABELS = "stable", "canary"
MODELS_CONFIG = "models.config"
GRPC_PORT, REST_PORT = 8500, 8501
FLAGS = (
    f"--port={GRPC_PORT}",
    f"--rest_api_port={REST_PORT}",
    # actors are small, so threads mostly wait for the network; calls beyond the number of threads are refused
    "--grpc_max_threads=64",
    # limits the age of connections, so that clients find new replicas and leave those that stop
    "--grpc_channel_arguments=grpc.max_connection_age_ms=30000,grpc.max_connection_age_grace_ms=10000",
    "--enable_grpc_healthcheck_service=true",
    "--model_config_file_poll_wait_seconds=30",
    "--file_system_poll_wait_seconds=2",
    # a model that fails to load delays a reload for seconds, not minutes
    "--max_num_load_retries=2",
    "--load_retry_interval_micros=1000000",
    # labels of the first configuration name versions that are not loaded yet
    "--allow_version_labels_for_unavailable_models=true",
)


@dataclass(frozen=True)
class Versions:
    """The versions of a model to serve, and their labels; without numbers, the newest one without a label."""

    numbers: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    """Label -> version."""
    unloaded_labels: frozenset[str] = frozenset()
    """The server's labels of versions that are not loaded, so that their numbers are unknown."""


def labelled_versions(stable: int, canary: int | None = None) -> Versions:
    labels = {STABLE: stable} if canary is None else {STABLE: stable, CANARY: canary}
    return Versions(tuple(labels.values()), labels)


def intermediate_versions(current: Versions | None, target: Versions, loaded: Collection[int]) -> Versions | None:
    """The versions to serve before the target ones, so that a label only moves to a loaded version; None if not needed.

    Args:
        current: the model's versions and labels now; None if it is not served.
        target: its versions and labels to reach.
        loaded: its versions that are loaded.
    """
    if current is None:
        return None
    moved = [
        version
        for label, version in target.labels.items()
        if label in current.unloaded_labels or current.labels.get(label) != version
    ]
    if all(version in loaded for version in moved):
        return None
    # a label of an unknown number is left out: it cannot stay, and must not move yet; a new one too
    labels = {
        label: version
        for label, version in {**target.labels, **current.labels}.items()
        if label not in current.unloaded_labels and (label in current.labels or version in loaded)
    }
    return Versions(tuple(sorted({*labels.values(), *target.numbers})), labels)


def with_previous_versions(current: Versions | None, target: Versions, on_disk: Collection[int]) -> Versions:
    """The target versions and those that labels leave, because controllers request them by number until they have
    moved.

    Args:
        current: the model's versions and labels now; None if it is not served.
        target: its versions and labels to reach.
        on_disk: its versions in the folder of models.
    """
    if current is None or not target.numbers:
        return target
    previous = {
        current.labels[label]
        for label, version in target.labels.items()
        if current.labels.get(label, version) != version
    }
    kept = previous.intersection(on_disk) - set(target.numbers)
    return Versions(tuple(sorted({*target.numbers, *kept})), target.labels) if kept else target


def describe_labels(current: Versions | None, target: Versions) -> str:
    """The changes of labels, such as `stable 1 -> 2`; empty if there are none."""
    if current is None:
        return ""
    before, after = current.labels, target.labels
    return ", ".join(
        f"{label} {before.get(label, 'none')} -> {after.get(label, 'none')}"
        for label in dict.fromkeys([*before, *after])
        if before.get(label) != after.get(label)
    )


@dataclass(frozen=True)
class ServerFiles:
    """The content of one server's files."""

    models: Mapping[str, Versions]
    mounted_at: str = "/models"
    """Folder of the models inside the container."""
    config_at: str = "/config"
    """Folder of these files inside the container."""
    ssl: pb.SSLConfig | None = None


def write(files: ServerFiles, out: Path) -> None:
    """Write the files into a folder, each atomically, models.config last. Raises InputError."""
    monitoring = pb.MonitoringConfig(prometheus_config=pb.PrometheusConfig(enable=True, path=METRICS_PATH))
    texts = {"monitoring.config": text_format.MessageToString(monitoring)}
    flags = {"model_config_file": MODELS_CONFIG, "monitoring_config_file": "monitoring.config"}
    if files.ssl is not None:
        texts["ssl.config"] = text_format.MessageToString(files.ssl)
        flags["ssl_config_file"] = "ssl.config"
    lines = [*FLAGS, *(f"--{flag}={files.config_at}/{name}" for flag, name in flags.items())]
    texts["flags"] = "".join(f"{line}\n" for line in lines)
    texts[MODELS_CONFIG] = text_format.MessageToString(models_config(files))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{error.filename or out}: cannot be written: {error.strerror}; pass another --out") from None
    for name, text in texts.items():
        with whole_files.replacing(out / name, "pass another --out") as draft:
            # ssl.config contains the private key
            draft.touch(mode=0o600 if name == "ssl.config" else 0o666)
            draft.write_text(text, encoding="utf-8")


def read(out: Path) -> dict[str, Versions]:
    """Read the versions in a folder's models.config by model; empty without the file. Raises InputError."""
    path = out / MODELS_CONFIG
    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelServerConfig())
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise InputError(f"{path}: not a ModelServerConfig ({error}); remove it, or pass another --out") from None
    return {
        model.name: Versions(tuple(model.model_version_policy.specific.versions), dict(model.version_labels))
        for model in config.model_config_list.config
    }


def models_config(files: ServerFiles) -> pb.ModelServerConfig:
    """The content of models.config."""
    config = pb.ModelServerConfig()
    for name, versions in files.models.items():
        model = config.model_config_list.config.add(
            name=name, base_path=f"{files.mounted_at}/{name}", model_platform="tensorflow"
        )
        if versions.numbers:
            model.model_version_policy.specific.versions.extend(versions.numbers)
        model.version_labels.update(versions.labels)
    return config


def fleet_members(models_dir: Path, models: Mapping[str, Versions], fleets: Collection[str] | None) -> set[str]:
    """The TLs in all served versions of a fleet; their own models need not be served.

    Args:
        models_dir: folder of the models.
        models: model -> versions to serve.
        fleets: names of the fleets to consider; None: all.
    """
    members: set[str] = set()
    for name, versions in models.items():
        if fleets is not None and name not in fleets:
            continue
        numbers = versions.numbers or (max(version_files.versions(models_dir / name)),)
        try:
            tls = [{member.tl for member in from_saved_model(models_dir / name / str(n)).members} for n in numbers]
        except ContractError:
            continue  # not an exported policy; it is served anyway
        members |= set.intersection(*tls)
    return members
