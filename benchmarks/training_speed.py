"""Simulated seconds per second of wall time in training, against our environment and sumo-rl's without learning.

    python -m benchmarks.training_speed [--sumocfg FILE] [--seconds 1200] [--repeats 7] [--workers 2]

Every signal is a TL in the sumo-rl dialect. The cases, in turn, medians of --repeats measurements of 4 episodes:

- `greenserve.parallel_env` with the street's floors, random actions, no learning: from reset to the end, so with the
  start of SUMO, and with a file of the trips, as a training has one;
- `greenserve train` with one worker and with several: the same, with a SUMO program for each episode, and the update of
  all actors and critics after 4 episodes (the default). The learning rate is 0: all is computed, and the policies stay
  random, so that the streets are as full in each case;
- sumo-rl from PyPI over libsumo, a random policy, no learning, one episode; without the start of SUMO.

Budget: one worker at least 0.9 times as fast as our environment; two workers on two cores at least 1.8 times as fast as
one.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import harness, sumo_rl_loop
from benchmarks.environment import timed_steps
from city import config, network
from training.settings import Settings

EPISODES_PER_UPDATE = Settings.episodes_per_update
ENVIRONMENT = "our environment, random, no learning"
TRAINING = "greenserve train, "
ONE_WORKER = f"{TRAINING}1 worker"
SUMO_RL = "sumo-rl over libsumo, random, no learning"
SCENARIO = Path(__file__).resolve().parents[2] / "shared" / "scenarios" / "cologne8" / "cologne8.sumocfg"
SUMO_RL_SCRIPT = """
import sys, time
from pathlib import Path
from benchmarks.sumo_rl_loop import LIBSUMO, sumo_rl
from benchmarks.environment import timed_steps
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


def sumo_rl_s(sumocfg: Path, seconds: float) -> Times:
    """Measure an episode of sumo-rl's environment, in a process of its own."""
    command = [sys.executable, "-c", SUMO_RL_SCRIPT, str(sumocfg), str(seconds)]
    environment = {**os.environ, sumo_rl_loop.LIBSUMO_VARIABLE: "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    episode_s, in_sumo_s = map(float, output.splitlines()[-1].split())
    return episode_s, in_sumo_s


@contextlib.contextmanager
def environment(city: config.City, seconds: float) -> Iterator[Callable[[], Times]]:
    """Yield a function that runs episodes of our environment with random actions and returns the times of one."""
    import libsumo

    import greenserve

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        tripinfo = Path(folder) / "tripinfo.xml"
        env = greenserve.parallel_env(city, floors="street", demand="city", seconds=seconds, tripinfo=tripinfo)
        sizes = {tl: env.action_space(tl).n for tl in env.possible_agents}

        def episode(seed: int | None = None) -> None:
            env.reset(seed)
            while env.agents:
                env.step({tl: int(rng.integers(sizes[tl])) for tl in env.agents})

        def episodes() -> Times:
            begin = time.perf_counter()
            with timed_steps(libsumo) as in_sumo_s:
                for _ in range(EPISODES_PER_UPDATE):
                    episode()
            return (time.perf_counter() - begin) / EPISODES_PER_UPDATE, sum(in_sumo_s) / EPISODES_PER_UPDATE

        with contextlib.closing(env):
            episode(seed=1)  # imports, and reads the network
            yield episodes


@contextlib.contextmanager
def training(city: config.City, seconds: float, workers: int) -> Iterator[Callable[[], Times]]:
    """Yield a function that trains one update and returns the times of an episode.

    An episode's time includes its share of the update. SUMO's own time is not measured: it has a program of its own.
    """
    from simulation.executors import executor
    from training.episode import TrainingTask
    from training.settings import PpoConfig
    from training.trainer import Trainer

    with tempfile.TemporaryDirectory() as folder:
        ppo = PpoConfig(learning_rate=0.0, final_sharpness=1.0)
        settings = Settings(
            Path(folder),
            episodes_per_update=EPISODES_PER_UPDATE,
            workers=workers,
            ppo=ppo,
            varies=False,
            evaluate_every=10**6,
        )
        runner = executor(workers)
        trainer = Trainer(TrainingTask(city, tuple(city.tls), seconds=seconds), settings, runner)

        def update() -> Times:
            begin = time.perf_counter()
            trainer.update()
            return (time.perf_counter() - begin) / EPISODES_PER_UPDATE, 0.0

        with runner:
            update()  # traces the graph of the update
            yield update


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--sumocfg", type=Path, default=SCENARIO, help="SUMO configuration (default: cologne8)")
    parser.add_argument(
        "--seconds", type=float, default=1200.0, help="simulated time of an episode (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="measurements of each case, in turn (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes of the last training (default: %(default)s)")
    args = parser.parse_args()
    if not args.sumocfg.is_file():
        print(f"skipped: {args.sumocfg}: no such file; pass --sumocfg")
        return
    city = city_of(args.sumocfg)
    several = f"{TRAINING}{args.workers} workers"
    with contextlib.ExitStack() as stack:
        cases: dict[str, Callable[[], Times]] = {}
        cases[ENVIRONMENT] = stack.enter_context(environment(city, args.seconds))
        cases[ONE_WORKER] = stack.enter_context(training(city, args.seconds, 1))
        cases[several] = stack.enter_context(training(city, args.seconds, args.workers))
        if sumo_rl_loop.is_installed():
            cases[SUMO_RL] = lambda: sumo_rl_s(args.sumocfg, args.seconds)
        # in turn: the machine's speed drifts
        measured = measured_in_turn(cases, args.repeats)
    for line in report(measured, args.seconds, several):
        print(line)


def city_of(sumocfg: Path) -> config.City:
    """A city with a TL in the sumo-rl dialect for each signal of a SUMO configuration."""
    signals = network.of_sumocfg(sumocfg).signals
    tls = {f"TL{k}": config.TL((signal,), "sumo-rl", f"TL{k}") for k, signal in enumerate(signals)}
    return config.City(sumocfg.parent / "city.toml", config.Network(sumocfg), tls=tls)


def report(measured: Mapping[str, Sequence[Times]], seconds: float, several: str) -> Iterator[str]:
    """Lines with the medians by case, and the medians of the ratios of a turn. `several`: the case of several
    workers."""
    for case, times in measured.items():
        episode_s, in_sumo_s = (statistics.median(column) for column in zip(*times, strict=True))
        of_sumo = f", SUMO's own steps {in_sumo_s:.2f} s" if in_sumo_s else ""
        yield f"{case:<44}{episode_s:>7.2f} s an episode{seconds / episode_s:>9.0f} simulated s/s{of_sumo}"
    for case, other, name in (
        (ONE_WORKER, ENVIRONMENT, "1 worker, times as fast as our environment"),
        (ONE_WORKER, SUMO_RL, "1 worker, times as fast as sumo-rl"),
        (several, ONE_WORKER, f"{several.removeprefix(TRAINING)}, times as fast as 1"),
    ):
        if other in measured:
            ratios = sorted(b / a for (a, _), (b, _) in zip(measured[case], measured[other], strict=True))
            yield f"{name:<44}{statistics.median(ratios):>7.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def measured_in_turn(cases: Mapping[str, Callable[[], Times]], repeats: int) -> dict[str, list[Times]]:
    """Measure the cases in turn, `repeats` times each."""
    times: dict[str, list[Times]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, measure in cases.items():
            times[case].append(measure())
    return times


if __name__ == "__main__":
    main()
