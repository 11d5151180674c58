"""An environment with the arguments of sumo-rl's constructor is sumo-rl's environment, and its tests pass."""

import contextlib
import csv
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from unittest.mock import ANY

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import greenserve
from city.errors import InputError
from tests.conftest import ROOT
from tests.environment.sumo_rl_constructor import CASES, nets

SINGLE = ("single-intersection.net.xml", "single-intersection-vhvh.rou.xml")
SUMO_RL = importlib.util.find_spec("sumo_rl")
pytestmark = pytest.mark.skipif(SUMO_RL is None, reason="sumo-rl is not installed (pip install sumo-rl)")


def run(package, case, folder):
    import sumo

    environment = {**os.environ, "SUMO_HOME": sumo.SUMO_HOME, "PYTHONPATH": str(ROOT)}
    if package == "sumo_rl":
        environment["LIBSUMO_AS_TRACI"] = "1"
    command = [sys.executable, "-m", "tests.environment.sumo_rl_constructor", package, case, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows(path):
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def without_ours(info):
    """sumo-rl's keys of an info, of one TL or of all; sumo-rl's TL 1 has the figures of TL 10 too."""
    ours = ("time_s", "decides", "overrides", "requested_states", "permitted_states", "action_mask", "episode_")
    if info and all(isinstance(value, dict) for value in info.values()):
        own = {
            tl: {name: value[name] for name in value if name.startswith((f"{tl}_", "system"))}
            for tl, value in info.items()
        }
        return {tl: without_ours(value) for tl, value in own.items()}
    return {name: value for name, value in info.items() if not name.startswith(ours) and name != "step"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case in ("cologne8", "ingolstadt7") else ()) for case in CASES],
)
def test_same_script_has_the_same_episodes_infos_and_csv_files(case, tmp_path):
    theirs, ours = (run(package, case, tmp_path) for package in ("sumo_rl", "greenserve"))
    assert len(ours) == len(theirs) > 10
    for their, our in zip(theirs, ours, strict=True):
        assert our[:-1] == their[:-1]
        if isinstance(our[-1], dict):
            assert without_ours(our[-1]) == without_ours(their[-1])
    their_files, our_files = (sorted((tmp_path / package).iterdir()) for package in ("sumo_rl", "greenserve"))
    assert [path.name for path in our_files] == [path.name for path in their_files] != []
    for their, our in zip(their_files, our_files, strict=True):
        assert rows(our) == rows(their) and our.read_text().splitlines()[0] == their.read_text().splitlines()[0]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "libsumo is in use")
        yield


def arguments(*files, seconds=100):
    net, route = nets(files)
    return {"net_file": net, "route_file": route, "num_seconds": seconds}


@pytest.mark.slow
def test_its_own_test_of_gymnasiums_interface_passes():
    files = arguments("single-intersection.net.xml", "single-intersection.rou.xml")
    env = gymnasium.make("environment:greenserve-v0", use_gui=False, **files)
    env.reset()
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_several_rewards_are_summed_by_their_weights():
    files = arguments("4x4.net.xml", "4x4c1c2c1c2.rou.xml")
    received = []
    both = {"reward_fn": ["queue", "average-speed"], "reward_weights": [1, 0.5]}
    for reward in ({"reward_fn": "queue"}, {"reward_fn": "average-speed"}, both):
        with contextlib.closing(greenserve.parallel_env(**files, sumo_seed=1, ts_ids=["0", "5"], **reward)) as env:
            env.reset()
            assert env.agents == ["0", "5"]
            received.append([env.step({"0": k % 2, "5": 0})[1] for k in range(20)])
    queue, speed, both = received
    assert both == [{tl: a[tl] + 0.5 * b[tl] for tl in a} for a, b in zip(queue, speed, strict=True)] != queue


