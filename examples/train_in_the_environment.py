"""Train a TL with stable-baselines3 in greenserve's environment, beside served neighbours; then export, serve and run
it.

    python train_in_the_environment.py [--steps 3000] [--seconds 900] [--masks]

Needs PyTorch and stable-baselines3 (with --masks sb3-contrib), which the project does not install. SA101 of the sample
city learns while served models control its neighbours SA102 and SA104. At the end the example compares the controller's
trips with those of the policy in the environment: they are the same, with the safety rules of the street. Then it
compares the trained and the untrained policy with the signal's fixed plan and max-pressure.
"""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import pipeline
import same_trips

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # stable-baselines3 imports TensorFlow's TensorBoard
from city.arguments import Parser
from city.errors import InputError
from greenserve import env as environment_of  # before stable_baselines3

TARGET, NEIGHBOURS = "SA101", ("SA102", "SA104")
SEED = 42


PPO, MASKABLE_PPO = ("stable_baselines3", "PPO"), ("sb3_contrib", "MaskablePPO")
"""(library, algorithm)"""


def train(algorithm: Any, checkpoints: Path, models: Path, steps: int, seconds: int) -> None:
    """Train on varied demand; save the untrained and the trained policy as zips."""
    env = environment_of(pipeline.CITY, TARGET, NEIGHBOURS, infer_model_path=models, seconds=seconds)
    model = algorithm("MlpPolicy", env, n_steps=512, gamma=0.97, seed=SEED, device="cpu")
    checkpoints.mkdir(parents=True, exist_ok=True)
    model.save(checkpoint(checkpoints, same_trips.UNTRAINED))
    begin_s = time.perf_counter()
    model.learn(steps)
    same_trips.print_speed(model.num_timesteps, begin_s)
    env.close()
    model.save(checkpoint(checkpoints, same_trips.TRAINED))


def checkpoint(checkpoints: Path, number: int) -> Path:
    return checkpoints / f"ppo_{TARGET}_trial_{number}.zip"


def evaluate(algorithm: Any, checkpoints: Path, models: Path, seconds: int, tripinfo: Path) -> None:
    """Run the saved policy in the environment, on the city's own demand."""
    model = algorithm.load(checkpoint(checkpoints, same_trips.TRAINED), device="cpu")

    def choose(observations: same_trips.Observations) -> dict[str, Any]:
        return {tl: model.predict(x, deterministic=True)[0] for tl, x in observations.items()}

    same_trips.simulate([TARGET], NEIGHBOURS, models, seconds, tripinfo, choose)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="decisions of the training (default: 3000)")
    parser.add_argument("--seconds", type=int, default=900, help="simulated time of an episode (default: 900)")
    parser.add_argument("--masks", action="store_true", help="sb3-contrib's MaskablePPO with the environment's masks")
    parser.add_argument("--out", type=Path, default=Path("out/environment"), help="(default: out/environment)")
    args = parser.parse_args()
    name, of = MASKABLE_PPO if args.masks else PPO
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        package = name.replace("_", "-")
        raise InputError(f"{package} is not installed ({error}); pip install torch {package}") from None
    algorithm = getattr(library, of)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    models, checkpoints = out / "models", out / "checkpoints"
    print(pipeline.export(models, out / "export.log"), flush=True)
    print(f"training with {of} of {name} {library.__version__}, {args.steps} decisions", flush=True)
    train(algorithm, checkpoints, models, args.steps, args.seconds)
    in_environment = out / "environment.tripinfo.xml"
    evaluate(algorithm, checkpoints, models, args.seconds, in_environment)
    count = same_trips.check([TARGET], NEIGHBOURS, checkpoints, models, args.seconds, in_environment)
    print(f"the controller's {count} trips are those of the environment")
    print(same_trips.compare_with_plans([TARGET], models, args.seconds, out / "evaluation.log"))
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
