"""The server of the models that a simulation asks: an embedded one in this process, of exactly the wanted versions."""

import contextlib
from collections.abc import Iterator

from serving.embedded.config import ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import VersionPolicy
from training.model_files import Versions


@contextlib.contextmanager
def model_server(versions: Versions) -> Iterator[str]:
    """HOST:PORT of a server of these versions; "" if there are none. Raises InputError if it cannot start.

    A version that is published later is not served: the models of a run stay the same.
    A version that fails to load is not served; requests for it fail with the reason.
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
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()
