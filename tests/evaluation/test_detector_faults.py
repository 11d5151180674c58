"""Faults of detectors, on a running simulation of the sample city."""

from dataclasses import replace

import numpy as np
import pytest

from city import config, network
from controller.assembly import ControlledTls, assemble
from controller.sumo.libsumo_connection import start_libsumo
from evaluation import detector_faults, policy_models
from evaluation.arms import parse, with_faults
from evaluation.detector_faults import FaultRates, FaultyDetectors
from evaluation.simulation import ArmSimulator, EvaluationTask
from export import pretrained
from pretraining.junction_policies import JunctionPolicies
from signals import contract
from simulation.demand import Demand
from tests.conftest import GRID
from tests.controller.decision_events import Alarms

SIGNALS = ("A0", "B1", "C2")


@pytest.fixture
def read():
    """A function: (true counts, counts with faults, true and faulty outflow) of every lane in each step of 10 s."""
    made = []

    def run(rates, seed=1, steps=40):
        connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
        made.append(connection)
        api = connection.api
        lanes = {signal: list(dict.fromkeys(api.trafficlight.getControlledLanes(signal))) for signal in SIGNALS}
        faulty = FaultyDetectors(connection, rates, seed, 0.0, 10.0 * steps)
        everything = [lane for own in lanes.values() for lane in own]
        faulty.track(lanes, everything, dict.fromkeys(SIGNALS, 1))
        result = []
        for k in range(1, steps + 1):
            faulty.advance(10.0 * k)
            faulty.read(tuple(lanes))
            true, own = connection.readings, faulty.readings
            result.append((true.counts.copy(), own.counts.copy(), true.outflow.copy(), own.outflow.copy()))
        connection.close()
        return [np.array(column) for column in zip(*result, strict=True)]

    return run


def test_missing_lanes_never_see_a_vehicle(read):
    true, faulty, outflow, own_outflow = read(FaultRates(missing=0.5))
    is_missing = (faulty != true).any((0, 1))
    assert (
        0.2 < is_missing.mean() < 0.8
        and (faulty[:, :, is_missing] == 0).all()
        and (own_outflow[:, is_missing] == 0).all()
    )
    assert (own_outflow[:, ~is_missing & (outflow[-1] > 0)] == outflow[:, ~is_missing & (outflow[-1] > 0)]).all()


def test_missing_lanes_have_no_single_vehicles():
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
    lanes = {signal: list(dict.fromkeys(connection.api.trafficlight.getControlledLanes(signal))) for signal in SIGNALS}
    faulty = FaultyDetectors(connection, FaultRates(missing=0.5), 1, 0.0, 100.0)
    faulty.track(lanes, [], {}, lanes)
    faulty.advance(100.0)
    faulty.read(SIGNALS)
    counts = np.bincount(faulty.readings.by_vehicle.row, minlength=len(connection.lanes))
    true = connection.readings.vehicles
    connection.close()
    assert (counts == faulty.readings.vehicles).all() and 0 < counts.sum() < true.sum()


def vehicles_of(rates, steps=40):
    """The true and the faulty single vehicles of each step of 10 s, every signal due in turn."""
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
    lanes = {signal: list(dict.fromkeys(connection.api.trafficlight.getControlledLanes(signal))) for signal in SIGNALS}
    faulty = FaultyDetectors(connection, rates, 1, 0.0, 10.0 * steps)
    faulty.track(lanes, [], {}, lanes)
    row_of = {lane: row for row, lane in enumerate(connection.lanes)}
    result = []
    for k in range(1, steps + 1):
        signal = SIGNALS[k % len(SIGNALS)]
        faulty.advance(10.0 * k)
        faulty.read((signal,))
        result.append(
            ([row_of[lane] for lane in lanes[signal]], connection.readings.by_vehicle, faulty.readings.by_vehicle)
        )
    connection.close()
    return result


def positions(vehicles, row):
    return sorted(vehicles.position_m[vehicles.row == row].tolist())


def test_stuck_lanes_keep_their_last_vehicles():
    held, differing = {}, 0
    for rows, true, own in vehicles_of(FaultRates(stuck=1.0)):
        assert set(own.row.tolist()) <= set(rows), "of lanes that are due only"
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
    for rows, true, own in vehicles_of(FaultRates(noisy=1.0)):
        for row in rows:
            before, after = positions(true, row), positions(own, row)
            assert set(after) <= set(before), "no vehicle is invented"
            total, seen = total + len(before), seen + len(after)
            missed += len(after) < len(before)
            doubled += len(after) > len(before)
    assert missed > 5 and doubled > 5 and abs(seen / total - 1) < 0.15


