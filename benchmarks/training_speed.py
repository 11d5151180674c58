"""Simulated seconds per second of wall time in training, against sumo-rl's environment without learning.

    python -m benchmarks.training_speed [--sumocfg FILE] [--seconds 1200] [--repeats 7] [--workers 2]

- sumo-rl from PyPI over libsumo, a random policy, no learning; without the start of SUMO.
- `greenserve train` with one worker and with several: start of SUMO, episode, trips and the
  update of all actors and critics; medians of measurements in turn. Every signal is a TL in the sumo-rl dialect.

Budget: one worker at least 0.9 times as fast as our environment (`benchmarks.environment` has its ratio to sumo-rl); two
workers on two cores at least 1.8 times as fast as one.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import sumo_rl_loop
from city import config, network

SCENARIO = Path(__file__).resolve().parents[2] / "shared" / "scenarios" / "cologne8" / "cologne8.sumocfg"
SUMO_RL = """
import sys, time
from pathlib import Path
from benchmarks.sumo_rl_loop import LIBSUMO, sumo_rl
from benchmarks.training_speed import timed_steps
steps = sumo_rl(Path(sys.argv[1]), float(sys.argv[2]), LIBSUMO)
next(steps)
import traci
begin = time.perf_counter()
with timed_steps(traci) as in_sumo_s:
    for _ in steps:
        pass
print(time.perf_counter() - begin, sum(in_sumo_s))
"""
Times = tuple[float, float]
"""Wall time of an episode, and of SUMO's own steps in it, in s."""


@contextlib.contextmanager
def timed_steps(api: Any) -> Iterator[list[float]]:
    """The wall time of every simulationStep of a traci module, in s."""
    step, times_s = api.simulationStep, []

    def timed(*args: float) -> Any:
        begin = time.perf_counter()
        result = step(*args)
        times_s.append(time.perf_counter() - begin)
        return result

    api.simulationStep = timed
    try:
        yield times_s
    finally:
        api.simulationStep = step


def sumo_rl_s(sumocfg: Path, seconds: float) -> Times:
    """Measure an episode of sumo-rl's environment, in a process of its own."""
    command = [sys.executable, "-c", SUMO_RL, str(sumocfg), str(seconds)]
    environment = {**os.environ, sumo_rl_loop.LIBSUMO_VARIABLE: "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    episode_s, in_sumo_s = map(float, output.splitlines()[-1].split())
    return episode_s, in_sumo_s


@contextlib.contextmanager
def training(city: config.City, seconds: float, workers: int) -> Iterator[Callable[[], Times]]:
    """Yield a function that trains one update and returns the times of an episode.

    An episode's time includes its share of the update. SUMO's time is 0 with several workers.
    """
    import libsumo

    from simulation.executors import executor
    from training.episode import TrainingTask
    from training.trainer import Settings, Trainer

    per_update = 2 * workers
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), episodes_per_update=per_update, workers=workers, varies=False)
        runner = executor(workers)
        trainer = Trainer(TrainingTask(city, tuple(city.tls), seconds=seconds), settings, runner)

        def update() -> Times:
            begin = time.perf_counter()
            with timed_steps(libsumo) as in_sumo_s:
                trainer.update()
            return (time.perf_counter() - begin) / per_update, sum(in_sumo_s) / per_update

        with runner:
            update()  # traces the graph of the update
            yield update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sumocfg", type=Path, default=SCENARIO, help="SUMO configuration (default: cologne8)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="simulated time of an episode (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each case, in turn (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the last case (default: %(default)s)")
    args = parser.parse_args()
    if not args.sumocfg.is_file():
        print(f"skipped: {args.sumocfg}: no such file; pass --sumocfg")
        return
    signals = network.of_sumocfg(args.sumocfg).signals
    tls = {f"TL{k}": config.TL((signal,), "sumo-rl", f"TL{k}") for k, signal in enumerate(signals)}
    city = config.City(args.sumocfg.parent / "city.toml", config.Network(args.sumocfg), tls=tls)
    with contextlib.ExitStack() as stack:
        cases: dict[str, Callable[[], Times]] = {}
        if sumo_rl_loop.is_installed():
            cases["sumo-rl over libsumo, random, no learning"] = lambda: sumo_rl_s(args.sumocfg, args.seconds)
        for workers in (1, args.workers):
            name = f"greenserve train, {workers} worker{'s' * (workers > 1)}"
            cases[name] = stack.enter_context(training(city, args.seconds, workers))
        # in turn: the machine's speed drifts
        measured = measured_in_turn(cases, args.repeats)
    medians = {case: tuple(map(statistics.median, zip(*times, strict=True))) for case, times in measured.items()}
    for case, (episode_s, in_sumo_s) in medians.items():
        of_sumo = f", SUMO's own steps {in_sumo_s:.2f} s" if in_sumo_s else ""
        print(f"{case:<44}{episode_s:>7.2f} s an episode{args.seconds / episode_s:>9.0f} simulated s/s{of_sumo}")
    *sumo_rl, one_worker, several = (episode_s for episode_s, _ in medians.values())
    if sumo_rl:
        print(f"{'1 worker, times as fast as sumo-rl':<44}{sumo_rl[0] / one_worker:>7.2f}")
    print(f"{f'{args.workers} workers, times as fast as 1':<44}{one_worker / several:>7.2f}")


def measured_in_turn(cases: Mapping[str, Callable[[], Times]], repeats: int) -> dict[str, list[Times]]:
    """Measure the cases in turn, `repeats` times each."""
    times: dict[str, list[Times]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, measure in cases.items():
            times[case].append(measure())
    return times


if __name__ == "__main__":
    main()
