"""Episodes in the real SUMO: rewards by their formulas, varied demand, served models of another city, worker
processes."""

import functools
import itertools
import multiprocessing
import os
import signal
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from city import config, network
from city.errors import InputError
from controller.assembly import ControlledTls, assemble
from controller.sumo.libsumo_connection import start_libsumo
from signals import contract
from signals.policy import Answer
from simulation import rewards, target_tls
from simulation.approaches import upstream_lanes
from simulation.demand import Demand
from simulation.executors import SimulatorPerProcess, in_order
from simulation.executors.processes import Processes
from simulation.street_simulation import SimulationFailed, street_with_demand
from simulation.target_tls import TargetSimulation
from tests.conftest import GRID
from training.actor_critics import ActorCritics
from training.episode import EpisodeSimulator, TrainingTask
from training.phase_competition import networks

TARGETS = ("SA101", "SA103")


@pytest.fixture(scope="module")
def task():
    return TrainingTask(config.load(GRID / "city.toml"), TARGETS, seconds=200.0)


def initial_arrays(simulation):
    return [ActorCritics.initial_arrays(layout, np.random.default_rng(1)) for layout in simulation.layouts]


def explored(task, **changes):
    simulation = EpisodeSimulator(replace(task, **changes))
    return simulation.run(initial_arrays(simulation), Demand(7), (1, 1), explore=True)


def same(a, b):
    assert a.trips == b.trips and a.transitions.keys() == b.transitions.keys()
    for tl in a.transitions:
        for name in ("x", "action", "log_p", "value", "reward"):
            np.testing.assert_array_equal(getattr(a.transitions[tl], name), getattr(b.transitions[tl], name))


def test_episode_is_repeated_by_its_seeds(task):
    simulation = EpisodeSimulator(task)
    arrays = initial_arrays(simulation)
    first, again, other = (simulation.run(arrays, Demand(7), (1, k), explore=True) for k in (1, 1, 2))
    same(first, again)
    assert any(
        not np.array_equal(first.transitions[tl].action, other.transitions[tl].action) for tl in first.transitions
    )
    assert first.transitions.keys() == set(TARGETS) and first.trips.total > 0
    assert simulation.run(arrays, Demand(7), (1,), explore=False).transitions == {}


def test_served_model_for_other_settings_than_the_citys_is_refused(task, monkeypatch):
    settings = replace(task.city.tls["SA104"], dialect="street", state=None, action=None)
    other = contract.build(task.city, settings, network.of_city(task.city))
    monkeypatch.setattr(target_tls, "fetch_contracts", lambda *_: {"SA104": other})
    with pytest.raises(InputError, match=r"^SA104: .* but its model was exported for street; export it again"):
        EpisodeSimulator(replace(task, infer_tls=("SA104",), server="127.0.0.1:1"))


def test_reward_of_a_decision_is_that_of_the_time_until_the_next(task, monkeypatch):
    measured = []

    def since_last(self, tls, now):
        measured.append(len(measured))
        return [float(len(measured))] * len(tls)

    monkeypatch.setattr(rewards.Rewards, "since_last", since_last)
    reward = explored(task, target_tls=("SA101",)).transitions["SA101"].reward
    np.testing.assert_array_equal(reward[:-1], np.arange(2, len(reward) + 1))


@pytest.mark.parametrize("reward", rewards.names())
def test_transitions_tell_differences_from_other_rewards(task, reward):
    transitions = explored(task, target_tls=("SA101",), reward=reward, seconds=60.0).transitions["SA101"]
    assert transitions.is_difference is (reward in ("waiting-time", "diff-waiting-time"))


def test_only_tls_that_decide_are_asked(task, monkeypatch):
    """In dialect street, a TL that is changing its green is due every 5 s, and does not decide."""
    city = replace(
        task.city, tls={name: config.TL((signal,), "street", name) for name, signal in (("A", "A0"), ("B", "B0"))}
    )
    simulation = EpisodeSimulator(replace(task, city=city, target_tls=("A", "B")))
    asked: list[int] = []
    due: dict[float, int] = {}
    sample, observe = networks.StreetActorCritic.sample, TargetSimulation.observe
    monkeypatch.setattr(
        networks.StreetActorCritic,
        "sample",
        lambda self, rows, x, rng: asked.append(len(rows)) or sample(self, rows, x, rng),
    )

    def observed(self):
        found = observe(self)
        due[self.now] = len(found)
        return found

    monkeypatch.setattr(TargetSimulation, "observe", observed)
    arrays = [networks.initial_arrays(np.random.default_rng(1))]
    transitions = simulation.run(arrays, Demand(7), (1, 1), explore=True).transitions
    assert sum(asked) == sum(len(tl.x) for tl in transitions.values()) > 0 and 0 not in asked
    assert sum(asked) < sum(due.values())


