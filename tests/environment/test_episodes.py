"""What an episode does: who acts when, rewards, served neighbours, demand, pictures, and what is left at its end."""

import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import libsumo
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import greenserve
from city import config, network
from city.errors import InputError
from controller.sumo.programs import sumo_program
from environment.options import demand_of
from environment.street_image import StreetImage
from serving.client import Client
from serving.embedded.config import ServerConfig
from signals import contract
from simulation.demand import Demand, varied
from simulation.street_simulation import SimulationFailed
from simulation.trips import read_trips
from tests.conftest import GRID
from tests.environment.conftest import play
from tests.serving.conftest import running
from training.actor_critics import ActorCritics
from training.episode import EpisodeSimulator, TrainingTask

TARGETS = ["SA101", "SA103"]


def test_observations_lie_in_named_and_bounded_spaces(parallel, grid_city):
    of_street = {tl: config.TL(grid_city.tls[tl].signals, "street", tl) for tl in ("SA101", "SA105")}
    for city in (grid_city, replace(grid_city, tls=of_street)):
        env = parallel(city=city, seconds=200)
        steps = play(env)
        for tl in env.possible_agents:
            space, names = env.observation_space(tl), env.feature_names(tl)
            assert all(space.contains(observations[tl]) for observations, _, _ in steps)
            assert len(set(names)) == len(names) == space.shape[0] and (space.is_bounded() or city is not grid_city)
        if city is grid_city:
            assert env.feature_names("SA101")[3:6] == ["phase[A0:3]", "min_green[A0]", "density[A1A0.70.00_0]"]
    assert max(observations["SA101"].max() for observations, _, _ in steps) > 1


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, "SA101 and SA103"),  # 5 s and 8 s
        ({"SA103": {"action_t_s": 2}}, ""),  # 5 s too
        ({"SA102": {"delta_time_s": 6}}, "SA101 and SA102"),
        ({"SA103": {"action_t_s": 2}, "SA102": {"dialect": "street"}}, "SA101 and SA102"),
        ({"SA103": {"action": "offset", "action_t_s": None, "control_cycle": 1}}, "SA101 and SA103"),
    ],
)
def test_target_tls_that_decide_at_different_moments_are_named_in_a_warning(changes, warned, grid_city):
    tls = {name: replace(tl, **changes.get(name, {})) for name, tl in grid_city.tls.items()}
    city = replace(grid_city, tls=tls)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        greenserve.parallel_env(city, ["SA101", "SA102", "SA103"]).close()
        greenserve.env(city, "SA102").close()
    found = [w for w in caught if w.category is UserWarning]  # another test may have left an open file
    assert [f"{w.message}".partition(" decide at different moments: ")[0] for w in found] == [warned] * bool(warned)
    assert all(w.filename == __file__ for w in found), "the user's line"


def test_tl_acts_at_its_own_decisions_alone(parallel):
    """SA101 decides every 5 s, SA103 every 8 s."""
    steps = play(parallel(TARGETS, seconds=120))
    times = {tl: [info[tl]["time_s"] for _, _, info in steps if info[tl]["decides"]] for tl in TARGETS}
    assert times["SA101"] == list(range(0, 121, 5)) and times["SA103"] == list(range(0, 121, 8))
    assert [infos["SA101"]["time_s"] for *_, infos in steps] == sorted({*times["SA101"], *times["SA103"]})
    for (before, _, _), (after, rewards, infos) in itertools.pairwise(steps):
        for tl in TARGETS:
            if not infos[tl]["decides"]:
                assert np.array_equal(before[tl], after[tl]) and (rewards[tl] == 0 or infos[tl]["time_s"] == 120)


