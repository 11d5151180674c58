"""Train a policy with stable-baselines3 in sumo-rl's environment; then export, serve and run it.

    python train_with_stable_baselines3.py [--steps 4000] [--seconds 1800]

Needs PyTorch and stable-baselines3, which the project does not install. The street is
sumo-rl's own 2way-single-intersection. At the end the example compares the controller's trips
with those of the policy in sumo-rl's environment: with `[safety] floors = "dialect"` they are
the same.
"""

import argparse
import os
import re
import sys
from pathlib import Path

import pipeline
import sumo

os.environ.setdefault("SUMO_HOME", sumo.SUMO_HOME)  # sumo-rl reads it when it is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # stable-baselines3 imports TensorFlow's TensorBoard
import sumo_rl

from city.arguments import Parser
from city.errors import InputError
from controller.sumo.tripinfo import TRIPINFO_OPTIONS

NETS = Path(sumo_rl.__file__).parent / "nets" / "2way-single-intersection"
NET, ROUTES = NETS / "single-intersection.net.xml", NETS / "single-intersection-vhvh.rou.xml"
SEED = 42


def environment(seconds: int, tripinfo: Path | None = None) -> sumo_rl.SumoEnvironment:
    """sumo-rl's ordinary environment of one signal."""
    outputs = [] if tripinfo is None else ["--tripinfo-output", str(tripinfo), *TRIPINFO_OPTIONS]
    return sumo_rl.SumoEnvironment(
        net_file=str(NET),
        route_file=str(ROUTES),
        single_agent=True,
        num_seconds=seconds,
        sumo_seed=SEED,
        sumo_warnings=False,
        additional_sumo_cmd=" ".join(["--no-step-log", "true", *outputs]),
    )


def train(path: Path, steps: int, seconds: int) -> None:
    """Train PPO and save it as a zip."""
    from stable_baselines3 import PPO

    env = environment(seconds)
    model = PPO("MlpPolicy", env, n_steps=512, seed=SEED, device="cpu")
    model.learn(steps)
    env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)


def evaluate(path: Path, seconds: int, tripinfo: Path) -> None:
    """Run the saved policy in sumo-rl's environment."""
    from stable_baselines3 import PPO

    model = PPO.load(path, device="cpu")
    env = environment(seconds, tripinfo)
    observation, _ = env.reset()
    done = False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, _, _, done, _ = env.step(int(action))
    env.close()


def control(folder: Path, seconds: int, tripinfo: Path) -> None:
    """Describe the street, export the policy, serve it, and let the controller run it. Raises StageFailed."""
    city = folder / "city.toml"
    city.unlink(missing_ok=True)
    (folder / "single-intersection.sumocfg").unlink(missing_ok=True)
    greenserve = [sys.executable, "-m", "greenserve"]
    pipeline.run(
        "city init",
        [*greenserve, "city", "init", "--net", NET, "--route", ROUTES, "--num-seconds", seconds, "--out", city],
        folder / "city_init.log",
        lambda line: print(line, end=""),
    )
    # exactly sumo-rl's yellow and green times, for the comparison; a real street needs the floors
    city.write_text(city.read_text().replace('# floors = "dialect"', 'floors = "dialect"'))
    export = [*greenserve, "export", "--city", city, "--tl", "all", "--overwrite"]
    pipeline.run("the export", export, folder / "export.log", lambda line: print(line, end=""))
    with pipeline.serving(folder / "models", folder / "serving.log", city) as server:
        command = [*greenserve, "control", "--city", city, "--server", server, "--seed", SEED, "--tripinfo", tripinfo]
        pipeline.run("the controller", command, folder / "controller.log")


def trips(tripinfo: Path) -> list[str]:
    """Every vehicle's trip, with all attributes that SUMO writes."""
    return sorted(re.findall(r"<tripinfo .*", tripinfo.read_text()))


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="decisions of the training (default: 4000)")
    parser.add_argument("--seconds", type=int, default=1800, help="simulated time of an episode (default: 1800)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/stable_baselines3"), help="(default: out/stable_baselines3)"
    )
    args = parser.parse_args()
    try:
        import stable_baselines3
    except ImportError as error:
        raise InputError(f"stable-baselines3 is not installed ({error}); pip install torch stable-baselines3") from None
    out = args.out.resolve()
    # the signal's id, and with it the TL's name, is t
    checkpoint = out / "checkpoints" / "ppo_t_trial_1.zip"
    print(f"training with stable-baselines3 {stable_baselines3.__version__}, {args.steps} decisions", flush=True)
    train(checkpoint, args.steps, args.seconds)
    in_sumo_rl, in_controller = out / "sumo_rl.tripinfo.xml", out / "controller.tripinfo.xml"
    evaluate(checkpoint, args.seconds, in_sumo_rl)
    control(out, args.seconds, in_controller)
    expected = trips(in_sumo_rl)
    if not expected or expected != trips(in_controller):
        raise pipeline.StageFailed(f"the trips differ: {in_sumo_rl}, {in_controller}")
    print(f"the controller's {len(expected)} trips are those of sumo-rl's environment")
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
