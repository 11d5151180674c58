"""Train TLs as CleanRL's multi-agent PPO does, one network for all of them; then export, serve and run it.

    python train_with_cleanrl.py [--steps 11776] [--seconds 900] [--targets SA101,SA102 --neighbours SA104]

Needs PyTorch and SuperSuit, which the project does not install. The loop follows CleanRL's ppo_pettingzoo_ma_atari.py
(Huang et al. 2022): SuperSuit makes a vectorised environment of the TLs, and one actor and critic act for all of them.
An MLP replaces the convolutions, and an episode that reaches its time limit is not a termination: its last value is
bootstrapped. Served models control the --neighbours. At the end the example compares the controller's trips with those
of the policy in the environment, and the policy with the untrained one, the fixed plans and max-pressure.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import same_trips

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # SuperSuit may import TensorFlow
import greenserve
from city.arguments import Parser
from city.errors import InputError

TARGETS = ("SA101", "SA102", "SA104", "SA105", "SA106")
"""All TLs of the dialect sumo-rl: one decision interval and one size of observations, so that one network fits all of
them."""
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, ENTROPY, VALUE, MAX_GRADIENT = 1e-3, 0.97, 0.95, 0.2, 0.01, 0.5, 0.5
STEPS_AN_UPDATE, EPOCHS, MINIBATCHES = 256, 6, 4
SEED = 1


def agent(inputs: int, greens: int) -> Any:
    """CleanRL's agent for discrete actions: an actor and a critic of two tanh layers."""
    from torch import nn

    def layer(sizes: tuple[int, int], gain: float) -> nn.Linear:
        linear = nn.Linear(*sizes)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        return linear

    def network(outputs: int, gain: float) -> nn.Sequential:
        hidden = float(np.sqrt(2))
        return nn.Sequential(
            layer((inputs, 64), hidden), nn.Tanh(), layer((64, 64), hidden), nn.Tanh(), layer((64, outputs), gain)
        )

    return nn.ModuleDict({"actor": network(greens, 0.01), "critic": network(1, 1.0)})


def vectorised(targets: Sequence[str], neighbours: Sequence[str], models: Path, seconds: int) -> Any:
    """The TLs as one vectorised environment, as CleanRL makes it."""
    import supersuit

    path = models if neighbours else None
    env = greenserve.parallel_env(pipeline.CITY, targets, neighbours, infer_model_path=path, seconds=seconds)
    envs = supersuit.pettingzoo_env_to_vec_env_v1(env)
    return supersuit.concat_vec_envs_v1(envs, 1, num_cpus=0, base_class="gymnasium")


def train(envs: Any, targets: Sequence[str], checkpoints: Path, steps: int) -> None:
    """Train on varied demand; save the untrained and the trained state dict, once for each TL. `steps`: of the
    environment, in each of which every TL decides."""
    import torch
    from torch.distributions import Categorical

    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    inputs, greens = envs.observation_space.shape[-1], int(envs.action_space.n)
    networks = agent(inputs, greens)
    save(networks, targets, checkpoints, same_trips.UNTRAINED)
    optimizer = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE, eps=1e-5)
    observation = torch.as_tensor(np.array(envs.reset(seed=SEED)[0]))
    updates, tls = math.ceil(steps / STEPS_AN_UPDATE), len(targets)
    begin_s = time.perf_counter()
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)
        x = torch.zeros(STEPS_AN_UPDATE, tls, inputs)
        actions = torch.zeros(STEPS_AN_UPDATE, tls, dtype=torch.long)
        log_p, rewards, values, ends = (torch.zeros(STEPS_AN_UPDATE, tls) for _ in range(4))
        for k in range(STEPS_AN_UPDATE):
            x[k] = observation
            with torch.no_grad():
                chosen = Categorical(logits=networks["actor"](observation))
                actions[k] = chosen.sample()
                log_p[k] = chosen.log_prob(actions[k])
                values[k] = networks["critic"](observation)[:, 0]
            following, reward, _, truncated, _ = envs.step(actions[k].numpy())
            observation = torch.as_tensor(np.array(following))
            rewards[k] = torch.as_tensor(np.asarray(reward))
            ends[k] = torch.as_tensor(np.asarray(truncated, np.float32))
        with torch.no_grad():
            # after a time limit the next observation is that of a new episode: the value before stands for the rewards
            # to come
            after = torch.cat([values[1:], networks["critic"](observation)[None, :, 0]])
            after = torch.where(ends > 0, values, after)
            advantages, running = torch.zeros_like(values), torch.zeros(tls)
            for k in reversed(range(STEPS_AN_UPDATE)):
                delta = rewards[k] + GAMMA * after[k] - values[k]
                running = delta + GAMMA * GAE_LAMBDA * (1 - ends[k]) * running
                advantages[k] = running
        returns = (advantages + values).flatten()
        flat = x.flatten(0, 1), actions.flatten(), log_p.flatten(), advantages.flatten(), returns
        for _ in range(EPOCHS):
            for rows in np.array_split(rng.permutation(len(returns)), MINIBATCHES):
                _step(networks, optimizer, *(column[rows] for column in flat))
        print(f"update {update + 1} of {updates}: mean reward {rewards.mean():.3f}", flush=True)
    same_trips.print_speed(updates * STEPS_AN_UPDATE, begin_s)
    envs.close()
    save(networks, targets, checkpoints, same_trips.TRAINED)


