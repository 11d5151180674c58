"""Episodes in the real SUMO: rewards by their formulas, varied demand, served TLs beside those that learn, worker processes."""

import functools
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from city import config, network
from controller.assembly import assemble
from controller.sumo.libsumo_connection import start_libsumo
from export import contract
from serving.embedded.config import ServerConfig
from tests.conftest import GRID
from tests.serving.conftest import running
from training import rewards
from training.actor_critics import ActorCritics
from training.approaches import lanes_before
from training.demand import MAX_SHIFT_S, SCALES, Demand, varied
from training.episode import Simulation, Task
from training.workers import Workers

TARGETS = ("SA101", "SA103")


@pytest.fixture(scope="module")
def task():
    return Task(config.load(GRID / "city.toml"), TARGETS, seconds=200.0)


def first_arrays(simulation):
    return [ActorCritics.first_arrays(layout, np.random.default_rng(1)) for layout in simulation.layouts]


def same(a, b):
    assert a.trips == b.trips and a.transitions.keys() == b.transitions.keys()
    for tl in a.transitions:
        for name in ("x", "action", "log_p", "value", "reward"):
            np.testing.assert_array_equal(getattr(a.transitions[tl], name), getattr(b.transitions[tl], name))


def test_episode_is_repeated_by_its_seeds(task):
    simulation = Simulation(task)
    arrays = first_arrays(simulation)
    first, again, other = (simulation.run(arrays, Demand(7), (1, k), explore=True) for k in (1, 1, 2))
    same(first, again)
    assert any(not np.array_equal(first.transitions[tl].action, other.transitions[tl].action) for tl in first.transitions)
    assert first.transitions.keys() == set(TARGETS) and first.trips.total > 0
    assert simulation.run(arrays, Demand(7), (1,), explore=False).transitions == {}


def test_reward_of_a_decision_is_that_of_the_time_until_the_next(task, monkeypatch):
    measured = []

    def since_last(self, tls):
        measured.append(len(measured))
        return [float(len(measured))] * len(tls)

    monkeypatch.setattr(rewards.Rewards, "since_last", since_last)
    simulation = Simulation(replace(task, target_tls=("SA101",)))
    reward = simulation.run(first_arrays(simulation), Demand(7), (1,), explore=True).transitions["SA101"].reward
    np.testing.assert_array_equal(reward[:-1], np.arange(2, len(reward) + 1))


