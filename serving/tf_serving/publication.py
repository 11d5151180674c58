"""Make the servers of one models.config load new versions, then move the labels.

The file comes first, because a server reads it again at any time. A server that refuses it gets the file before back.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from city import config, whole_files
from city.arguments import host_and_port
from city.errors import InputError, ProgramFailed
from protos.model_server_config_pb2 import ModelServerConfig
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Client
from serving.client.tls_files import TlsFiles
from serving.errors import BadRequest, ModelNotFound, ServingError, Unavailable
from serving.tf_serving.config_files import LABELS, Versions, intermediate_versions

LOAD_TIMEOUT_S = 300.0
"""Limit for loading versions, and then for moving labels."""
STATUS_INTERVAL_S = 0.5
PROGRESS_INTERVAL_S = 10.0
"""Wall time between two lines about the progress."""
REPEATED_ERROR_S = 45.0
"""Wall time after which an error that the server reported before the call counts: it reads models.config every 30 s."""

ModelVersion = tuple[str, int]
"""(name of a model, its version)."""

AVAILABLE, END = ModelVersionStatus.AVAILABLE, ModelVersionStatus.END
Write = Callable[[Mapping[str, Versions]], ModelServerConfig]
"""Writes models.config with these versions of models, and returns its content."""


class NotLoaded(ProgramFailed):
    """A server has not loaded a version, or has not moved a label."""


class ReloadRefused(NotLoaded):
    """A server does not take a configuration."""


def loaded_versions(client: Client, model: str) -> Versions | None:
    """The versions of a model that a server has loaded, and their labels; None without any. Raises ServingError."""
    labels, unloaded_labels = {}, set()
    statuses = statuses_of_models(client, [model])
    numbers = tuple(sorted(version for (_, version), status in statuses.items() if status.state == AVAILABLE))
    for label in LABELS:
        try:
            labels[label] = client.version_number(model, label)
        except BadRequest:
            pass  # the model has no such label
        except ModelNotFound:
            unloaded_labels.add(label)
    return Versions(numbers, labels, frozenset(unloaded_labels)) if numbers or unloaded_labels else None


def reload(client: Client, config: ModelServerConfig) -> None:
    """Make a server apply a configuration now. Raises ServingError; ReloadRefused if it does not take it.

    A server without reload requests applies its file at its next poll.
    """
    end_s = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        try:
            if not client.reload_config(config, end_s - time.monotonic()):
                print(f"{client.address} takes no reload requests: it reads its file at its next poll", file=sys.stderr)
            return
        except Unavailable:
            # new models may take longer to load than a connection lives (grpc.max_connection_age_ms); if the server is
            # gone, this call fails
            statuses_of_models(client, {config.model_config_list.config[0].name})
            time.sleep(STATUS_INTERVAL_S)
        except ServingError as error:
            raise ReloadRefused(
                f"{client.address} does not take these models ({error}); models.config is as it was; look at "
                "--mounted-at and at the server's log"
            ) from None


def wait_until_labelled(client: Client, models: Mapping[str, Versions]) -> None:
    """Wait until labels have moved. `models`: model -> its labels. Raises NotLoaded, ServingError."""
    begin_s = time.monotonic()
    pending = {(name, label): version for name, each in models.items() for label, version in each.labels.items()}
    while pending:
        numbers = {(name, label): _labelled_version(client, name, label) for name, label in pending}
        pending = {item: version for item, version in pending.items() if numbers[item] != version}
        if pending and time.monotonic() - begin_s >= LOAD_TIMEOUT_S:
            (name, label), version = next(iter(pending.items()))
            raise NotLoaded(
                f"{name}: label {label} is still that of version {numbers[name, label] or 'none'} at {client.address} "
                f"after {LOAD_TIMEOUT_S:g} s, not of version {version}; look at the server's log"
            )
        if pending:
            time.sleep(STATUS_INTERVAL_S)


def _labelled_version(client: Client, model: str, label: str) -> int | None:
    """The version that a label selects at a server; None without a loaded one. Raises ServingError."""
    try:
        return client.version_number(model, label)
    except (BadRequest, ModelNotFound):
        return None


def wait_until_loaded(client: Client, models: Mapping[str, Versions], old_errors: Mapping[ModelVersion, str]) -> None:
    """Wait until a server has loaded versions; print the progress on stderr.

    Args:
        client: client of the server.
        models: model -> the versions.
        old_errors: errors that the server reported before its files were written; they count only if they persist.

    Raises:
        ServingError: the server does not answer.
        NotLoaded: it reports that a version failed, or has not loaded all in time.
    """
    begin_s = time.monotonic()
    next_line_s = 0.0
    pending = {(name, version) for name, versions in models.items() for version in versions.numbers}
    while True:
        waited_s = time.monotonic() - begin_s
        statuses = {
            item: status
            for item, status in statuses_of_models(client, {name for name, _ in pending}).items()
            if item in pending
        }
        pending = {item for item in pending if item not in statuses or statuses[item].state != AVAILABLE}
        if not pending:
            return
        for (name, version), error in sorted(failed_loads(statuses).items()):
            if old_errors.get((name, version)) != error or waited_s >= REPEATED_ERROR_S:
                raise NotLoaded(
                    f"{name}/{version}: {client.address} could not load it ({error}); no label was moved; "
                    f"export it again, or publish another version (--model {name}=NUMBER)"
                )
        name, version = min(pending)
        if waited_s >= LOAD_TIMEOUT_S:
            raise NotLoaded(
                f"{name}/{version} is not AVAILABLE at {client.address} after {LOAD_TIMEOUT_S:g} s; no label was "
                "moved; look at the server's log"
            )
        if waited_s >= next_line_s:
            next_line_s += PROGRESS_INTERVAL_S
            status = statuses.get((name, version))
            state = ModelVersionStatus.State.Name(status.state) if status else "not listed yet"
            more = f" and {len(pending) - 1} more" if len(pending) > 1 else ""
            line = f"waiting until {client.address} has loaded {name}/{version} ({state}){more}"
            print(f"{line}; {waited_s:.0f} s of at most {LOAD_TIMEOUT_S:g} s", file=sys.stderr, flush=True)
        time.sleep(STATUS_INTERVAL_S)


def failed_loads(statuses: Mapping[ModelVersion, ModelVersionStatus]) -> dict[ModelVersion, str]:
    """The errors of versions that could not be loaded."""
    return {
        item: status.status.error_message or f"error code {status.status.error_code}"
        for item, status in statuses.items()
        if status.state == END and status.status.error_code
    }


def statuses_of_models(client: Client, models: Collection[str]) -> dict[ModelVersion, ModelVersionStatus]:
    """Statuses by model and version, without models that the server does not list. Raises ServingError."""
    statuses = {}
    for name in models:
        with contextlib.suppress(ModelNotFound):
            statuses.update({(name, status.version): status for status in client.status(name)})
    return statuses


def clients(server: str, serving: config.Serving) -> list[Client]:
    """A client of each server at --server: a headless service's name resolves to several. Raises InputError."""
    files = TlsFiles(serving.tls_ca, serving.tls_certificate, serving.tls_key, serving.tls_server_name)
    tls = None if files == TlsFiles() else files.read()
    try:
        if server.startswith("unix:"):
            return [Client(server, tls=tls)]
        host, port = host_and_port(server, "--server")
        if host == "localhost":
            return [Client(server, tls=tls)]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # of a server with addresses of both versions, the IPv4 one
        version = min(family for family, *_ in found)
        hosts = sorted({str(address[0]) for family, _, _, _, address in found if family == version})
        if tls is not None and hosts != [host]:
            tls = replace(tls, server_name=tls.server_name or host)
        return [Client(f"[{each}]:{port}" if ":" in each else f"{each}:{port}", tls=tls) for each in hosts]
    except (OSError, ValueError) as error:
        raise InputError(f"--server {server}: {error}") from None


