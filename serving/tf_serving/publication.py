"""Make the servers of one models.config load new versions, then move the labels.

The file comes first, because a server reads it again at any time. A server that refuses it gets the file before back.
"""

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from city import config, whole_files
from city.arguments import host_and_port
from city.errors import InputError
from protos.model_server_config_pb2 import ModelServerConfig
from serving.client import Client
from serving.client.tls_files import TlsFiles
from serving.tf_serving.config_files import Versions, intermediate_versions
from serving.tf_serving.loaded_versions import (
    ReloadRefused,
    failed_loads,
    loaded_versions,
    reload,
    statuses_of_models,
    wait_until_labelled,
    wait_until_loaded,
)

Write = Callable[[Mapping[str, Versions]], ModelServerConfig]
"""Writes models.config with these versions of models, and returns its content."""


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