def test_street_floors_train_sumo_rls_street_under_the_safety_rules():
    files = arguments("cologne1.net.xml", "cologne1.rou.xml")
    with contextlib.closing(greenserve.env(**files, begin_time=25200, floors="street")) as env:
        env.reset(seed=1)
        yellow_s = sum("y" in state for k in range(20) for state in env.step(k % 4)[-1]["permitted_states"].values())
    assert yellow_s


def test_several_signals_need_the_environment_of_several():
    files = arguments("4x4.net.xml", "4x4c1c2c1c2.rou.xml")
    with pytest.raises(InputError, match=r"target_tl must be one of 0, 1, .*; for several use parallel_env"):
        greenserve.env(**files)
    with pytest.raises(InputError, match=r"single_agent = False is the environment of greenserve.parallel_env"):
        greenserve.env(**files, single_agent=False)
    for make in (greenserve.env, greenserve.SumoEnvironment):
        with contextlib.closing(make(**files, single_agent=True)) as env:
            assert env.tl == "0"


@pytest.fixture
def of_dictionaries():
    with contextlib.closing(greenserve.SumoEnvironment(*nets(SINGLE), num_seconds=100)) as env:
        yield env


def test_observation_is_encoded_as_a_key_of_sumo_rls_tables(of_dictionaries):
    assert of_dictionaries.action_space.n == 4 and of_dictionaries.observation_space.shape == (21,)
    state = np.array([0, 1, 0, 0, 1, 0.05, 0.1, 0.999, 1.0] + 12 * [0.35], np.float32)
    assert of_dictionaries.encode(state, "t") == (1, 1.0, 0, 1, 9, 9, *(12 * [3]))
    hash(of_dictionaries.encode(of_dictionaries.reset()["t"], "t"))


def test_closed_environment_of_dictionaries_can_be_reset(of_dictionaries):
    for seed in (1, 2):
        of_dictionaries.reset(seed=seed)
        assert of_dictionaries.step({"t": 1})[2:] == ({"t": False, "__all__": False}, ANY)
        of_dictionaries.close()
        with pytest.raises(ResetNeeded):
            of_dictionaries.step({"t": 1})


def test_observations_of_dictionaries_are_kept_when_the_next_ones_come(of_dictionaries):
    kept = of_dictionaries.reset(seed=1)["t"]
    before = kept.copy()
    for _ in range(5):
        later = of_dictionaries.step({"t": 2})[0]["t"]
    assert np.array_equal(kept, before) and not np.array_equal(later, before)


def test_environment_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = greenserve.env(**arguments("cologne1.net.xml", "cologne1.rou.xml"), begin_time=25200)
    env.reset()
    assert len(list(tmp_path.iterdir())) == 2
    env.close()
    assert not list(tmp_path.iterdir())


def test_part_of_a_traffic_signal_that_is_not_served_is_named():
    files = arguments("cologne1.net.xml", "cologne1.rou.xml")
    with contextlib.closing(greenserve.env(**files, begin_time=25200, reward_fn=lambda ts: ts.env.sim_step)) as env:
        env.reset()
        with pytest.raises(AttributeError, match=r"TrafficSignal.env of sumo-rl is not available here; use"):
            env.step(0)


def test_gui_needs_a_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    for gui in ({"use_gui": True}, {"render_mode": "human"}):
        files = arguments("cologne1.net.xml", "cologne1.rou.xml")
        with (
            contextlib.closing(greenserve.env(**files, **gui)) as env,
            pytest.raises(InputError, match="needs a display"),
        ):
            env.reset()


def test_csv_files_of_two_environments_have_names_of_their_own(tmp_path):
    for _ in range(2):
        with contextlib.closing(greenserve.SumoEnvironment(*nets(SINGLE), num_seconds=5)) as env:
            env.reset(seed=1)
            env.step({"t": 0})
            env.save_csv(tmp_path / "saved", 1)
    assert len(list(tmp_path.glob("saved_conn*_ep1.csv"))) == 2
