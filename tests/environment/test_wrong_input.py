"""Wrong input and calls out of order: an exception of one line that says how to fix it."""

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded

import greenserve
from city.errors import InputError
from tests.conftest import GRID

ARGUMENTS = [
    ({"city": "nowhere/city.toml"}, r"city: nowhere/city.toml: no such file; pass the path of a city.toml"),
    ({"target_tls": ["SA999"]}, "target_tls: SA999 is not one of the TLs SA101"),
    ({"target_tls": ["A0"]}, "target_tls: A0 is a signal, which belongs to TL SA101"),
    ({"target_tls": []}, "target_tls selects no TL"),
    ({"infer_tls": ["SA999"]}, "infer_tls: SA999 is not one of the TLs"),
    ({"infer_tls": "all"}, "infer_tls names every TL"),
    ({"target_tls": "SA101,SA102", "infer_tls": "SA 102"}, "SA102 cannot be in target_tls and infer_tls at once"),
    ({"infer_tls": "SA102", "infer_model_path": GRID / "nothing"}, "SA102"),
    ({"infer_tls": "SA102", "server": "127.0.0.1:1"}, "no model server answers at 127.0.0.1:1"),
    ({"infer_tls": "SA102", "server": "nonsense"}, "server"),
    ({"server": "127.0.0.1:8500"}, "server needs infer_tls"),
    (
        {"reward": "happiness"},
        "reward = 'happiness' must be a function, module:function, or one of average-speed, delay",
    ),
    ({"reward": "no_such_module:queue"}, "reward no_such_module:queue cannot be imported: ModuleNotFoundError"),
    ({"reward": "math:pi"}, "reward math:pi is not a function"),
    ({"net_file": None, "begin_time": 5}, "begin_time belongs to net_file"),
    ({"floors": "none"}, "floors = 'none' must be one of None, street, dialect"),
    ({"transport": "pigeon"}, "transport = 'pigeon' must be one of None, libsumo, traci"),
    ({"render_mode": "ansi"}, "render_mode = 'ansi' must be one of None, human, rgb_array"),
    ({"reward": ["queue", "pressure"]}, "reward: a list of 2 needs reward_weights of 2 numbers"),
    ({"reward": {"SA101": "queue"}, "target_tls": ["SA101", "SA102"]}, "reward: SA102 is missing"),
    ({"reward_fn": "queue", "reward": "pressure"}, "reward_fn and reward mean the same; pass one of them"),
    ({"rewards": "queue"}, "there is no argument rewards; did you mean reward"),
    ({"delta_time": 5}, "delta_time belongs to net_file; without it city.toml has it"),
    ({"fixed_ts": True}, "fixed_ts: the programs of the signals .* evaluate --arms fixed; leave it out"),
    ({"single_agent": True}, "single_agent = True is the environment of greenserve.env; call that"),
    ({"net_file": "x.net.xml"}, "city and net_file both name the street"),
    ({"city": "city.toml", "net_file": "nowhere.net.xml"}, "net_file: nowhere.net.xml: no such file"),
    ({"additional_sumo_cmd": ["--step-length"]}, "additional_sumo_cmd = .* must be a text"),
    ({"sumo_seed": "any"}, "sumo_seed = 'any' must be an integer or 'random'"),
    ({"target_tls": ["SA103"], "observation_class": dict}, "observation_class: SA103 is of dialect sappo"),
    ({"seconds": 0}, "seconds = 0 must be at least 1"),
    ({"seconds": "60"}, "seconds = '60' must be a number"),
    ({"infer_tls": "SA102", "infer_model_number": "1"}, "infer_model_number = '1' must be an integer"),
    ({"tripinfo": "/nowhere/trips.xml"}, "tripinfo: /nowhere: no such folder; create it, or pass another path"),
    ({"demand": "nothing.rou.xml"}, r"demand: nothing.rou.xml: no such file; pass varied, city, same, a route file"),
    ({"city": 7}, "city = 7 must be the path of a city.toml"),
    ({"city": None}, "city = None must be the path of a city.toml"),
    ({"target_tls": 101}, "target_tls: 101 is not the name of a TL; pass names, such as"),
    ({"target_tls": ["SA101", None]}, "target_tls: None is not the name of a TL"),
    ({"target_tls": b"SA101"}, "target_tls: 83 is not the name of a TL"),
    ({"target_tls": ""}, "target_tls selects no TL"),
    ({"infer_tls": 101}, "infer_tls: 101 is not the name of a TL"),
    ({"infer_tls": ["SA102"], "server": 8500}, "server = 8500 must be HOST:PORT"),
    ({"infer_tls": ["SA102"], "infer_model_path": 1}, "infer_model_path = 1 must be a path"),
    ({"infer_tls": ["SA102"], "infer_model_number": True}, "infer_model_number = True must be an integer"),
    ({"tripinfo": 5}, "tripinfo = 5 must be a path"),
    ({"episode_summary": 1}, "episode_summary = 1 must be True or False"),
    ({"reward": None}, "reward = None must be a function, module:function, or one of"),
    ({"reward": np.zeros(2)}, "reward = .* must be a function, module:function, or one of"),
    ({"floors": ["street"]}, r"floors = \['street'\] must be one of None, street, dialect"),
    ({"floors": np.array(["street", "street"])}, "floors = .* must be one of"),
    ({"render_mode": 1}, "render_mode = 1 must be one of None, human, rgb_array"),
    ({"seconds": True}, "seconds = True must be a number"),
    ({"seconds": float("nan")}, "seconds = nan must be at least 1"),
    ({"demand": 7}, "demand = 7 must be varied, city, same, a route file, or a Demand"),
]


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_wrong_argument_is_named_in_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        greenserve.parallel_env(**{"city": GRID / "city.toml", **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("tl", "message"),
    [
        (None, "target_tl must be one of SA101, SA102, "),
        *((tl, 'must be the name of a TL, such as "SA101"') for tl in (["SA101"], 101, b"SA101")),
    ],
)
def test_single_environment_needs_the_name_of_one_tl(tl, message):
    with pytest.raises(InputError, match=f"{message}.*; for several use parallel_env"):
        greenserve.env(GRID / "city.toml", tl)


def test_city_without_tls_is_named(tmp_path):
    (tmp_path / "city.toml").write_text(f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n')
    with pytest.raises(InputError, match=r"city\.toml: has no \[tl\.NAME\]"):
        greenserve.parallel_env(tmp_path / "city.toml")


def test_second_simulation_over_libsumo_is_refused_if_it_must_be_libsumo(parallel):
    first, second = parallel(["SA101"], seconds=60), parallel(["SA102"], seconds=60, transport="libsumo")
    first.reset(seed=1)
    with pytest.raises(InputError, match=r'one at a time: close the other environment, leave transport="libsumo" out'):
        second.reset(seed=1)
    first.step({"SA101": 0})
    first.close()
    second.reset(seed=1)


def test_steps_out_of_order_are_refused(parallel):
    env = parallel(["SA101"], seconds=5)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step({"SA101": 0})
    env.reset(seed=1)
    assert env.step({"SA101": 0})[3] == {"SA101": True} and env.agents == []
    with pytest.raises(ResetNeeded, match=r"the episode ended at second 5; call reset\(\)"):
        env.step({"SA101": 0})
    env.close()
    with pytest.raises(ClosedEnvironmentError, match="make another one"):
        env.reset()
    with pytest.raises(ResetNeeded):
        env.step({})


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"SA101": 4, "SA103": [0.0]}, r"action 4 of SA101 is not in its space Discrete\(4\)"),
        ({"SA101": 1.5, "SA103": [0.0]}, r"action 1.5 of SA101 is not in its space"),
        ({"SA101": np.array([0, 1]), "SA103": [0.0]}, "of SA101 is not in its space"),
        ({"SA101": 0, "SA103": [2.0]}, r"action \[2.0\] of SA103 is not in its space Box"),
        ({"SA101": 0, "SA103": [float("nan")]}, "of SA103 is not in its space"),
        ({"SA101": 0, "SA103": "left"}, "action 'left' of SA103 is not in its space"),
        ({"SA101": 0}, "the action of SA103 is missing, which decides at second 0; pass it"),
        ({"SA101": 0, "SA103": [0.0], "SA102": 0}, "SA102 is not one of the target TLs SA101, SA103"),
    ],
)
def test_action_out_of_its_space_is_refused_and_the_episode_goes_on(actions, message, parallel):
    env = parallel(["SA101", "SA103"], seconds=60)
    env.reset(seed=1)
    with pytest.raises(InvalidAction, match=message) as raised:
        env.step(actions)
    assert "\n" not in str(raised.value)
    env.step({"SA101": np.int64(1), "SA103": np.zeros(1)})


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_wrong_seed_is_refused(parallel, seed):
    with pytest.raises(InputError, match=f"seed = {seed!r} must be an integer of 0 or more"):
        parallel(["SA101"], seconds=60).reset(seed=seed)
