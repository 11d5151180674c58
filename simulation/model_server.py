"""The server of the models that a simulation asks: an embedded one in this process, of exactly the wanted versions."""

import contextlib
from collections.abc import Iterator

from city.errors import InputError
from protos import predict_pb2 as pb
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import VersionPolicy
from simulation.model_files import Versions


@contextlib.contextmanager
def model_server(versions: Versions) -> Iterator[str]:
    """HOST:PORT of a server of these versions; "" if there are none.

    A version that is published later is not served: the models of a run stay the same.
    Raises InputError if it cannot start, or a version cannot be loaded.
    """
    if not versions:
        yield ""
        return
    # here: TensorFlow's library takes a second
    from serving.embedded.server import Server

    models = {
        tl: ModelConfig(tl, path.parent, VersionPolicy(latest=None, specific=(int(path.name),))) for tl, path in versions.items()
    }
    server = Server(ServerConfig(port=0, models=models, poll_s=0))
    server.start()
    try:
        address = f"127.0.0.1:{server.port}"
        _check_loaded(address, versions)
        yield address
    finally:
        server.stop()


def _check_loaded(address: str, versions: Versions) -> None:
    """Raise InputError if a server could not load a version."""
    with Client(address, retries=2) as client:
        for tl, path in versions.items():
            for status in client.status(tl):
                if status.state != pb.ModelVersionStatus.AVAILABLE:
                    raise InputError(f"{path}: cannot be loaded ({status.status.error_message}); export it again")
