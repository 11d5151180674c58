"""The server of models that a simulation asks: one that runs already, or an embedded one that is started for it."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from city.errors import InputError

STOP_TIMEOUT_S = 120.0


@contextlib.contextmanager
def model_server(
    address: str | None, models_dir: Path, city: Path, tls: Sequence[str], number: int | None = None
) -> Iterator[str]:
    """HOST:PORT of the TLs' models; "" if no TL needs any. Raises InputError.

    Args:
        address: of a server that runs already; None: an embedded one is started on `models_dir`.
        models_dir: folder of the models.
        city: city.toml.
        tls: whose models are needed.
        number: their model number; None: the newest.
    """
    if not tls or address is not None:
        yield address or ""
        return
    for tl in tls:
        path = models_dir / tl if number is None else models_dir / tl / str(number)
        if not path.is_dir():
            raise InputError(f"there is no model {path}; export it first (greenserve export --tl {tl})")
    command = [sys.executable, "-m", "serving", "--city", str(city), "--models-dir", str(models_dir), "--port", "0"]
    with (
        # a file: a pipe that nobody reads would stop the server
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("ready at "):
                process.wait(STOP_TIMEOUT_S)
                log.seek(0)
                raise InputError(f"the embedded server did not start: {log.read().strip() or 'it gave no reason'}")
            yield line.removeprefix("ready at ").strip().partition(",")[0]
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