def save(networks: Any, targets: Sequence[str], checkpoints: Path, number: int) -> None:
    """Save the state dict, once for each TL."""
    import torch

    checkpoints.mkdir(parents=True, exist_ok=True)
    for tl in targets:
        torch.save(networks.state_dict(), checkpoints / f"ppo_{tl}_trial_{number}.cleanrl_model")


def _step(networks: Any, optimizer: Any, x: Any, actions: Any, log_p: Any, advantages: Any, returns: Any) -> None:
    """One step of the optimiser, by PPO's clipped loss."""
    import torch
    from torch.distributions import Categorical

    chosen = Categorical(logits=networks["actor"](x))
    ratio = (chosen.log_prob(actions) - log_p).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = 0.5 * (networks["critic"](x)[:, 0] - returns).square().mean()
    loss = policy_loss + VALUE * value_loss - ENTROPY * chosen.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(networks.parameters(), MAX_GRADIENT)
    optimizer.step()


def evaluate(
    targets: Sequence[str], neighbours: Sequence[str], checkpoints: Path, models: Path, seconds: int, tripinfo: Path
) -> None:
    """Run the saved policy in the environment, on the city's own demand."""
    import torch

    path = checkpoints / f"ppo_{targets[0]}_trial_{same_trips.TRAINED}.cleanrl_model"
    state = torch.load(path, weights_only=True)
    networks = agent(state["actor.0.weight"].shape[1], state["actor.4.weight"].shape[0])
    networks.load_state_dict(state)

    def choose(observations: same_trips.Observations) -> dict[str, int]:
        with torch.no_grad():
            return {tl: int(networks["actor"](torch.as_tensor(x)).argmax()) for tl, x in observations.items()}

    same_trips.simulate(targets, neighbours, models, seconds, tripinfo, choose)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=46 * STEPS_AN_UPDATE, help="of the environment (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=900, help="simulated time of an episode (default: 900)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="TLs that learn (default: %(default)s)")
    parser.add_argument("--neighbours", default="", help="TLs that served models control (default: none)")
    parser.add_argument("--out", type=Path, default=Path("out/cleanrl"), help="(default: out/cleanrl)")
    args = parser.parse_args()
    try:
        import supersuit  # noqa: F401
        import torch
    except ImportError as error:
        raise InputError(f"PyTorch or SuperSuit is not installed ({error}); pip install torch supersuit") from None
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    models, checkpoints, in_environment = out / "models", out / "checkpoints", out / "environment.tripinfo.xml"
    targets, neighbours = args.targets.split(","), args.neighbours.split(",") if args.neighbours else []
    if neighbours:
        print(pipeline.export(models, out / "export.log"), flush=True)
    print(f"training with PyTorch {torch.__version__}, {args.steps} decisions of {len(targets)} TLs each", flush=True)
    train(vectorised(targets, neighbours, models, args.seconds), targets, checkpoints, args.steps)
    evaluate(targets, neighbours, checkpoints, models, args.seconds, in_environment)
    flags = ["--hidden-activation", "tanh"]  # a state dict does not contain it
    count = same_trips.check(targets, neighbours, checkpoints, models, args.seconds, in_environment, flags)
    print(f"the controller's {count} trips are those of the environment")
    print(same_trips.compare_with_plans(targets, models, args.seconds, out / "evaluation.log"))
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
