"""The server of models that a simulation asks: one that runs already, or an embedded one that is started for it."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format

from city.arguments import host_and_port
from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.embedded.models import version_files

STOP_TIMEOUT_S = 30.0


@contextlib.contextmanager
def model_server(address: str | None, models_dir: Path, wanted: Mapping[str, Sequence[int | None]]) -> Iterator[str]:
    """HOST:PORT of the TLs' models; "" if no model is wanted. Raises InputError.

    Args:
        address: of a server that runs already; None: an embedded one is started on `models_dir`. It serves these
            versions only, and none that is published later: the models of a run stay the same.
        models_dir: folder of the models.
        wanted: model numbers by TL; None: the newest.
    """
    if not wanted:
        yield ""
        return
    if address is not None:
        if not address.startswith("unix:"):
            host_and_port(address, "--server")
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="greenserve-") as name:
        folder = Path(name)
        (folder / "models.config").write_text(text_format.MessageToString(_config(models_dir.resolve(), wanted)))
        command = [sys.executable, "-P", "-m", "serving", "--model_config_file", str(folder / "models.config"), "--port", "0"]
        with (
            # a file: a pipe that is full would block the server
            (folder / "log").open("w+") as log,
            subprocess.Popen(
                [*command, "--file_system_poll_wait_seconds", "0"], stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            ) as process,
        ):
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if not line.startswith("ready at "):
                    process.wait(STOP_TIMEOUT_S)
                    reason = (folder / "log").read_text().strip() or f"exit code {process.returncode}"
                    raise InputError(f"the embedded server did not start: {reason}")
                yield line.removeprefix("ready at ").strip().partition(",")[0]
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                process.kill()


def _config(models_dir: Path, wanted: Mapping[str, Sequence[int | None]]) -> pb.ModelServerConfig:
    """The wanted versions, by number. Raises InputError if one is missing."""
    config = pb.ModelServerConfig()
    for tl, numbers in wanted.items():
        versions = version_files.versions(models_dir / tl)
        if not versions:
            raise InputError(f"there is no model in {models_dir / tl}; export it first (greenserve export --tl {tl})")
        entry = config.model_config_list.config.add(name=tl, base_path=str(models_dir / tl), model_platform="tensorflow")
        for number in dict.fromkeys(max(versions) if each is None else each for each in numbers):
            if number not in versions:
                available = ", ".join(map(str, sorted(versions)))
                raise InputError(f"there is no model {models_dir / tl / str(number)}; {tl} has {available}")
            entry.model_version_policy.specific.versions.append(number)
    return config