def of_time(*_):
    """A reward of which every sample is the second of the sample."""
    return lambda connection: lambda tls: dict.fromkeys(tls, connection.api.simulation.getTime())


def mean_of_samples(begin_s, end_s):
    """The mean of `of_time` between two decisions, sampled at the multiples of 5 s and at the later decision."""
    times = [begin_s, *range(begin_s - begin_s % 5 + 5, end_s, 5), end_s]
    return sum((b - a) * b for a, b in itertools.pairwise(times)) / (end_s - begin_s)


@pytest.mark.parametrize(
    ("tl", "settings", "interval_s"),
    [
        *(("SA101", {"delta_time_s": s}, s) for s in (2, 3, 4, 5, 7, 10)),
        ("SA103", {"action_t_s": 1}, 4),
        ("SA108", {"action_t_s": 1}, 4),
    ],
)
def test_decision_at_any_interval_has_the_reward_of_its_own_time(task, monkeypatch, tl, settings, interval_s):
    city = replace(task.city, tls={**task.city.tls, tl: replace(task.city.tls[tl], **settings)})

    def reward(name):
        own = explored(task, city=city, target_tls=(tl, "SA102"), seconds=30.0, reward=name).transitions[tl]
        return own.reward[:-1]

    monkeypatch.setattr(rewards, "_lost_time_measures", of_time)
    monkeypatch.setitem(rewards._FUNCTIONS, "waiting-time", lambda tl: tl.now_s)
    decisions_s = range(0, 30, interval_s)
    expected = [mean_of_samples(*pair) for pair in itertools.pairwise(decisions_s)]
    np.testing.assert_allclose(reward("delay"), expected, rtol=1e-6)
    np.testing.assert_array_equal(reward("waiting-time"), [interval_s] * (len(decisions_s) - 1))


@pytest.mark.parametrize(
    ("depart_s", "error", "message"),
    [(0, InputError, "SUMO did not start: The edge 'nowhere'"), (1000, SimulationFailed, "The edge 'nowhere'")],
    ids=["at its start", "later"],
)
def test_sumo_that_fails_is_an_error(task, tmp_path, monkeypatch, depart_s, error, message):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "late.rou.xml").write_text(
        # SUMO reads vehicles 200 s ahead, and one more
        '<routes><vehicle id="a" depart="0"><route edges="A1B1"/></vehicle>'
        f'<vehicle id="b" depart="{depart_s}"><route edges="A1B1"/></vehicle>'
        f'<vehicle id="x" depart="{depart_s}"><route edges="nowhere"/></vehicle></routes>'
    )
    (tmp_path / "a.sumocfg").write_text(
        f'<configuration><input><net-file value="{GRID / "grid.net.xml"}"/>'
        '<route-files value="late.rou.xml"/></input></configuration>'
    )
    city = replace(task.city, network=config.Network(tmp_path / "a.sumocfg"))
    with pytest.raises(error, match=message):
        explored(task, city=city, seconds=1200.0)
    assert not list(tmp_path.glob("greenserve-*")), "no temporary file is left behind"


@pytest.mark.slow
def test_workers_give_the_same_episodes_and_replace_one_that_dies(task):
    simulation = EpisodeSimulator(task)
    jobs = [(initial_arrays(simulation), Demand(k), (1, k), True) for k in range(3)]
    expected = [simulation.run(*job) for job in jobs]
    simulate = SimulatorPerProcess(functools.partial(EpisodeSimulator, task), simulation)
    with Processes(2) as processes:
        for episode, own in zip(in_order(processes.run(simulate, jobs)), expected, strict=True):
            same(episode, own)
        (worker, *_) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGKILL)
        for episode, own in zip(in_order(processes.run(simulate, jobs)), expected, strict=True):
            same(episode, own)


@pytest.fixture
def loop_and_connection(task):
    """A run of the sample city's first two TLs, 100 s in."""
    street = network.of_city(task.city)
    contracts = [contract.build(task.city, task.city.tls[tl], street) for tl in TARGETS]
    connection = start_libsumo(["-c", str(task.city.network.sumocfg), "--no-step-log", "--no-warnings", "--seed", "3"])

    class Steady:
        def ask(self, observations, observed_s=None):
            return {tl: Answer(np.zeros(next(c for c in contracts if c.tl == tl).action.size)) for tl in observations}

    loop = assemble(connection, ControlledTls(street, contracts, task.city.safety, task.city.controller), Steady())
    yield loop, connection, street, contracts
    connection.close()


