"""The main job in pieces, each by the project's own programs: export, serve, control, compare."""

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from city import config
from controller.sumo.programs import sumo_program
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, Trips, read_trips

GRID = Path(__file__).resolve().parent / "grid"


@dataclass(frozen=True)
class Run:
    trips: Trips
    figures: dict
    """The controller's summary; empty under the fixed-time plans."""


def export(models_dir: Path, city: Path = GRID / "city.toml") -> None:
    """Export every TL of the city. Raises CalledProcessError."""
    command = [sys.executable, "-m", "export", "--city", city, "--tl", "all", "--models-dir", models_dir]
    subprocess.run([str(word) for word in command], check=True)


@contextlib.contextmanager
def serving(models_dir: Path, log: Path):
    """The embedded server on a free port; gives HOST:PORT."""
    command = [sys.executable, "-m", "serving", "--models-dir", str(models_dir), "--port", "0", "--city", str(GRID / "city.toml")]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            line = process.stdout.readline()
            if not line.startswith("ready at "):
                raise RuntimeError(f"the server did not start; see {log}:\n{log.read_text()[-2000:]}")
            yield line.removeprefix("ready at ").strip()
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


def controlled(server: str, demand: Path, seed: int, folder: Path) -> Run:
    """One simulated hour under the served policies, SUMO over TraCI."""
    tripinfo, summary = folder / f"served_{seed}.tripinfo.xml", folder / f"served_{seed}.json"
    command = [sys.executable, "-m", "controller", "--city", GRID / "city.toml", "--server", server, "--seed", seed]
    command += ["--http", "127.0.0.1:0", "--tripinfo", tripinfo, "--summary", summary, "--", "--route-files", demand]
    subprocess.run([str(word) for word in command], check=True)
    return Run(read_trips(tripinfo), json.loads(summary.read_text()))


def fixed(demand: Path, seed: int, folder: Path) -> Run:
    """The same hour under the signals' own fixed-time plans."""
    city = config.load(GRID / "city.toml")
    tripinfo = folder / f"fixed_{seed}.tripinfo.xml"
    command = [
        sumo_program(),
        "-c",
        city.network.sumocfg,
        "--route-files",
        demand,
        "--seed",
        seed,
        "--no-step-log",
        "--no-warnings",
    ]
    command += ["--tripinfo-output", tripinfo, *TRIPINFO_OPTIONS]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return Run(read_trips(tripinfo), {})
