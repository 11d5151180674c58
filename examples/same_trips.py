"""From a policy that was trained in the environment to the street: export, serve, control; then the trips are
compared."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pipeline

import greenserve

SEED = 42
"""SUMO's random seed of the compared simulations."""
UNTRAINED, TRAINED = 2, 3
"""Model numbers; 1 is that of the city's own models."""
Observations = dict[str, Any]


def simulate(
    targets: Sequence[str],
    neighbours: Sequence[str],
    models: Path,
    seconds: int,
    tripinfo: Path,
    choose: Callable[[Observations], dict[str, Any]],
) -> None:
    """Simulate the city's own demand in the environment. `choose`: observations by TL -> actions by TL."""
    env = greenserve.parallel_env(
        pipeline.CITY, targets, neighbours, infer_model_path=models if neighbours else None, seconds=seconds,
        demand="city",
        tripinfo=tripinfo,
    )  # fmt: skip
    observations, _ = env.reset(seed=SEED)
    while env.agents:
        observations, *_ = env.step(choose(observations))
    env.close()


def check(
    targets: Sequence[str],
    neighbours: Sequence[str],
    checkpoints: Path,
    models: Path,
    seconds: int,
    in_environment: Path,
    export_flags: Sequence[object] = (),
) -> int:
    """Export the policies beside their neighbours' models, serve them, and let the controller run them.

    `in_environment`: tripinfo of `simulate`. Returns the number of trips, which are the same under the controller.
    Raises StageFailed if they differ.
    """
    out, in_controller = in_environment.parent, in_environment.with_name("controller.tripinfo.xml")
    program = [sys.executable, "-m", "greenserve"]
    export = [*program, "export", "--city", pipeline.CITY, "--tl", ",".join(targets), "--model-path", checkpoints]
    export += ["--models-dir", models, "--overwrite", *export_flags, "--model-number"]
    pipeline.run("the export", [*export, UNTRAINED], out / "export_untrained.log")
    pipeline.run("the export", [*export, TRAINED], out / "export_target.log", lambda line: print(line, end=""))
    with pipeline.serving(models, out / "serving.log") as server:
        command = [*program, "control", "--city", pipeline.CITY, "--server", server, "--seed", SEED, "--libsumo"]
        command += ["--infer-tl", ",".join([*targets, *neighbours]), "--end", seconds, "--tripinfo", in_controller]
        pipeline.run("the controller", command, out / "controller.log")
    expected = trips(in_environment)
    if not expected or expected != trips(in_controller):
        raise pipeline.StageFailed(f"the trips differ: {in_environment}, {in_controller}")
    return len(expected)


def compare_with_plans(targets: Sequence[str], models: Path, seconds: int, log: Path) -> str:
    """A table of the trained and the untrained policies, the fixed plans and max-pressure, with drivers that training
    never had."""
    arms = f"served:{TRAINED},served:{UNTRAINED},fixed,max-pressure"
    flags = ["--tl", ",".join(targets), "--arms", arms, "--models-dir", models]
    return pipeline.evaluation([*flags, "--seconds", seconds, "--seeds", 3, "--first-seed", 101], log)


def print_speed(steps: int, begin_s: float) -> None:
    """Print the steps of a training that began at `begin_s` (time.perf_counter)."""
    print(f"{steps} steps of the environment, {steps / (time.perf_counter() - begin_s):.0f} steps/s", flush=True)


def trips(tripinfo: Path) -> list[str]:
    """Every trip that ended, with all attributes that SUMO writes."""
    return sorted(line for line in re.findall(r"<tripinfo .*", tripinfo.read_text()) if 'arrival="-1' not in line)
