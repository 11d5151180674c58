"""Faults of detectors, on a running simulation of the sample city."""

import contextlib
import copy
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

from city import network
from controller.assembly import ControlledTls, assemble
from controller.sumo.connection import LanesToRead
from controller.sumo.libsumo_connection import start_libsumo
from evaluation import detector_faults, policy_models
from evaluation.arms import parse, with_faults
from evaluation.detector_faults import FaultRates, FaultyDetectors
from evaluation.simulation import ArmSimulator, EvaluationTask
from export import pretrained
from pretraining.street_results import JunctionPolicies
from signals import contract
from simulation.demand import Demand
from tests.conftest import GRID
from tests.controller.decision_events import Alarms

SIGNALS = ("A0", "B1", "C2")


@contextlib.contextmanager
def street():
    """A running simulation of the sample city, and the lanes of SIGNALS."""
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
    with contextlib.closing(connection):
        lanes_of = connection.api.trafficlight.getControlledLanes
        yield connection, {signal: list(dict.fromkeys(lanes_of(signal))) for signal in SIGNALS}


@functools.cache
def read(rates, seed=1, due_of=lambda k: SIGNALS):
    """(due lanes' rows, true readings, faulty readings) of each step of 10 s. `due_of`: step -> signals that are due."""
    result = []
    with street() as (connection, lanes):
        faulty = FaultyDetectors(connection, rates, seed, 0.0, 400.0)
        faulty.track(LanesToRead(lanes, list(itertools.chain(*lanes.values())), lanes), dict.fromkeys(SIGNALS, 1))
        for k in range(1, 41):
            faulty.advance(10.0 * k)
            faulty.read(due_of(k))
            rows = [connection.lanes.index(lane) for signal in due_of(k) for lane in lanes[signal]]
            result.append((rows, *copy.deepcopy((connection.readings, faulty.readings))))
    return result


def in_turn(k):
    return (SIGNALS[k % len(SIGNALS)],)


def arrays(steps, name):
    """A value of the true and the faulty readings, [steps, ...]."""
    return [np.array([getattr(readings, name) for readings in column]) for column in list(zip(*steps, strict=True))[1:]]


def test_missing_lanes_never_see_a_vehicle():
    steps = read(FaultRates(missing=0.5))
    (true, faulty), (outflow, own_outflow) = arrays(steps, "counts"), arrays(steps, "outflow")
    is_missing = (faulty != true).any((0, 1))
    assert 0.2 < is_missing.mean() < 0.8
    assert (faulty[:, :, is_missing] == 0).all() and (own_outflow[:, is_missing] == 0).all()
    assert (own_outflow[:, ~is_missing & (outflow[-1] > 0)] == outflow[:, ~is_missing & (outflow[-1] > 0)]).all()
    _, last, own = steps[-1]
    counts = np.bincount(own.by_vehicle.row, minlength=len(own.vehicles))
    assert (counts == own.vehicles).all() and 0 < counts.sum() < last.vehicles.sum(), "single vehicles, too"
    again, other = (arrays(read(FaultRates(missing=0.5), seed), "counts")[1] for seed in (1, 2))
    assert (faulty == again).all() and (faulty != other).any(), "the seed draws them"


def positions(readings, row):
    vehicles = readings.by_vehicle
    return sorted(vehicles.position_m[vehicles.row == row].tolist())


def test_stuck_lanes_keep_their_last_vehicles():
    held, differing = {}, 0
    for rows, true, own in read(FaultRates(stuck=1.0), due_of=in_turn):
        assert set(own.by_vehicle.row.tolist()) <= set(rows), "of lanes that are due only"
        for row in rows:
            if row in held:
                assert positions(own, row) == held[row], "it never recovers"
                differing += positions(true, row) != held[row]
            elif positions(own, row) != positions(true, row):
                held[row] = positions(own, row)
                differing += 1
    assert differing > 5 and any(held.values())


def test_noisy_lanes_miss_vehicles_or_see_them_twice():
    missed = doubled = total = seen = 0
    for rows, true, own in read(FaultRates(noisy=1.0), due_of=in_turn):
        for row in rows:
            before, after = positions(true, row), positions(own, row)
            assert set(after) <= set(before), "no vehicle is invented"
            total, seen = total + len(before), seen + len(after)
            missed += len(after) < len(before)
            doubled += len(after) > len(before)
    assert missed > 5 and doubled > 5 and abs(seen / total - 1) < 0.15


