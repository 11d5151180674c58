"""Wall time from nothing to a good policy: `greenserve train` against stable-baselines3's PPO in sumo-rl's environment.

    python -m benchmarks.time_to_policy [--goal 20] [--limit 3600] [--training-seeds 3] [--street cologne8] [--dialect
    street]

Each training runs alone, as a process of its own; its time counts from the start of the process. It saves a snapshot of
its policy after every update. Afterwards the snapshots are simulated in the order of their times, greedy, with the
city's demand and SUMO seeds that no training had (101 to 105). One rule for both: the time is that of the first
snapshot with a mean delay (time loss + departure delay of all vehicles, as in RESCO) of at most --goal. With
--training-seeds N there are N trainings of each, in turn, with seeds 1 to N; printed are all times and their medians.

- greenserve: from random weights (no pretrained policy), the defaults, --episodes of them in all, --workers 2. In
  dialect street all TLs share their weights; in dialect sumo-rl each has its own. The snapshots are exported and
  served, with the street's safety rules (3 s of yellow). The time includes the training's own evaluations on held-out
  demand.
- stable-baselines3: see `benchmarks.sb3_in_sumo_rl`; sumo-rl's 2 s of yellow and no safety rules. PyTorch,
  stable-baselines3 and SuperSuit are installed into a virtual environment (--venv keeps it); if they cannot be, the
  case is skipped with the reason.

Goal: greenserve at least 5 times as fast.
"""

import argparse
import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import harness, pytorch_venv
from benchmarks.environment import SCENARIOS, write_city
from benchmarks.turns import ROOT
from simulation.trips import read_trips

OURS, SB3 = "greenserve train", "stable-baselines3 in sumo-rl"
SEEDS = range(101, 106)
POLL_S = 0.5
Snapshot = tuple[float, Path]
"""Wall time of the training in s, and the policy."""


class CaseFailed(Exception):
    """A program of a case failed; the message is the end of its output."""


def run(command: Sequence[object], log: Path) -> None:
    """Run a program to its end. Raises CaseFailed."""
    with log.open("w") as file:
        code = subprocess.run([str(a) for a in command], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT).returncode
    if code:
        raise CaseFailed(f"{' '.join(map(str, command[:4]))} ended with exit code {code}: {log.read_text()[-1000:]}")


def until_end(process: "subprocess.Popen[bytes]", limit_s: float) -> Iterator[None]:
    """Yield every POLL_S while a process runs, and once after its end; at the limit it is terminated."""
    begin_s = time.monotonic()
    try:
        while process.poll() is None and time.monotonic() - begin_s < limit_s:
            yield
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    yield


