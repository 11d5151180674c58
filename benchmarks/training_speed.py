"""Simulated seconds a second of wall time in training, with learning, against sumo-rl's environment without.

    python -m benchmarks.training_speed [--sumocfg FILE] [--seconds 1200] [--updates 4] [--workers 2]

- sumo-rl from PyPI over libsumo, a random policy, no learning; without the start of SUMO.
- `greenserve train` with one worker and with several: start of SUMO, episode, trips and the
  update of all actors and critics. Every signal is a TL in the sumo-rl dialect.

Budget: one worker at least as fast as sumo-rl; two workers on two cores at least 1.7 times
as fast as one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import sumo_rl_loop
from city import config, network

SCENARIO = Path(__file__).resolve().parents[2] / "shared" / "scenarios" / "cologne8" / "cologne8.sumocfg"
SUMO_RL = """
import sys, time
from pathlib import Path
from benchmarks.sumo_rl_loop import LIBSUMO, sumo_rl
steps = sumo_rl(Path(sys.argv[1]), float(sys.argv[2]), LIBSUMO)
next(steps)
begin = time.perf_counter()
for _ in steps:
    pass
print(time.perf_counter() - begin)
"""


def sumo_rl_s(sumocfg: Path, seconds: float) -> float:
    """Wall time of sumo-rl's environment, in s."""
    command = [sys.executable, "-c", SUMO_RL, str(sumocfg), str(seconds)]
    environment = {**os.environ, sumo_rl_loop.LIBSUMO_VARIABLE: "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1])


def training_s(city: config.City, seconds: float, updates: int, workers: int) -> float:
    """Wall time of an episode, its share of the update included, in s; the first update, which traces, is not counted."""
    from training.episode import TrainingTask
    from training.trainer import Settings, Trainer

    per_update = 2 * workers
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), episodes_per_update=per_update, workers=workers, varies=False)
        trainer = Trainer(TrainingTask(city, tuple(city.tls), seconds=seconds), settings)
        with trainer._workers:
            for update in range(updates + 1):
                if update == 1:
                    begin = time.perf_counter()
                trainer._learn(trainer._workers.run(trainer._jobs()), 0.0)
                trainer._update += 1
            return (time.perf_counter() - begin) / (updates * per_update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sumocfg", type=Path, default=SCENARIO, help="SUMO configuration (default: cologne8)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="simulated time of an episode (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=4, help="updates that are measured (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the last case (default: %(default)s)")
    args = parser.parse_args()
    if not args.sumocfg.is_file():
        print(f"skipped: there is no {args.sumocfg}; pass --sumocfg")
        return
    signals = network.of_sumocfg(args.sumocfg).signals
    tls = {f"TL{k}": config.TL((signal,), "sumo-rl", f"TL{k}") for k, signal in enumerate(signals)}
    city = config.City(args.sumocfg.parent / "city.toml", config.Network(args.sumocfg), tls=tls)
    wall_s = {}
    if sumo_rl_loop.is_installed():
        wall_s["sumo-rl over libsumo, random, no learning"] = min(sumo_rl_s(args.sumocfg, args.seconds) for _ in range(3))
    wall_s["greenserve train, 1 worker"] = training_s(city, args.seconds, args.updates, 1)
    wall_s[f"greenserve train, {args.workers} workers"] = training_s(city, args.seconds, args.updates, args.workers)
    for case, seconds in wall_s.items():
        print(f"{case:<44}{seconds:>7.2f} s an episode{args.seconds / seconds:>9.0f} simulated s/s")
    *others, one, several = wall_s.values()
    if others:
        print(f"{'1 worker, times as fast as sumo-rl':<44}{others[0] / one:>7.2f}")
    print(f"{f'{args.workers} workers, times as fast as 1':<44}{one / several:>7.2f}")


if __name__ == "__main__":
    main()