@pytest.mark.parametrize("name", ("delay", "delay-downstream", "mean-queue", "mean-pressure", "waiting-time"))
def test_reward_is_its_formula(name, loop_and_connection):
    loop, connection, street, contracts = loop_and_connection
    measure = rewards.Rewards(rewards.RewardedTls(name, street, contracts), connection, loop.now)
    api, lanes = connection.api, {c.tl: [lane for s in c.signals for lane in s.lane_ids] for c in contracts}
    upstream = upstream_lanes(street, {c.tl: c.signal_ids for c in contracts})
    waited_s, sums, seen = dict.fromkeys(TARGETS, 0.0), dict.fromkeys(TARGETS, 0.0), set()
    for k in range(1, 31):
        loop.step(50.0 * k)
        measure.sample(loop.now)
        now_s = {}
        for c in contracts:
            own, signals = lanes[c.tl], len(c.signal_ids)
            if name == "mean-queue":
                sums[c.tl] -= sum(map(api.lane.getLastStepHaltingNumber, own)) / (40 * signals)
            elif name == "waiting-time":
                now_s[c.tl] = sum(map(api.lane.getWaitingTime, own))
            elif name == "mean-pressure":
                out = {lane for s in c.signal_ids for link in street.signals[s].links for _, lane in link}
                vehicles = api.lane.getLastStepVehicleNumber
                sums[c.tl] += (sum(map(vehicles, out)) - sum(map(vehicles, own))) / (40 * signals)
            else:
                lost = sum(
                    max(0, sum(1 - api.vehicle.getSpeed(v) / limit for v in api.lane.getLastStepVehicleIDs(lane)))
                    for lane, limit in upstream[c.tl].items()
                )
                lost += sum(
                    f"{api.vehicle.getRoute(v)[0]}_0" in upstream[c.tl] for v in api.simulation.getPendingVehicles()
                )
                sums[c.tl] -= lost / (20 * signals)
        if k % 3:
            continue  # three samples a decision
        for tl, reward in zip(TARGETS, measure.since_last(TARGETS, loop.now), strict=True):
            expected = (waited_s[tl] - now_s[tl]) / 100 if name == "waiting-time" else sums[tl] / 3
            assert reward == pytest.approx(expected, abs=1e-3), (name, tl, k)
            seen.add(round(expected, 3))
        waited_s, sums = {**waited_s, **now_s}, dict.fromkeys(TARGETS, 0.0)
    assert len(seen) > 2, "the street was not empty"


def test_lane_belongs_to_the_nearest_signal_downstream(grid_street, grid_city):
    everyone = upstream_lanes(grid_street, {tl: item.signals for tl, item in grid_city.tls.items()})
    assert len({lane for lanes in everyone.values() for lane in lanes}) == sum(map(len, everyone.values())), (
        "none has two"
    )
    for tl, item in grid_city.tls.items():
        assert {lane for signal in item.signals for lane in grid_street.signals[signal].lanes} <= everyone[tl].keys()
        assert all(limit == 13.89 for limit in everyone[tl].values())
    alone = upstream_lanes(grid_street, {"SA105": grid_city.tls["SA105"].signals})
    assert alone == {"SA105": everyone["SA105"]}, "lanes before other signals are not this TL's"


def test_sharp_actors_take_their_best_action(task):
    simulation = EpisodeSimulator(replace(task, target_tls=("SA101",)))
    arrays = initial_arrays(simulation)
    arrays[0][4] = 30 * arrays[0][4]  # the actor's last kernel: its first logits are all near 0
    (layout,) = simulation.layouts
    for sharpness, is_greedy in ((1000.0, True), (1.0, False)):
        episode = simulation.run(arrays, Demand(7), (1, 1), explore=True, sharpness=sharpness).transitions["SA101"]
        greedy = ActorCritics(layout, arrays[0]).greedy_actions(np.zeros(len(episode.x), int), episode.x)
        assert np.array_equal(episode.action, greedy) is is_greedy


def test_begin_after_the_end_is_an_error_of_the_input(task):
    city = replace(task.city, network=replace(task.city.network, begin_s=1e6))
    with pytest.raises(InputError, match=r"grid\.sumocfg: ends at second \d+, not after its begin at 1e\+06"):
        street_with_demand(city, ["SA101"], None)