def states(
    clients: Sequence[Client], models: Collection[str], in_file: Mapping[str, Versions]
) -> list[Mapping[str, Versions]]:
    """By server, the loaded versions and labels of models; those of the file if it has loaded none. Raises
    ServingError."""
    return [
        {name: found for name in models if (found := loaded_versions(client, name)) is not None} or in_file
        for client in clients
    ]


def steps(
    target: Mapping[str, Versions], current: Mapping[str, Versions], loaded: Mapping[str, Collection[int]]
) -> dict[str, Versions]:
    """The versions to serve first of each model with a label that must not move yet."""
    found = {
        name: intermediate_versions(current.get(name), versions, loaded.get(name, ()))
        for name, versions in target.items()
    }
    return {name: step for name, step in found.items() if step is not None}


def publish(
    clients: Sequence[Client],
    current: Sequence[Mapping[str, Versions]],
    path: Path,
    target: Mapping[str, Versions],
    final: Mapping[str, Versions],
    write: Write,
) -> None:
    """Load new versions, then move the labels; return once all servers have moved them.

    Args:
        clients: of servers of the same files.
        current: by server, its `states`.
        path: models.config.
        target: model -> its versions and labels.
        final: the target, and versions that stay listed.
        write: writes the file.

    Raises NotLoaded, ServingError.
    """
    first: dict[str, Versions] = {}
    for state in current:
        first |= steps(target, state, {name: versions.numbers for name, versions in state.items()})
    if first:
        errors = [failed_loads(statuses_of_models(client, first)) for client in clients]
        _reload(clients, path, {**target, **first}, write)
        for client, old_errors in zip(clients, errors, strict=True):
            wait_until_loaded(client, {name: target[name] for name in first}, old_errors)
    written = {model.name for model in _reload(clients, path, final, write).model_config_list.config}
    for client in clients:
        wait_until_labelled(client, {name: versions for name, versions in final.items() if name in written})


def _reload(clients: Sequence[Client], path: Path, versions: Mapping[str, Versions], write: Write) -> ModelServerConfig:
    """Write the file and make servers apply it now. If one does not, the file is put back."""
    before = path.read_text(encoding="utf-8")
    config = write(versions)
    try:
        for client in clients:
            reload(client, config)
    except ReloadRefused:
        whole_files.write(path, before, whole_files.PASS_ANOTHER)
        raise
    return config