def test_stuck_lanes_keep_their_last_counts(read):
    true, faulty, _, _ = read(FaultRates(stuck=1.0))
    same = (true == faulty).all(1)
    for lane in range(same.shape[1]):
        held = np.flatnonzero(~same[:, lane])
        if len(held):
            assert (faulty[held[0] :, :, lane] == faulty[held[0], :, lane]).all(), "it never recovers"
    assert (~same[-1]).sum() > same.shape[1] / 3


def test_noisy_counts_are_right_on_average(read):
    true, faulty, _, _ = read(FaultRates(noisy=1.0))
    vehicles = true[:, 0] >= 3
    ratio = faulty[:, 0][vehicles] / true[:, 0][vehicles]
    assert abs(ratio.mean() - 1) < 0.15 and 0.15 < ratio.std() < 0.5 and (faulty >= 0).all()


def test_faults_are_drawn_by_the_seed(read):
    first, again, other = (read(FaultRates(missing=0.5), seed)[1] for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_lane_has_the_same_fault_whatever_other_lanes_are_read():
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
    lanes = {signal: list(dict.fromkeys(connection.api.trafficlight.getControlledLanes(signal))) for signal in SIGNALS}
    second, read = 0.0, []
    for signals in (SIGNALS, SIGNALS[1:], SIGNALS):
        faulty = FaultyDetectors(connection, FaultRates(missing=0.5), 1, 0.0, 100.0)
        faulty.track({signal: lanes[signal] for signal in signals}, [], dict.fromkeys(signals, 1))
        seen = np.zeros((2, len(connection.lanes)), bool)  # of the connection, and through its faults
        for _ in range(30):
            second += 10.0
            faulty.advance(second)
            faulty.read(signals)
            seen |= [connection.readings.counts[0] > 0, faulty.readings.counts[0] > 0]
        read.append({lane: bool(own) for lane, true, own in zip(connection.lanes, *seen, strict=True) if true})
    connection.close()
    few, many = read[1], {**read[0], **read[2]}
    common = {lane: own for lane, own in few.items() if lane in many}
    assert common.items() <= many.items() and len(common) > 3 and set(common.values()) == {True, False}


def test_arms_with_faults_are_those_that_the_controller_runs():
    names = [arm.name for arm in with_faults(parse("served:3,fixed,actuated,max-pressure,greedy"))]
    assert names[5:] == ["served:3+faults", "max-pressure+faults", "greedy+faults"]


def test_max_pressure_without_detectors_loses():
    city = config.load(GRID / "city.toml")
    simulator = ArmSimulator(EvaluationTask(city, tuple(city.tls), 600.0, faults=detector_faults.parse("missing=1")))
    arm, blind = with_faults(parse("max-pressure"))
    assert simulator.run(blind, Demand(1)).delay_s > 1.2 * simulator.run(arm, Demand(1)).delay_s


@pytest.mark.parametrize("fault", ["missing", "stuck"])
def test_blind_lanes_are_served_by_the_longest_red(fault):
    """Whatever a policy for any junction sees, no link is red for longer than max_red_s and the time to serve it."""
    city = policy_models.with_street_dialect(config.load(GRID / "city.toml"))
    city = replace(city, safety=replace(city.safety, max_red_s=60.0))
    street = network.of_city(city)
    contracts = [contract.build(city, tl, street) for tl in city.tls.values()]
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "--no-warnings", "--seed", "3"])
    faulty = FaultyDetectors(connection, FaultRates(**{fault: 1.0}), 1, 0.0, 60.0)
    policies, alarms = JunctionPolicies(contracts, pretrained.policy()), Alarms()
    loop = assemble(faulty, ControlledTls(street, contracts, city.safety, city.controller), policies, [alarms])
    reds_s = {signal: [0.0] * len(own.links) for signal, own in street.signals.items()}
    longest_s = 0.0
    while loop.now < 600.0:
        loop.step(loop.now + 1.0)
        for signal, red_s in reds_s.items():
            state = connection.api.trafficlight.getRedYellowGreenState(signal)
            for link, colour in enumerate(state):
                red_s[link] = 0.0 if colour in "Gg" else red_s[link] + 1.0
        longest_s = max(longest_s, *(s for own in reds_s.values() for s in own))
    connection.close()
    assert alarms == [] and 60.0 <= longest_s <= 120.0