def test_action_of_a_tl_that_does_not_decide_is_not_followed(parallel):
    env = parallel(TARGETS, seconds=120)

    def run(idle):
        _, infos = env.reset(seed=1)
        seen = []
        while env.agents:
            actions = {"SA101": 1, "SA103": np.ones(1, np.float32)}
            if not infos["SA103"]["decides"]:
                actions["SA103"] = idle
            if idle is None:
                actions = {tl: action for tl, action in actions.items() if infos[tl]["decides"]}
            observations, rewards, _, _, infos = env.step(actions)
            seen.append((observations["SA103"].tolist(), rewards))
        return seen

    assert run(np.ones(1, np.float32)) == run(-np.ones(1, np.float32)) == run(None)


def test_reward_is_that_of_the_training(parallel, grid_city):
    """The trainer's transitions of greedy actions, step by step in the environment."""
    simulator = EpisodeSimulator(TrainingTask(grid_city, ("SA101", "SA104"), seconds=200.0))
    (layout,) = simulator.layouts
    arrays = [ActorCritics.initial_arrays(layout, np.random.default_rng(1))]
    episode = simulator.run(arrays, Demand(7), (1, 1), explore=True)
    env = parallel(["SA101", "SA104"], seconds=200, demand=Demand(7))
    actions = {tl: iter(episode.transitions[tl].action.ravel().astype(int).tolist()) for tl in env.possible_agents}
    steps = play(env, lambda observations: {tl: next(actions[tl]) for tl in observations})
    for tl, transitions in episode.transitions.items():
        rewards = [rewards[tl] for _, rewards, _ in steps[1:]]
        np.testing.assert_array_equal(np.array(rewards[:-1], np.float32), transitions.reward[:-1])
        width = len(steps[0][0][tl])
        np.testing.assert_array_equal([observations[tl] for observations, _, _ in steps[:-1]], transitions.x[:, :width])


def test_reward_may_be_a_function_of_the_readings(parallel):
    seen = []

    def worst_queue(tl):
        seen.append((tl.tl, tl.now_s, tl.seconds))
        assert tl.queued() == sum(tl.halting(lane) for lane in tl.lanes) and len(tl.lanes) == 8
        assert sum(len(tl.speeds_mps(lane)) for lane in tl.lanes) == sum(map(tl.vehicles, tl.lanes))
        assert all(0 <= tl.mean_speed_mps(lane) < 20 and tl.waiting_s(lane) >= 0 for lane in tl.lanes)
        return -max(tl.halting(lane) for lane in tl.lanes)

    steps = play(parallel(["SA101"], seconds=100, reward=worst_queue), lambda observations: {"SA101": 0})
    assert seen == [("SA101", 5.0 * k, 5.0) for k in range(1, 21)]
    assert min(rewards["SA101"] for _, rewards, _ in steps[1:]) < 0


