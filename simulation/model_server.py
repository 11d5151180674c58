"""A simulation's model server: an embedded one, in a process of its own, with exactly the given versions.

The simulating process loads no TensorFlow, which may crash beside other libraries (PyTorch with Triton).
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from city import program
from city.errors import InputError, library_errors
from protos import predict_pb2 as pb
from serving.client import Client
from simulation.model_files import Versions

PARENT_INTERVAL_S = 1.0
"""Wall time between two looks at the parent process."""


@contextlib.contextmanager
def model_server(versions: Versions) -> Iterator[str]:
    """Serve the versions and yield the server's HOST:PORT; yield "" without versions.

    A version that is published later is not served: the models of a run stay the same. The server ends with the block,
    and with this process, however it ends.
    Raises InputError if the server cannot start or load a version.
    """
    if not versions:
        yield ""
        return
    process = _start(versions)
    try:
        address = f"127.0.0.1:{_port(process)}"
        with Client(address, retries=2) as client:
            for tl, path in versions.items():
                for status in client.status(tl):
                    if status.state != pb.ModelVersionStatus.AVAILABLE:
                        raise InputError(f"{path}: cannot be loaded ({status.status.error_message}); export it again")
        yield address
    finally:
        _stop(process)


def _start(versions: Versions) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        # -P: a user's simulation.py in the working directory must not be run instead
        [sys.executable, "-P", "-c", f"import sys; from {__name__} import main; sys.exit(main({os.getpid()}))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal reaches this process, which stops the server
        # no GPU: actors are small, and the process that trains may need its memory
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    with contextlib.suppress(BrokenPipeError):  # its reason follows in `_port`
        _pipe(process.stdin).write(json.dumps({tl: str(path) for tl, path in versions.items()}).encode() + b"\n")
        _pipe(process.stdin).flush()
    return process


def _port(process: subprocess.Popen[bytes]) -> int:
    """Wait until the server listens; return its port. Raises InputError with the server's error."""
    line = _pipe(process.stdout).readline().decode(errors="replace").strip()
    if line.isdigit():
        return int(line)
    raise InputError(
        line.removeprefix("error: ") or f"the model server ended with exit code {process.wait()} before it listened"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    # it has nothing to finish, and a process that was forked from this one may hold its stdin open
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            _pipe(stream).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "Popen has PIPE"
    return stream


def main(parent: int) -> int:
    """Serve the versions of the first line of stdin until stdin closes or the parent process ends.

    Prints the port, or one line with the error.
    """
    versions = json.loads(sys.stdin.buffer.readline())
    # before the slow import, so that a parent that ends during it leaves nothing behind
    threading.Thread(target=_end_with_parent, args=(parent,), name="parent", daemon=True).start()
    return program.run(lambda: _serve(versions), takes_signals=False, errors=sys.stdout)


def _serve(versions: dict[str, str]) -> int:
    remedy = "; pip install 'greenserve[serving]', or pass the address of a server"
    with library_errors("the models' server cannot start", ImportError, remedy):
        from serving.embedded.config import ServerConfig
        from serving.embedded.models.model_config import ModelConfig
        from serving.embedded.models.version_policy import VersionPolicy
        from serving.embedded.server import Server

    folders = {tl: Path(folder) for tl, folder in versions.items()}
    models = {
        tl: ModelConfig(tl, path.parent, VersionPolicy(latest=None, specific=(int(path.name),)))
        for tl, path in folders.items()
    }
    server = Server(ServerConfig(port=0, models=models, poll_s=0))
    server.start()
    print(server.port, flush=True)
    threading.Event().wait()  # `_end_with_parent` ends the process
    return 0


def _end_with_parent(parent: int) -> None:
    """End this process once stdin closes, or the parent ends while a process that it forked holds stdin open."""
    while not select.select([sys.stdin], [], [], PARENT_INTERVAL_S)[0] and os.getppid() == parent:
        pass
    os._exit(0)  # no ordinary exit: it would wait for the calls of a client that is gone
