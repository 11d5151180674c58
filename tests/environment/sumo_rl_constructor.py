"""Episodes of one script in which only the import differs: sumo-rl's package, or greenserve's.

    python -m tests.environment.sumo_rl_constructor sumo_rl|greenserve CASE FOLDER

Prints observations, rewards and infos as JSON, and writes the CSV files into FOLDER. A case is one of CASES.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
from gymnasium import spaces


class QueueObservation:
    """An observation class as a user of sumo-rl has it."""

    def __init__(self, ts):
        self.ts = ts
        assert ts.green_phase == 0, "also before an episode"

    def __call__(self):
        ts = self.ts
        phase = [1.0 if ts.green_phase == i else 0.0 for i in range(ts.num_green_phases)]
        since = [ts.time_since_last_phase_change / 100, float(ts.min_green), float(ts.yellow_time)]
        out = ts.get_out_lanes_density()
        return np.array(phase + since + ts.get_lanes_queue() + ts.get_lanes_density() + [sum(out)], np.float32)

    def observation_space(self):
        size = self.ts.num_green_phases + 4 + 2 * len(self.ts.lanes)
        return spaces.Box(np.zeros(size, np.float32), np.full(size, 100, np.float32))


def brake(ts):
    """A reward function with a memory and readings of SUMO, as a user of sumo-rl has it."""
    waiting = sum(ts.get_accumulated_waiting_time_per_lane())
    reward = ts.last_measure - waiting - ts.get_total_queued() + ts.get_pressure()
    ts.last_measure = waiting
    return reward + len(ts._get_veh_list()) + ts.sumo.simulation.getTime() / 1000


def nets(name):
    (package,) = importlib.util.find_spec("sumo_rl").submodule_search_locations
    return [str(next((Path(package) / "nets").glob(f"**/{part}"))) for part in name]


COLOGNE = {
    "files": ("cologne1.net.xml", "cologne1.rou.xml"), "single_agent": True, "begin_time": 25200, "num_seconds": 300,
    "reward_fn": brake, "observation_class": QueueObservation, "sumo_seed": 7, "delta_time": 7, "yellow_time": 3,
    "min_green": 9, "time_to_teleport": 60, "max_depart_delay": 30, "waiting_time_memory": 200,
    "additional_sumo_cmd": "--scale 1.5 --step-length 1", "sumo_warnings": False,
}  # fmt: skip
GRID = {"files": ("4x4.net.xml", "4x4c1c2c1c2.rou.xml"), "num_seconds": 300, "sumo_seed": 3}
CASES = {
    "single": COLOGNE,
    "defaults": {
        **GRID,
        "files": ("single-intersection.net.xml", "single-intersection-vhvh.rou.xml"),
        "single_agent": True,
    },
    "parallel": GRID,
    "by signal": {**GRID, "num_seconds": 150, "reward_fn": {"0": "queue", "1": brake, "*": "average-speed"}},
    "dictionaries": {**GRID, "num_seconds": 100, "single_agent": False},
    "cologne8": {
        "files": ("cologne8.net.xml", "cologne8.rou.xml"), "begin_time": 25200, "num_seconds": 600, "sumo_seed": 42,
        "reward_fn": "pressure",
    },
    "ingolstadt7": {
        "files": ("ingolstadt7.net.xml", "ingolstadt7.rou.xml"), "begin_time": 57600, "num_seconds": 600,
        "sumo_seed": 42, "reward_fn": "queue", "transport": "traci",
    },
    "without figures": {**GRID, "num_seconds": 50, "add_system_info": False, "add_per_agent_info": False},
}  # fmt: skip


def main(package, case, folder):
    arguments = dict(CASES[case])
    if package == "sumo_rl":
        arguments.pop("transport", None)
    arguments["net_file"], arguments["route_file"] = nets(arguments.pop("files"))
    arguments["out_csv_name"] = f"{folder}/{package}/figures"
    if isinstance(arguments.get("reward_fn"), dict):
        by_signal = arguments["reward_fn"]
        arguments["reward_fn"] = {str(k): by_signal.get(str(k), by_signal["*"]) for k in range(16)}
    module = importlib.import_module(package)
    is_single = arguments.get("single_agent")
    steps, rng = [], np.random.default_rng(1)

    def note(*values):
        steps.append(json.loads(json.dumps(values, default=lambda value: value.tolist())))

    if is_single:
        env = module.SumoEnvironment(**arguments)
        for seed in (None, None, 11):
            note(*env.reset(seed=seed))
            is_over = False
            while not is_over:
                observation, reward, terminated, is_over, info = env.step(rng.integers(env.action_space.n))
                note(observation, reward, terminated, is_over, info)
    elif is_single is False:
        env = module.SumoEnvironment(**arguments)
        for _ in range(2):
            note(env.ts_ids, env.reset())
            dones = {"__all__": False}
            while not dones["__all__"]:
                actions = {ts: rng.integers(env.action_spaces(ts).n) for ts in env.ts_ids}
                *observed, dones, info = env.step(action=actions)
                note(*observed, dones, info)
        env.save_csv(f"{folder}/{package}/saved", 9)
    else:
        env = module.parallel_env(**arguments)
        note(env.possible_agents)
        for _ in range(2):
            note(*env.reset())
            while env.agents:
                note(*env.step({tl: int(rng.integers(env.action_space(tl).n)) for tl in env.agents}))
    if package == "sumo_rl":
        env.reset()  # writes the last CSV file
    env.close()
    print(json.dumps(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