def test_stuck_lanes_keep_their_last_counts():
    true, faulty = arrays(read(FaultRates(stuck=1.0), due_of=in_turn), "counts")
    same = (true == faulty).all(1)
    for lane in range(same.shape[1]):
        held = np.flatnonzero(~same[:, lane])
        if len(held):
            assert (faulty[held[0] :, :, lane] == faulty[held[0], :, lane]).all(), "it never recovers"
    assert (~same[-1]).sum() > same.shape[1] / 3


def test_noisy_counts_are_right_on_average():
    true, faulty = arrays(read(FaultRates(noisy=1.0), due_of=in_turn), "counts")
    vehicles = true[:, 0] >= 3
    ratio = faulty[:, 0][vehicles] / true[:, 0][vehicles]
    assert abs(ratio.mean() - 1) < 0.15 and 0.15 < ratio.std() < 0.5 and (faulty >= 0).all()


def test_lane_has_the_same_fault_whatever_other_lanes_are_read():
    second, found = 0.0, []
    with street() as (connection, lanes):
        for signals in (SIGNALS, SIGNALS[1:], SIGNALS):
            faulty = FaultyDetectors(connection, FaultRates(missing=0.5), 1, 0.0, 100.0)
            faulty.track(LanesToRead({signal: lanes[signal] for signal in signals}), dict.fromkeys(signals, 1))
            seen = np.zeros((2, len(connection.lanes)), bool)  # of the connection, and through its faults
            for _ in range(30):
                second += 10.0
                faulty.advance(second)
                faulty.read(signals)
                seen |= [connection.readings.counts[0] > 0, faulty.readings.counts[0] > 0]
            found.append({lane: bool(own) for lane, true, own in zip(connection.lanes, *seen, strict=True) if true})
    few, many = found[1], {**found[0], **found[2]}
    common = {lane: own for lane, own in few.items() if lane in many}
    assert common.items() <= many.items() and len(common) > 3 and set(common.values()) == {True, False}


def test_arms_with_faults_are_those_that_the_controller_runs():
    names = [arm.name for arm in with_faults(parse("served:3,fixed,actuated,max-pressure,greedy"))]
    assert names[5:] == ["served:3+faults", "max-pressure+faults", "greedy+faults"]


def test_max_pressure_without_detectors_loses(grid_city):
    faults = detector_faults.parse("missing=1")
    simulator = ArmSimulator(EvaluationTask(grid_city, tuple(grid_city.tls), 400.0, faults=faults))
    arm, blind = with_faults(parse("max-pressure"))
    assert simulator.run(blind, Demand(1)).delay_s > 1.2 * simulator.run(arm, Demand(1)).delay_s


@pytest.mark.parametrize("fault", ["missing", "stuck"])
def test_blind_lanes_are_served_by_the_longest_red(fault, grid_city):
    """Whatever a policy for any junction sees, no link is red for longer than max_red_s and the time to serve it."""
    city = policy_models.with_street_dialect(grid_city)
    city = replace(city, safety=replace(city.safety, max_red_s=60.0))
    network_of_city = network.of_city(city)
    contracts = [contract.build(city, tl, network_of_city) for tl in city.tls.values()]
    policies, alarms = JunctionPolicies(contracts, pretrained.policy()), Alarms()
    longest_s, red_s = 0.0, {signal: np.zeros(len(own.links)) for signal, own in network_of_city.signals.items()}
    with street() as (connection, _):
        faulty = FaultyDetectors(connection, FaultRates(**{fault: 1.0}), 1, 0.0, 60.0)
        tls = ControlledTls(network_of_city, contracts, city.safety, city.controller)
        loop = assemble(faulty, tls, policies, [alarms])
        while loop.now < 600.0:
            loop.step(loop.now + 1.0)
            for signal in red_s:
                state = connection.api.trafficlight.getRedYellowGreenState(signal)
                red_s[signal] = np.where([colour in "Gg" for colour in state], 0.0, red_s[signal] + 1.0)
                longest_s = max(longest_s, red_s[signal].max())
    assert alarms == [] and 60.0 <= longest_s <= 120.0