def test_info_has_overrides_and_permitted_states(parallel, grid_city):
    city = replace(grid_city, safety=replace(grid_city.safety, min_yellow_s=5.0))
    env = parallel(["SA101"], seconds=200, city=city)
    k = iter(range(100))
    infos = [info["SA101"] for *_, info in play(env, lambda observations: {"SA101": next(k) // 3 % 4})]
    assert infos[0]["overrides"] == [] and all(set(info["permitted_states"]) == {"A0"} for info in infos)
    overrides = [override for info in infos for override in info["overrides"]]
    assert overrides and all(o["requested"] != o["permitted"] and o["signal"] == "A0" for o in overrides)
    # a yellow that goes on while the policy's own would have ended
    held = [info["permitted_states"] for info in infos if info["permitted_states"] != info["requested_states"]]
    assert any("y" in states["A0"] for states in held)


def test_served_tls_answer_beside_the_targets(parallel, grid_models):
    alone = play(parallel(["SA101"], seconds=200), lambda observations: {"SA101": 0})
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        env = parallel(["SA101"], "SA102,SA104", server=f"127.0.0.1:{server.port}", seconds=200)
        served = play(env, lambda observations: {"SA101": 0})
        calls = server.metrics.totals(["/tensorflow/serving/request_count"])["/tensorflow/serving/request_count"]
        env.close()
    assert calls >= 40
    assert any(not np.array_equal(a[0]["SA101"], b[0]["SA101"]) for a, b in zip(served, alone, strict=True)), "they act"
    embedded = parallel(["SA101"], ["SA 102", "SA_104"], infer_model_path=grid_models, seconds=200)
    again = play(embedded, lambda observations: {"SA101": 0})
    assert all(np.array_equal(a[0]["SA101"], b[0]["SA101"]) for a, b in zip(served, again, strict=True))


def test_policy_has_the_same_trips_in_the_environment_and_under_the_controller(parallel, grid_server, tmp_path):
    trips = tmp_path / "environment.xml"
    env = parallel(TARGETS, ["SA104"], server=grid_server, seconds=300, demand="city", tripinfo=trips)

    def served(observations):
        values = {tl: client.predict(tl, observation)["action"].ravel() for tl, observation in observations.items()}
        return {"SA101": int(values["SA101"][0]), "SA103": values["SA103"].clip(-1, 1)}

    with Client(grid_server) as client:
        play(env, served, seed=5)
    command = [sys.executable, "-m", "controller", "--city", GRID / "city.toml", "--server", grid_server, "--libsumo"]
    command += ["--infer-tl", "SA101,SA103,SA104", "--seed", "5", "--end", "300"]
    command += ["--tripinfo", tmp_path / "controller.xml"]
    subprocess.run(command, check=True, capture_output=True)
    ours, theirs = (arrived(tmp_path / f"{name}.xml") for name in ("environment", "controller"))
    assert ours == theirs and len(ours) > 50


def arrived(tripinfo):
    return sorted(trip for trip in re.findall(r"<tripinfo .*", tripinfo.read_text()) if 'arrival="-1' not in trip)


def simulators():
    """The SUMO programs that this process has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("sumo")]


def test_served_tl_without_an_answer_ends_the_episode(parallel, grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        env = parallel(["SA101"], ["SA104"], server=f"127.0.0.1:{server.port}", seconds=60)
        env.reset(seed=1)
        env.step({"SA101": 0})
    with pytest.raises(SimulationFailed, match="SA104 had no valid answer from its policy"):
        env.step({"SA101": 0})
    assert not libsumo.isLoaded()


@pytest.mark.parametrize("transport", ["libsumo", "traci"])
def test_sumo_that_ends_early_is_reported(transport, parallel, tmp_path):
    (tmp_path / "late.rou.xml").write_text(
        '<routes><vehicle id="a" depart="0"><route edges="A1B1"/></vehicle>'
        '<vehicle id="b" depart="600"><route edges="A1B1"/></vehicle>'
        '<vehicle id="x" depart="600"><route edges="nowhere"/></vehicle></routes>'
    )
    env = parallel(["SA101"], demand=tmp_path / "late.rou.xml", seconds=900, transport=transport)
    env.reset(seed=1)
    with pytest.raises(SimulationFailed, match="SUMO ended the simulation") as failed:
        for _ in range(180):
            env.step({"SA101": 0})
    assert "\n" not in str(failed.value) and simulators() == []
    with pytest.raises(ResetNeeded):
        env.step({"SA101": 0})


def test_tl_that_cannot_be_controlled_is_left_out_with_a_warning(parallel, monkeypatch):
    def controllable(city, tls, street):
        return [tl for tl in tls if tl != "SA102"], {"SA102": "SA102: has one green"}

    monkeypatch.setattr(contract, "controllable", controllable)
    with pytest.warns(UserWarning, match="left on its own program: SA102: has one green"):
        env = parallel(seconds=60)
    assert "SA102" not in env.possible_agents and len(env.possible_agents) == 7
    with pytest.raises(InputError, match="SA102: has one green"):
        parallel(["SA101", "SA102"], seconds=60)


@pytest.mark.parametrize("transport", ["libsumo", "traci"])
def test_closed_environment_leaves_nothing(transport, parallel, grid_models, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = parallel(["SA101"], ["SA102"], infer_model_path=grid_models, seconds=60, transport=transport)
    env.reset(seed=1)
    port = int(env._episodes._tls.task.server.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    assert len(list(tmp_path.glob("greenserve-*"))) == 1
    assert libsumo.isLoaded() == (transport == "libsumo") and len(simulators()) == (transport == "traci")
    env.close()
    env.close()
    assert not libsumo.isLoaded() and not list(tmp_path.iterdir())
    assert simulators() == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port))


def test_demand_is_the_trainers_the_citys_or_given(parallel, tmp_path):
    assert demand_of("varied", 3, 2) == varied(np.random.default_rng([3, 2]), varies=True)
    assert demand_of("city", 3, 2) == Demand(5) and demand_of(Demand(9), 3, 2) == Demand(9)
    routes = tmp_path / "one.rou.xml"
    routes.write_text('<routes><vehicle id="only" depart="0"><route edges="A1B1"/></vehicle></routes>')
    assert demand_of(str(routes), 3, 0) == Demand(3, route_file=routes)
    play(parallel(["SA101"], seconds=60, tripinfo=tmp_path / "trips.xml", demand=routes))
    assert read_trips(tmp_path / "trips.xml").total == 1


def test_picture_shows_lanes_vehicles_and_signals(single):
    env = single("SA101", seconds=200, render_mode="rgb_array", demand="city")
    env.reset(seed=1)
    empty = env.render()
    for _ in range(25):
        *_, info = env.step(0)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape == empty.shape and 240 <= max(picture.shape) <= 960

    def pixels(colour):
        return int((np.abs(picture.astype(int) - colour).sum(2) < 30).sum())

    state = info["permitted_states"]["A0"]
    assert "G" in state and pixels((60, 220, 90)) > 20 and "r" in state and pixels((225, 50, 45)) > 20
    assert pixels((52, 54, 60)) > 5000 and pixels((255, 90, 70)) + pixels((120, 200, 255)) > 50
    assert (picture != empty).any()
    while not env.step(0)[3]:
        pass
    assert (env.render() != picture).any(), "that of the end"


def test_there_is_no_picture_without_a_render_mode(single):
    env = single("SA101", seconds=60)
    env.reset(seed=1)
    with pytest.warns(UserWarning, match=r'pass render_mode="rgb_array"'):
        assert env.render() is None


SUMMARY = ("delay_s", "duration_s", "stops", "arrived", "vehicles", "overrides")


@pytest.mark.parametrize("transport", ["libsumo", "traci"])
def test_last_info_has_the_summary_of_the_trips(transport, parallel, tmp_path, grid_city):
    file = tmp_path / "trips.xml"
    city = replace(grid_city, safety=replace(grid_city.safety, min_yellow_s=5.0))
    env = parallel(TARGETS, seconds=300, tripinfo=file, transport=transport, city=city)
    *before, (_, _, infos) = play(env)
    assert not any(name.startswith("episode_") for _, _, other in before for name in other["SA101"])
    trips = read_trips(file, 300.0)
    overrides = sum(len(info["overrides"]) for *_, other in (*before, (0, 0, infos)) for info in other.values())
    expected = (trips.delay_s, trips.duration_s, trips.stops, trips.finished, trips.total, overrides)
    for info in infos.values():
        assert tuple(info[f"episode_{name}"] for name in SUMMARY) == expected
    assert trips.total > trips.finished > 0 and trips.delay_s > 0 and overrides


@pytest.mark.parametrize("has_file", [False, True])
def test_an_episode_without_a_summary_writes_trips_only_if_they_are_asked_for(single, has_file, tmp_path):
    env = single("SA101", seconds=60, episode_summary=False, tripinfo=tmp_path / "x.xml" if has_file else None)
    env.reset(seed=1)
    assert libsumo.simulation.getOption("tripinfo-output") == (str(tmp_path / "x.xml") if has_file else "")
    while not (step := env.step(0))[3]:
        pass
    assert not [key for key in step[4] if key.startswith("episode_")]
    assert [path.name for path in tmp_path.glob("*.xml")] == ["x.xml"] * has_file


def test_stable_baselines3s_monitor_has_the_summary(single, tmp_path):
    monitor = pytest.importorskip("stable_baselines3.common.monitor", reason="stable-baselines3 is not installed")
    env = monitor.Monitor(single("SA101", seconds=60), str(tmp_path / "x"), info_keywords=("episode_delay_s",))
    env.reset(seed=1)
    while not (step := env.step(0))[3]:
        pass
    assert step[4]["episode"]["episode_delay_s"] == step[4]["episode_delay_s"]
    assert "episode_delay_s" in (tmp_path / "x.monitor.csv").read_text()


def test_figures_of_sumo_rl_and_its_csv_files_are_written_with_a_city_too(parallel, tmp_path):
    options = {"add_system_info": True, "add_per_agent_info": True, "out_csv_name": str(tmp_path / "out" / "x")}
    env = parallel(["SA101", "SA103"], seconds=100, **options)
    play(env)
    *_, (_, _, infos) = steps = play(env)
    last = infos["SA103"]
    assert last["agents_total_stopped"] >= last["SA103_stopped"] >= 0 and "SA101_stopped" not in last
    first, second = sorted((tmp_path / "out").glob("x_conn*_ep*.csv"))
    lines = second.read_text().splitlines()
    assert first.name.endswith("_ep1.csv") and len(lines) == 1 + len(steps)
    assert lines[0].startswith("step,system_total_stopped,") and lines[-1].startswith("100.0,")


@pytest.mark.parametrize(
    ("old", "new", "floors", "differing"),
    [
        ("", "", None, None),
        ("", "", "dialect", "waiting-time-memory 100 (sumo-rl 1000)"),
        (
            'port value="-1"',
            'port value="300"',
            "dialect",
            "time-to-teleport 300 (sumo-rl -1), waiting-time-memory 100",
        ),
        ("</processing>", '<waiting-time-memory value="1000"/></processing>', "dialect", None),
    ],
)
def test_options_in_which_a_simulation_is_not_sumo_rls_are_named(old, new, floors, differing, tmp_path):
    for path in GRID.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    sumocfg = tmp_path / "grid.sumocfg"
    sumocfg.write_text(sumocfg.read_text().replace(old, new) if old else sumocfg.read_text())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        greenserve.env(tmp_path / "city.toml", "SA101", floors=floors).close()
    found = [warning for warning in caught if warning.category is UserWarning]
    assert len(found) == (differing is not None)
    for warning in found:
        assert f"differs from sumo-rl's in {differing}" in str(warning.message)
        assert warning.filename == __file__, "the user's line"


@pytest.mark.parametrize("dialect", ["sumo-rl", "street"])
def test_picture_shows_the_approach_that_the_observation_sees(dialect, single, tmp_path):
    """Two lanes of 500 m: sumo-rl counts all of them, the street dialect sees 300 m."""
    net = tmp_path / "long.net.xml"
    command = [sumo_program("netgenerate"), "--grid", "--grid.number", "1", "--grid.attach-length", "500"]
    command += ["--default-junction-type", "traffic_light", "--output-file", str(net)]
    subprocess.run(command, check=True, capture_output=True)
    street = network.read(net)
    signal = max(street.signals, key=lambda name: len(street.signals[name].links))
    city = config.City(net, config.Network(net=net), tls={"J": config.TL((signal,), dialect, "J")})
    image = StreetImage(street, [contract.build(city, city.tls["J"], street)])
    heights_m = image._size[1] / image._scale
    lane = street.signals[signal].lanes[0]
    assert street.lane_length_m[lane] > 480
    assert heights_m > (2 * 480 if dialect == "sumo-rl" else 2 * 300) and (dialect == "sumo-rl" or heights_m < 2 * 400)