def greenserve_snapshots(
    city: Path, folder: Path, seed: int, limit_s: float, flags: Sequence[object]
) -> list[Snapshot]:
    """Train with `greenserve train`; copy the checkpoints of each update. `flags`: further flags. Raises CaseFailed."""
    out, saved = folder / "training", 0
    snapshots: list[Snapshot] = []
    command = [
        sys.executable,
        "-m",
        "greenserve",
        "train",
        "--city",
        city,
        "--out",
        out,
        "--workers",
        2,
        "--seed",
        seed,
    ]
    command += ["--checkpoint", "newest", *flags]
    with (folder / "training.log").open("w") as log:
        begin_s = time.monotonic()
        process = subprocess.Popen([str(a) for a in command], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        for _ in until_end(process, limit_s):
            # an update's row of the curve is written after its checkpoints
            curve = out / "trial_1_curve.csv"
            updates = len(curve.read_text().splitlines()) - 1 if curve.is_file() else 0
            if updates > saved:
                saved, elapsed_s = updates, time.monotonic() - begin_s
                target = folder / "snapshots" / f"{elapsed_s:08.1f}"
                shutil.copytree(out, target, ignore=shutil.ignore_patterns("tensorboard", ".*", "*.csv"))
                snapshots.append((elapsed_s, target))
    if process.returncode and time.monotonic() - begin_s < limit_s:  # at the limit it is terminated
        raise CaseFailed((folder / "training.log").read_text()[-1000:])
    return snapshots


def greenserve_delay_s(city: Path, folder: Path, snapshot: Path, seeds: Sequence[int]) -> float:
    """Export a snapshot, and simulate it served, as `greenserve evaluate` does."""
    models, results = folder / "models", folder / "results"
    for used in (models, results):
        shutil.rmtree(used, ignore_errors=True)
    program = [sys.executable, "-m", "greenserve"]
    export = [*program, "export", "--city", city, "--tl", "all", "--model-path", snapshot, "--models-dir", models]
    run(export, folder / "export.log")
    evaluate = [*program, "evaluate", "--city", city, "--arms", "served", "--models-dir", models, "--out", results]
    evaluate += ["--seeds", len(seeds), "--first-seed", seeds[0], "--workers", 2]
    run(evaluate, folder / "evaluate.log")
    return float(json.loads((results / "results.json").read_text())["arms"]["served"]["delay_s"]["mean"])


def sb3_snapshots(python: Path, city: Path, folder: Path, seed: int, limit_s: float) -> list[Snapshot]:
    """Train with stable-baselines3 for the whole limit. Raises CaseFailed."""
    target = folder / "snapshots"
    target.mkdir()
    train = [python, "-m", "benchmarks.sb3_in_sumo_rl", "train", city, target, seed, time.time(), limit_s]
    run(train, folder / "training.log")
    return [(float(path.stem), path) for path in sorted(target.glob("*.zip"))]


def sb3_delay_s(python: Path, city: Path, folder: Path, snapshot: Path, seeds: Sequence[int]) -> float:
    """Simulate a snapshot in sumo-rl's environment."""
    delays = []
    for seed in seeds:
        tripinfo = folder / "tripinfo.xml"
        run(
            [python, "-m", "benchmarks.sb3_in_sumo_rl", "evaluate", city, snapshot, seed, tripinfo],
            folder / "evaluate.log",
        )
        delays.append(read_trips(tripinfo).delay_s)
    return statistics.mean(delays)


def first_good(name: str, snapshots: Sequence[Snapshot], delay_s: Callable[[Path], float], goal_s: float) -> float:
    """The time of the first snapshot that reaches the goal, inf if none does; prints every delay."""
    for elapsed_s, snapshot in snapshots:
        reached_s = delay_s(snapshot)
        print(f"  {name}: after {elapsed_s:.0f} s of training {reached_s:.1f} s of mean delay", flush=True)
        if reached_s <= goal_s:
            return elapsed_s
    return math.inf


def report(goal_s: float, limit_s: float, times_s: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Lines with the times by case, ours first: each, their medians and the ratio. `times_s`: inf if the goal was not
    reached."""
    for case, of_seeds in times_s.items():
        each = ", ".join(f"{time_s:.0f} s" if time_s < math.inf else "not reached" for time_s in of_seeds)
        median_s = statistics.median(of_seeds)
        outcome = f"median {median_s:.0f} s" if median_s < math.inf else f"not within {limit_s:.0f} s in the median"
        yield f"{case:<30} {goal_s:g} s of mean delay after {each}; {outcome}"
    ours_s, *others_s = map(statistics.median, times_s.values())
    for theirs_s in others_s:
        if ours_s < math.inf:
            bound = "" if theirs_s < math.inf else "more than "
            yield f"greenserve is {bound}{min(theirs_s, limit_s) / ours_s:.1f} times as fast, in the median"


def main() -> None:
    args = parsed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    seeds = SEEDS[: args.seeds]
    flags = ["--episodes", args.episodes]
    if args.episodes_per_update is not None:
        flags += ["--episodes-per-update", args.episodes_per_update]
    times_s: dict[str, list[float]] = {OURS: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        city = write_city(args.street, args.scenarios, folder, args.seconds, args.dialect)
        if city is None:
            print(f"skipped: {args.scenarios / args.street}: no such scenario; pass --scenarios")
            return
        try:
            packages = [pytorch_venv.TORCH, pytorch_venv.SB3, pytorch_venv.SUPERSUIT]
            python = pytorch_venv.create(args.venv or folder / "venv", packages)
            times_s[SB3] = []
        except pytorch_venv.CannotInstall as error:
            print(f"stable-baselines3 is skipped: {error}")
        for seed in range(1, args.training_seeds + 1):
            ours, theirs = folder / f"greenserve-{seed}", folder / f"sb3-{seed}"
            ours.mkdir()
            delay_s = functools.partial(greenserve_delay_s, city, ours, seeds=seeds)
            snapshots = greenserve_snapshots(city, ours, seed, args.limit, flags)
            times_s[OURS].append(first_good(f"{OURS}, seed {seed}", snapshots, delay_s, args.goal))
            if SB3 in times_s:
                theirs.mkdir()
                delay_s = functools.partial(sb3_delay_s, python, city, theirs, seeds=seeds)
                snapshots = sb3_snapshots(python, city, theirs, seed, args.limit)
                times_s[SB3].append(first_good(f"{SB3}, seed {seed}", snapshots, delay_s, args.goal))
    for line in report(args.goal, args.limit, times_s):
        print(line)


def parsed() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, metavar="DIR", help="folder of RESCO's streets")
    parser.add_argument("--street", default="cologne8", help="(default: %(default)s)")
    parser.add_argument(
        "--dialect", choices=("street", "sumo-rl"), default="street", help="of our TLs (default: street)"
    )
    parser.add_argument(
        "--goal", type=float, default=20.0, metavar="S", help="mean delay to reach (default: %(default)g)"
    )
    parser.add_argument(
        "--limit", type=float, default=3600.0, metavar="S", help="of each training (default: %(default)g)"
    )
    parser.add_argument("--episodes", type=int, default=80, help="of greenserve train (default: %(default)s)")
    parser.add_argument("--episodes-per-update", type=int, metavar="N", help="of greenserve train (default: its own)")
    parser.add_argument(
        "--training-seeds", type=int, default=1, metavar="N", help="trainings of each (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=3600, metavar="S", help="of an episode (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), metavar="N", help="simulations of a snapshot (default: %(default)s)"
    )
    parser.add_argument("--venv", type=Path, metavar="DIR", help="virtual environment to make, or to use again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
