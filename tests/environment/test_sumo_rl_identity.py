"""The environment with the dialect's floors is sumo-rl's own: the same observations, rewards and trips."""

import importlib.util
import json
from pathlib import Path

import pytest

from city import network
from greenserve.__main__ import main
from tests.environment import sumo_rl_episode
from tests.environment.sumo_rl_episode import Episode
from tests.sumo_rl_cases import run_in_a_process

SUMO_RL = importlib.util.find_spec("sumo_rl")
pytestmark = pytest.mark.skipif(SUMO_RL is None, reason="sumo-rl is not installed (pip install sumo-rl)")
CASES = [
    ("cologne1", "diff-waiting-time", "libsumo", 300),
    pytest.param("cologne1", "average-speed", "traci", 150, marks=pytest.mark.slow),
    pytest.param("cologne8", "diff-waiting-time", "libsumo", 600, marks=pytest.mark.slow),
    pytest.param("cologne8", "pressure", "libsumo", 200, marks=pytest.mark.slow),
    pytest.param("ingolstadt7", "queue", "libsumo", 200, marks=pytest.mark.slow),
    pytest.param("ingolstadt7", "average-speed", "libsumo", 600, marks=pytest.mark.slow),
    pytest.param("ingolstadt7", "diff-waiting-time", "traci", 300, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "reward", "transport", "seconds"), CASES)
def test_same_actions_give_sumo_rls_observations_rewards_and_trips(name, reward, transport, seconds, tmp_path):
    (package,) = SUMO_RL.submodule_search_locations
    folder = Path(package) / "nets" / "RESCO" / name
    street = network.of_sumocfg(folder / f"{name}.sumocfg")
    files = str(folder / f"{name}.net.xml"), str(folder / f"{name}.rou.xml")
    begin_s = int(street.begin_s)
    times = ["--begin-time", str(begin_s), "--num-seconds", str(seconds)]
    out = ["--out", str(tmp_path / "city.toml")]
    assert main(["city", "init", "--net", files[0], "--route", files[1], *times, *out]) == 0
    episode = Episode(str(tmp_path), *files, begin_s, seconds, reward)
    expected, expected_trips = run_in_a_process(sumo_rl_episode, "sumo-rl", episode, LIBSUMO_AS_TRACI="1")
    result, trips = run_in_a_process(sumo_rl_episode, transport, episode)
    assert result["overrides"] == 0 and len(result["steps"]) == seconds // 5
    assert result["first"] == expected["first"] and result["sizes"] == expected["sizes"]
    for ours, theirs in zip(result["steps"], expected["steps"], strict=True):
        assert ours == theirs
    assert len({json.dumps(rewards) for _, rewards in expected["steps"]}) > 5, "the street was not empty"
    assert trips == expected_trips != []
