"""Wall time from nothing to a good policy: `greenserve train` against stable-baselines3's PPO in sumo-rl's environment.

    python -m benchmarks.time_to_policy [--goal 20] [--limit 3600] [--street cologne8] [--dialect street]

Each training runs alone, as a process of its own; its time counts from the start of the process. It saves snapshots of its
policy. Afterwards the snapshots are simulated in the order of their times, greedy, with the city's demand and SUMO seeds that no
training had (101 to 105). The first snapshot with a mean delay (time loss + departure delay of all vehicles, as in
RESCO) of at most --goal ends the search.

- greenserve: from random weights (no pretrained policy), the defaults, --episodes of them in all, --workers 2. In dialect
  street all TLs share their weights; in dialect sumo-rl each has its own. The snapshots are exported and served, with the
  street's safety rules (3 s of yellow). The time includes the training's own evaluations on held-out demand.
- stable-baselines3: see `benchmarks.sb3_in_sumo_rl`; sumo-rl's 2 s of yellow and no safety rules. PyTorch, stable-baselines3 and
  SuperSuit are installed into a virtual environment (--venv keeps it); if they cannot be, the case is skipped with the reason.

Goal: greenserve at least 5 times as fast.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import pytorch_venv
from benchmarks.environment import SCENARIOS, write_city
from benchmarks.turns import ROOT
from simulation.trips import read_trips

SEEDS = range(101, 106)
POLL_S = 0.5
INTERVAL_S = 20.0
"""Least wall time between two snapshots of stable-baselines3."""
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


def greenserve_snapshots(city: Path, folder: Path, limit_s: float, episodes: int) -> list[Snapshot]:
    """Train with `greenserve train`; copy the checkpoints after each of its evaluations."""
    out, snapshots = folder / "training", []
    command = [sys.executable, "-m", "greenserve", "train", "--city", city, "--out", out, "--workers", 2, "--episodes", episodes]
    command += ["--checkpoint", "newest", "--evaluate-every", 2, "--held-out", 2]
    with (folder / "training.log").open("w") as log:
        begin_s = time.monotonic()
        process = subprocess.Popen([str(a) for a in command], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        for _ in until_end(process, limit_s):
            # a row of the curve is written after the checkpoints of its evaluation
            curve = out / "trial_1_curve.csv"
            rows = curve.read_text().splitlines()[1:] if curve.is_file() else []
            evaluated = [row for row in rows if row.split(",")[5]]
            if len(evaluated) > len(snapshots):
                elapsed_s = time.monotonic() - begin_s
                target = folder / "snapshots" / f"{elapsed_s:08.1f}"
                shutil.copytree(out, target, ignore=shutil.ignore_patterns("tensorboard", ".*", "*.csv"))
                snapshots += [(elapsed_s, target)] * (len(evaluated) - len(snapshots))
    if process.returncode and time.monotonic() - begin_s < limit_s:  # at the limit it is terminated
        raise CaseFailed((folder / "training.log").read_text()[-1000:])
    return list(dict(snapshots).items())


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


def sb3_snapshots(python: Path, city: Path, folder: Path, limit_s: float) -> list[Snapshot]:
    """Train with stable-baselines3 for the whole limit."""
    target = folder / "snapshots"
    target.mkdir()
    command = [
        python,
        "-m",
        "benchmarks.sb3_in_sumo_rl",
        "train",
        city,
        target,
        time.time(),
        limit_s,
        min(INTERVAL_S, limit_s / 4),
    ]
    run(command, folder / "training.log")
    return [(float(path.stem), path) for path in sorted(target.glob("*.zip"))]


def sb3_delay_s(python: Path, city: Path, folder: Path, snapshot: Path, seeds: Sequence[int]) -> float:
    """Simulate a snapshot in sumo-rl's environment."""
    delays = []
    for seed in seeds:
        tripinfo = folder / "tripinfo.xml"
        run([python, "-m", "benchmarks.sb3_in_sumo_rl", "evaluate", city, snapshot, seed, tripinfo], folder / "evaluate.log")
        delays.append(read_trips(tripinfo).delay_s)
    return statistics.mean(delays)


def first_good(name: str, snapshots: Sequence[Snapshot], delay_s: Callable[[Path], float], goal_s: float) -> float | None:
    """The time of the first snapshot that reaches the goal; prints every delay."""
    for elapsed_s, snapshot in snapshots:
        reached_s = delay_s(snapshot)
        print(f"  {name}: after {elapsed_s:.0f} s of training {reached_s:.1f} s of mean delay", flush=True)
        if reached_s <= goal_s:
            return elapsed_s
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, metavar="DIR", help="folder of RESCO's streets")
    parser.add_argument("--street", default="cologne8", help="(default: %(default)s)")
    parser.add_argument(
        "--dialect", choices=("street", "sumo-rl"), default="street", help="of greenserve's TLs (default: street)"
    )
    parser.add_argument("--goal", type=float, default=20.0, metavar="S", help="mean delay to reach (default: %(default)g)")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="S", help="of each training (default: %(default)g)")
    parser.add_argument("--episodes", type=int, default=80, help="of greenserve train (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3600, metavar="S", help="of an episode (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), metavar="N", help="simulations of a snapshot (default: %(default)s)"
    )
    parser.add_argument("--venv", type=Path, metavar="DIR", help="virtual environment to make, or to use again")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    seeds = SEEDS[: args.seeds]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        city = write_city(args.street, args.scenarios, folder, args.seconds, args.dialect)
        if city is None:
            print(f"skipped: {args.scenarios / args.street}: no such scenario; pass --scenarios")
            return
        ours, theirs = folder / "greenserve", folder / "sb3"
        for case in (ours, theirs):
            case.mkdir()
        snapshots = greenserve_snapshots(city, ours, args.limit, args.episodes)
        ours_s = first_good("greenserve", snapshots, lambda path: greenserve_delay_s(city, ours, path, seeds), args.goal)
        try:
            python = venv(args.venv or folder / "venv")
        except pytorch_venv.CannotInstall as error:
            print(f"stable-baselines3 is skipped: {error}")
            return
        snapshots = sb3_snapshots(python, city, theirs, args.limit)
        theirs_s = first_good("stable-baselines3", snapshots, lambda p: sb3_delay_s(python, city, theirs, p, seeds), args.goal)
    for case, reached_s in (("greenserve train", ours_s), ("stable-baselines3 in sumo-rl", theirs_s)):
        outcome = f"after {reached_s:.0f} s" if reached_s is not None else f"not within {args.limit:.0f} s"
        print(f"{case:<30} {args.goal:g} s of mean delay {outcome}")
    if ours_s is not None:
        bound = "" if theirs_s is not None else "more than "
        print(f"greenserve is {bound}{(theirs_s or args.limit) / ours_s:.1f} times as fast")


def venv(folder: Path) -> Path:
    """The Python of a virtual environment with stable-baselines3; made unless it is there. Raises CannotInstall."""
    python = folder / "bin" / "python"
    if python.is_file():
        return python
    return pytorch_venv.create(folder, [pytorch_venv.TORCH, pytorch_venv.SB3, pytorch_venv.SUPERSUIT])


if __name__ == "__main__":
    main()
