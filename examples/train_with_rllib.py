"""Train TLs with RLlib's multi-agent PPO, a network for each; then export, serve and run them.

    python train_with_rllib.py [--steps 14400] [--seconds 900]

Needs PyTorch and ray[rllib], which the project does not install. SA101 and SA102 of the sample city learn while a
served model controls their neighbour SA104. At the end the example compares the controller's trips with those of the
policies in the environment, and the policies with the fixed plans.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import pipeline
import same_trips

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import greenserve
from city.arguments import Parser
from city.errors import InputError

TARGETS, NEIGHBOURS = ("SA101", "SA102"), ("SA104",)
SEED = 1
STEPS_AN_ITERATION = 720


def algorithm(models: Path, seconds: int) -> Any:
    """PPO with a policy for each TL; the environment runs in this process."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    def make(_: Any) -> Any:
        env = greenserve.parallel_env(pipeline.CITY, TARGETS, NEIGHBOURS, infer_model_path=models, seconds=seconds)
        return ParallelPettingZooEnv(env)

    register_env("greenserve", make)
    config = (
        PPOConfig()
        .environment("greenserve")
        .framework("torch")
        .env_runners(num_env_runners=0)
        .multi_agent(policies=set(TARGETS), policy_mapping_fn=lambda tl, episode, **_: tl)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .training(
            train_batch_size_per_learner=STEPS_AN_ITERATION, minibatch_size=128, num_epochs=8, lr=1e-3, gamma=0.97,
            lambda_=0.95, entropy_coeff=0.01, vf_clip_param=100.0, grad_clip=0.5,
        )
        .debugging(seed=SEED, log_level="ERROR")
    )  # fmt: skip
    return config.build_algo()


def train(checkpoints: Path, models: Path, steps: int, seconds: int) -> None:
    """Train on varied demand; save RLlib's checkpoints, the untrained and the trained one."""
    import ray

    # a cluster of its own, whatever else runs on this machine
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    algo, iterations = algorithm(models, seconds), math.ceil(steps / STEPS_AN_ITERATION)
    algo.save_to_path(str(checkpoints / f"trial_{same_trips.UNTRAINED}"))
    begin_s = time.perf_counter()
    for iteration in range(iterations):
        result = algo.train()
        returned = result["env_runners"].get("episode_return_mean")
        mean = "" if returned is None else f", mean return of an episode {returned:.1f}"
        print(
            f"iteration {iteration + 1} of {iterations}: {result['num_env_steps_sampled_lifetime']:.0f} steps{mean}",
            flush=True,
        )
    same_trips.print_speed(int(result["num_env_steps_sampled_lifetime"]), begin_s)
    algo.save_to_path(str(checkpoints / f"trial_{same_trips.TRAINED}"))
    algo.stop()
    ray.shutdown()


def evaluate(checkpoint: Path, models: Path, seconds: int, tripinfo: Path) -> None:
    """Run the saved policies in the environment, on the city's own demand."""
    import torch
    from ray.rllib.core.rl_module import RLModule

    modules = {
        tl: RLModule.from_checkpoint(checkpoint / "learner_group" / "learner" / "rl_module" / tl) for tl in TARGETS
    }

    def choose(observations: same_trips.Observations) -> dict[str, int]:
        actions = {}
        for tl, x in observations.items():
            with torch.no_grad():
                outputs = modules[tl].forward_inference({"obs": torch.as_tensor(x)[None]})
            actions[tl] = int(outputs["action_dist_inputs"].argmax())
        return actions

    same_trips.simulate(TARGETS, NEIGHBOURS, models, seconds, tripinfo, choose)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=14_400, help="steps of the environment (default: 14400)")
    parser.add_argument("--seconds", type=int, default=900, help="simulated time of an episode (default: 900)")
    parser.add_argument("--out", type=Path, default=Path("out/rllib"), help="(default: out/rllib)")
    args = parser.parse_args()
    try:
        import ray.rllib
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"PyTorch or RLlib is not installed ({error}); pip install torch 'ray[rllib]'") from None
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    models, checkpoints, in_environment = out / "models", out / "checkpoints", out / "environment.tripinfo.xml"
    print(pipeline.export(models, out / "export.log"), flush=True)
    print(f"training with RLlib {ray.__version__}, {args.steps} steps", flush=True)
    train(checkpoints, models, args.steps, args.seconds)
    evaluate(checkpoints / f"trial_{same_trips.TRAINED}", models, args.seconds, in_environment)
    count = same_trips.check(TARGETS, NEIGHBOURS, checkpoints, models, args.seconds, in_environment)
    print(f"the controller's {count} trips are those of the environment")
    print(same_trips.compare_with_plans(TARGETS, models, args.seconds, out / "evaluation.log"))
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
