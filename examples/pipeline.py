"""The stages of the demo, each run as a program of the project: export, serve, control, evaluate.

Every program writes to a log file; an error names the file and quotes its end.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from city.errors import InputError, path_errors_as_input_errors
from simulation.trips import Trips, read_trips

GRID = Path(__file__).resolve().parent / "grid"
CITY = GRID / "city.toml"
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3"}
MAX_LOG_TAIL = 2000
"""Characters of a log quoted in an error."""
STOP_TIMEOUT_S = 30.0


class StageFailed(Exception):
    """A program of a stage failed; the message names its log."""


def exit_code(main: Callable[[], int]) -> int:
    """Run an example's `main`; print an expected error in one line. 2: wrong input, 1: a stage failed or Ctrl-C."""
    try:
        with path_errors_as_input_errors():
            return main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StageFailed as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted; every program that was started has ended", file=sys.stderr)
    return 1


@dataclass(frozen=True)
class Run:
    """The results of a controlled simulation."""

    trips: Trips
    figures: dict[str, Any]
    """The controller's summary."""


def export(models_dir: Path, log: Path) -> str:
    """Export every TL of the sample city; return the exporter's summary line. Raises StageFailed."""
    lines = [""]
    command = [sys.executable, "-m", "export", "--city", CITY, "--tl", "all", "--models-dir", models_dir]
    command += ["--overwrite"]  # those of a run that failed
    run("the export", command, log, lines.append)
    return lines[-1].strip()


@contextlib.contextmanager
def serving(models_dir: Path, log: Path, city: Path = CITY) -> Iterator[str]:
    """Run the embedded server on a free port; yield its HOST:PORT. Raises StageFailed."""
    command = [sys.executable, "-m", "serving", "--models-dir", str(models_dir), "--port", "0", "--city", str(city)]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=_environment()) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("ready at "):
                raise _failure("the model server", process.wait(STOP_TIMEOUT_S), log)
            yield line.removeprefix("ready at ").strip().partition(",")[0]
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def controlled(server: str, seed: int, folder: Path, progress: Callable[[int], None] = lambda second: None) -> Run:
    """Simulate one hour under the served policies, SUMO over TraCI.

    Args:
        server: HOST:PORT of the model server.
        seed: SUMO's random seed.
        folder: folder of tripinfo, summary and log.
        progress: called with the simulated second after each summary line of the controller.

    Raises:
        StageFailed: the controller failed.
    """
    reported = 0

    def report(line: str) -> None:
        nonlocal reported
        match = re.search(r" second (\d+):", line)
        if match and int(match[1]) > reported:
            reported = int(match[1])
            progress(reported)

    tripinfo, summary = folder / f"served_{seed}.tripinfo.xml", folder / f"served_{seed}.json"
    command = [sys.executable, "-m", "controller", "--city", CITY, "--server", server, "--seed", seed]
    command += ["--http", "127.0.0.1:0", "--tripinfo", tripinfo, "--summary", summary]
    run("the controller", command, folder / f"controller_{seed}.log", report)
    return Run(read_trips(tripinfo), json.loads(summary.read_text()))


def evaluation(flags: Sequence[object], log: Path) -> str:
    """Compare arms on the sample city; return the printed table. Raises StageFailed."""
    lines: list[str] = []
    run("the evaluation", [sys.executable, "-m", "evaluation", "--city", CITY, *flags], log, lines.append)
    return "".join(lines).rstrip()


def run(name: str, command: Sequence[object], log: Path, on_line: Callable[[str], object] = lambda line: None) -> None:
    """Run a program; write its output to `log` and pass each line to `on_line`. Raises StageFailed."""
    with (
        log.open("w") as file,
        subprocess.Popen(
            [str(argument) for argument in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                on_line(line)
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    if code:
        raise _failure(name, code, log)


def _failure(name: str, code: int, log: Path) -> StageFailed:
    return StageFailed(f"{name} ended with exit code {code}; its log is {log}:\n{log.read_text()[-MAX_LOG_TAIL:]}")


def _environment() -> dict[str, str]:
    return {**QUIET_TENSORFLOW, **os.environ}
