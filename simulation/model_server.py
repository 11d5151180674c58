"""A simulation's model server: an embedded one in this process, with exactly the given versions."""

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
    """Serve the versions and yield the server's HOST:PORT; yield "" without versions.

    A version that is published later is not served: the models of a run stay the same.
    Raises InputError if the server cannot start or load a version.
    """
    if not versions:
        yield ""
        return
    # not at the top: loading TensorFlow's library takes a second
    from serving.embedded.server import Server

    models = {
        tl: ModelConfig(tl, path.parent, VersionPolicy(latest=None, specific=(int(path.name),)))
        for tl, path in versions.items()
    }
    server = Server(ServerConfig(port=0, models=models, poll_s=0))
    server.start()
    try:
        address = f"127.0.0.1:{server.port}"
        with Client(address, retries=2) as client:
            for tl, path in versions.items():
                for status in client.status(tl):
                    if status.state != pb.ModelVersionStatus.AVAILABLE:
                        raise InputError(f"{path}: cannot be loaded ({status.status.error_message}); export it again")
        yield address
    finally:
        server.stop()
