"""One episode of random actions in sumo-rl's environment or in ours, in a process of its own.

    python -m tests.environment.sumo_rl_episode sumo-rl|libsumo|traci EPISODE

EPISODE is an `Episode` as JSON; steps and trips are written to its folder.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.sumo_rl_cases import Case

SEED = 42


@dataclass(frozen=True)
class Episode(Case):
    reward: str


def actions_of(rng, sizes):
    return {tl: int(rng.integers(sizes[tl])) for tl in sorted(sizes)}


def run_sumo_rl(episode):
    from sumo_rl import SumoEnvironment

    from controller.sumo.tripinfo import TRIPINFO_OPTIONS

    trips = ["--tripinfo-output", str(episode.file("sumo-rl", "xml")), *TRIPINFO_OPTIONS, "--no-step-log", "true"]
    env = SumoEnvironment(
        net_file=episode.net_file, route_file=episode.routes, begin_time=episode.begin_s, num_seconds=episode.seconds,
        reward_fn=episode.reward, sumo_seed=SEED, sumo_warnings=False, add_system_info=False, add_per_agent_info=False,
        additional_sumo_cmd=" ".join(trips),
    )  # fmt: skip
    observations, rng, done, steps = env.reset(), np.random.default_rng(1), False, []
    first = {ts: observation.tolist() for ts, observation in observations.items()}
    sizes = {ts: int(env.action_spaces(ts).n) for ts in env.ts_ids}
    while not done:
        observations, rewards, dones, _ = env.step(actions_of(rng, sizes))
        steps.append([{ts: o.tolist() for ts, o in observations.items()}, rewards])
        done = dones["__all__"]
    env.close()
    return {"first": first, "sizes": sizes, "steps": steps}


def run_ours(episode, transport):
    import greenserve

    env = greenserve.parallel_env(
        Path(episode.folder) / "city.toml", reward=episode.reward, floors="dialect", demand="city", transport=transport,
        tripinfo=episode.file(transport, "xml"),
    )  # fmt: skip
    observations, _ = env.reset(seed=SEED)
    signal = {tl: contract.signal_ids[0] for tl, contract in env._episodes.contracts.items()}
    tl_of = {signal: tl for tl, signal in signal.items()}
    first = {signal[tl]: observation.tolist() for tl, observation in observations.items()}
    rng, steps = np.random.default_rng(1), []
    sizes = {signal[tl]: int(env.action_space(tl).n) for tl in env.agents}
    overrides = 0
    while env.agents:
        actions = {tl_of[s]: action for s, action in actions_of(rng, sizes).items()}
        observations, rewards, _, _, infos = env.step(actions)
        steps.append(
            [{signal[tl]: o.tolist() for tl, o in observations.items()}, {signal[tl]: r for tl, r in rewards.items()}]
        )
        overrides += sum(len(info["overrides"]) for info in infos.values())
    env.close()
    return {"first": first, "sizes": sizes, "steps": steps, "overrides": overrides}


if __name__ == "__main__":
    name, given = sys.argv[1], Episode(**json.loads(sys.argv[2]))
    result = run_sumo_rl(given) if name == "sumo-rl" else run_ours(given, name)
    given.file(name, "json").write_text(json.dumps(result))
