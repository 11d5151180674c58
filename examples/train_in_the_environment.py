"""Train a TL with stable-baselines3 in greenserve's environment, beside served neighbours; then export, serve and run it.

    python train_in_the_environment.py [--steps 3000] [--seconds 900]

Needs PyTorch and stable-baselines3, which the project does not install. SA101 of the sample city
learns while served models control its neighbours SA102 and SA104. At the end the example compares
the controller's trips with those of the policy in the environment: they are the same, with the
safety rules of the street.
"""

import argparse
import os
import re
import sys
from pathlib import Path

import gymnasium
import pipeline

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the embedded server loads TensorFlow
import greenserve
from city.arguments import Parser
from city.errors import InputError

TARGET, NEIGHBOURS = "SA101", "SA102,SA104"
SEED = 42


def environment(models: Path, seconds: int, **options: object) -> gymnasium.Env:
    """One TL as a Gymnasium environment; an embedded server has the models of its neighbours."""
    return greenserve.env(pipeline.CITY, TARGET, NEIGHBOURS, infer_model_path=models, seconds=seconds, **options)


def train(checkpoint: Path, models: Path, steps: int, seconds: int) -> None:
    """Train PPO on varied demand and save it as a zip."""
    from stable_baselines3 import PPO

    env = environment(models, seconds)
    model = PPO("MlpPolicy", env, n_steps=512, gamma=0.97, seed=SEED, device="cpu")
    model.learn(steps)
    env.close()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model.save(checkpoint)


def evaluate(checkpoint: Path, models: Path, seconds: int, tripinfo: Path) -> None:
    """Run the saved policy in the environment, on the city's own demand."""
    from stable_baselines3 import PPO

    model = PPO.load(checkpoint, device="cpu")
    env = environment(models, seconds, demand="city", tripinfo=tripinfo)
    observation, _ = env.reset(seed=SEED)
    done = False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, _, _, done, _ = env.step(action)
    env.close()


def control(checkpoint: Path, models: Path, seconds: int, tripinfo: Path) -> None:
    """Export the policy beside its neighbours' models, serve them, and let the controller run them. Raises StageFailed."""
    out = tripinfo.parent
    greenserve_ = [sys.executable, "-m", "greenserve"]
    export = [*greenserve_, "export", "--city", pipeline.CITY, "--tl", TARGET, "--model-path", checkpoint.parent]
    export += ["--models-dir", models, "--overwrite"]
    pipeline.run("the export", export, out / "export_target.log", lambda line: print(line, end=""))
    with pipeline.serving(models, out / "serving.log") as server:
        command = [*greenserve_, "control", "--city", pipeline.CITY, "--server", server, "--seed", SEED, "--libsumo"]
        command += ["--infer-tl", f"{TARGET},{NEIGHBOURS}", "--end", seconds, "--tripinfo", tripinfo]
        pipeline.run("the controller", command, out / "controller.log")


def trips(tripinfo: Path) -> list[str]:
    """Every trip that ended, with all attributes that SUMO writes."""
    return sorted(line for line in re.findall(r"<tripinfo .*", tripinfo.read_text()) if 'arrival="-1' not in line)


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
    in_environment, in_controller = out / "environment.tripinfo.xml", out / "controller.tripinfo.xml"
    evaluate(checkpoint, models, args.seconds, in_environment)
    control(checkpoint, models, args.seconds, in_controller)
    expected = trips(in_environment)
    if not expected or expected != trips(in_controller):
        raise pipeline.StageFailed(f"the trips differ: {in_environment}, {in_controller}")
    print(f"the controller's {len(expected)} trips are those of the environment")
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
