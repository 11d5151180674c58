"""Train a TL with stable-baselines3 in greenserve's environment, beside served neighbours; then export, serve and run
it.

    python train_in_the_environment.py [--steps 3000] [--seconds 900]

Needs PyTorch and stable-baselines3, which the project does not install. SA101 of the sample city
learns while served models control its neighbours SA102 and SA104. At the end the example compares
the controller's trips with those of the policy in the environment: they are the same, with the
safety rules of the street. Then it compares the policy with the signal's fixed plan and max-pressure.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import pipeline
import same_trips

from city.arguments import Parser
from city.errors import InputError
from greenserve import env as environment_of  # before stable_baselines3

TARGET, NEIGHBOURS = "SA101", ("SA102", "SA104")
SEED = 42


def train(checkpoint: Path, models: Path, steps: int, seconds: int) -> None:
    """Train PPO on varied demand and save it as a zip."""
    from stable_baselines3 import PPO

    env = environment_of(pipeline.CITY, TARGET, NEIGHBOURS, infer_model_path=models, seconds=seconds)
    model = PPO("MlpPolicy", env, n_steps=512, gamma=0.97, seed=SEED, device="cpu")
    model.learn(steps)
    env.close()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model.save(checkpoint)


def evaluate(checkpoint: Path, models: Path, seconds: int, tripinfo: Path) -> None:
    """Run the saved policy in the environment, on the city's own demand."""
    from stable_baselines3 import PPO

    model = PPO.load(checkpoint, device="cpu")

    def choose(observations: same_trips.Observations) -> dict[str, Any]:
        return {tl: model.predict(x, deterministic=True)[0] for tl, x in observations.items()}

    same_trips.simulate([TARGET], NEIGHBOURS, models, seconds, tripinfo, choose)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="decisions of the training (default: 3000)")
    parser.add_argument("--seconds", type=int, default=900, help="simulated time of an episode (default: 900)")
    parser.add_argument("--out", type=Path, default=Path("out/environment"), help="(default: out/environment)")
    args = parser.parse_args()
    try:
        import stable_baselines3
    except ImportError as error:
        raise InputError(f"stable-baselines3 is not installed ({error}); pip install torch stable-baselines3") from None
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    models, checkpoint = out / "models", out / "checkpoints" / f"ppo_{TARGET}_trial_2.zip"
    print(pipeline.export(models, out / "export.log"), flush=True)
    print(f"training with stable-baselines3 {stable_baselines3.__version__}, {args.steps} decisions", flush=True)
    train(checkpoint, models, args.steps, args.seconds)
    in_environment = out / "environment.tripinfo.xml"
    evaluate(checkpoint, models, args.seconds, in_environment)
    count = same_trips.check([TARGET], NEIGHBOURS, checkpoint.parent, models, args.seconds, in_environment)
    print(f"the controller's {count} trips are those of the environment")
    print(same_trips.compare_with_plans([TARGET], models, args.seconds, out / "evaluation.log"))
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