def test_served_tls_answer_beside_those_that_learn(task, grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        beside = replace(task, infer_tls=("SA104", "SA107"), infer_model_number=1, server=f"127.0.0.1:{server.port}")
        simulation = Simulation(beside)
        episode = simulation.run(first_arrays(simulation), Demand(7), (1, 1), explore=True)
        calls = server.metrics.totals(["/tensorflow/serving/request_count"])["/tensorflow/serving/request_count"]
    alone = Simulation(task).run(first_arrays(simulation), Demand(7), (1, 1), explore=True)
    assert calls >= 10 and episode.missing_answers == 0
    assert episode.transitions.keys() == set(TARGETS)
    assert any(not np.array_equal(episode.transitions[tl].x, alone.transitions[tl].x) for tl in TARGETS), "they act"


def test_workers_give_the_same_episodes_and_replace_one_that_dies(task):
    simulation = Simulation(task)
    jobs = [(first_arrays(simulation), Demand(k), (1, k), True) for k in range(3)]
    expected = [simulation.run(*job) for job in jobs]
    with Workers(simulation, functools.partial(Simulation, task), 2) as workers:
        for episode, own in zip(workers.run(jobs), expected, strict=True):
            same(episode, own)
        os.kill(next(iter(workers._pool._processes)), signal.SIGKILL)
        for episode, own in zip(workers.run(jobs), expected, strict=True):
            same(episode, own)


@pytest.fixture
def loop_and_connection(task):
    """A run of the sample city's first two TLs, 100 s in."""
    street = network.of_city(task.city)
    contracts = [contract.build(task.city, task.city.tls[tl], street) for tl in TARGETS]
    connection = start_libsumo(["-c", str(task.city.network.sumocfg), "--no-step-log", "--no-warnings", "--seed", "3"])

    class Steady:
        def ask(self, observations, observed_s=None):
            return {tl: np.zeros(next(c for c in contracts if c.tl == tl).action.size) for tl in observations}

    loop = assemble(connection, street, contracts, Steady(), task.city.safety, task.city.controller)
    yield loop, connection, street, contracts
    connection.close()


@pytest.mark.parametrize("name", rewards.names())
def test_reward_is_its_formula(name, loop_and_connection):
    loop, connection, street, contracts = loop_and_connection
    measure = rewards.Rewards(name, connection, street, contracts)
    api, lanes = connection.api, {c.tl: [lane for s in c.signals for lane in s.lane_ids] for c in contracts}
    before_tl = lanes_before(street.net_file, lanes)
    waited_s = dict.fromkeys(TARGETS, 0.0)
    seen = set()
    for end_s in range(100, 1600, 60):
        loop.step(end_s)
        connection.read(TARGETS)
        got = dict(zip(TARGETS, measure.since_last(TARGETS), strict=True))
        for c in contracts:
            own, signals = lanes[c.tl], len(c.signal_ids)
            if name == "queue":
                expected = -sum(map(api.lane.getLastStepHaltingNumber, own)) / (40 * signals)
            elif name == "waiting-time":
                now_s = sum(map(api.lane.getWaitingTime, own))
                expected, waited_s[c.tl] = (waited_s[c.tl] - now_s) / 100, now_s
            elif name == "pressure":
                out = {lane for s in c.signal_ids for link in street.signals[s].links for _, lane in link}
                vehicles = api.lane.getLastStepVehicleNumber
                expected = (sum(map(vehicles, out)) - sum(map(vehicles, own))) / (40 * signals)
            else:
                lost = sum(
                    max(0, sum(1 - api.vehicle.getSpeed(v) / limit for v in api.lane.getLastStepVehicleIDs(lane)))
                    for lane, limit in before_tl[c.tl].items()
                )
                lost += sum(f"{api.vehicle.getRoute(v)[0]}_0" in before_tl[c.tl] for v in api.simulation.getPendingVehicles())
                expected = -lost / (20 * signals)
            assert got[c.tl] == pytest.approx(expected, abs=0.02), (name, c.tl, end_s)
            seen.add(round(expected, 3))
    assert len(seen) > 2, "the street was not empty"


def test_every_lane_belongs_to_the_nearest_tl_downstream(grid_street, grid_city):
    lanes = {tl: [lane for s in item.signals for lane in grid_street.signals[s].lanes] for tl, item in grid_city.tls.items()}
    before_tl = lanes_before(grid_street.net_file, lanes)
    assert len({lane for by_lane in before_tl.values() for lane in by_lane}) == sum(map(len, before_tl.values())), "none has two"
    for tl, own in lanes.items():
        assert set(own) <= before_tl[tl].keys()
        assert all(limit == 13.89 for limit in before_tl[tl].values())


def test_demand_varies_within_its_bounds_and_is_repeated_by_its_seed():
    demands = [varied(np.random.default_rng(k), varies=True) for k in range(50)]
    assert all(SCALES[0] <= demand.scale <= SCALES[1] and demand.shift_s == MAX_SHIFT_S for demand in demands)
    assert len({demand.seed for demand in demands}) == 50 and len({demand.scale for demand in demands}) == 50
    assert demands[3] == varied(np.random.default_rng(3), varies=True)
    assert varied(np.random.default_rng(3), varies=False).options == ["--seed", str(varied(np.random.default_rng(3), False).seed)]


def test_scaled_demand_has_more_or_fewer_vehicles(task):
    simulation = Simulation(task)
    arrays = first_arrays(simulation)
    few, many = (simulation.run(arrays, Demand(7, scale, 30.0), (1,), explore=False).trips.total for scale in (0.8, 1.2))
    assert many > 1.2 * few
