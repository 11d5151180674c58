"""A run of the sample city in the real SUMO: what it begins with, and its decision events."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from city import config
from controller.assembly import checked_start, loop_from
from controller.events import DecisionEvent
from controller.recording.messages import snapshot
from controller.recording.run_start import RunStart
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from serving.contract import CATEGORICAL
from signals import contract
from signals.policy import Answer
from tests.conftest import GRID


class ControlledRun(NamedTuple):
    run: RunStart
    events: list[DecisionEvent]

    def paced(self, interval_s: float, begin_s: float = 1000.0) -> list[DecisionEvent]:
        """The events with readings that arrived every interval_s of wall time."""
        return [replace(event, monotonic_s=begin_s + k * interval_s) for k, event in enumerate(self.events)]


class Snapshots:
    """Keeps the events of a run."""

    def __init__(self):
        self.events = []

    def add(self, event):
        # only the loop of now can give the state of now
        state = event.save_state() if event.save_state is not None else None
        self.events.append(replace(snapshot(event), save_state=None if state is None else lambda: state))

    def close(self):
        pass


class RandomActions:
    """Valid actions of any contract, with scores for choices."""

    def __init__(self, contracts):
        self._contracts = {each.tl: each for each in contracts}
        self._rng = np.random.default_rng(1)

    def ask(self, observations, observed_s=None):
        return {tl: self._answer(self._contracts[tl]) for tl in observations}

    def _answer(self, contract):
        if contract.action.kind != CATEGORICAL:
            return Answer(self._rng.uniform(-1, 1, contract.action.size), 4, contract.tl)
        scores = self._rng.dirichlet(np.ones(contract.action.size)).astype(np.float32)
        return Answer(np.array([scores.argmax()]), 4, contract.tl, scores)


def control(city: config.City, street, seconds: float, *subscribers) -> RunStart:
    """Control the sample city with random actions."""
    contracts = tuple(contract.build(city, settings, street) for settings in city.tls.values())
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "1", "--no-step-log", "true"]
    connection = connect(SumoAccess(arguments=options), Interrupts())
    try:
        run = RunStart(street, contracts, checked_start(connection, street, contracts), city.safety, city.controller)
        made = [subscriber(run) for subscriber in subscribers]
        policies = RandomActions(contracts)
        loop = loop_from(run.start, connection, street, contracts, policies, city.safety, city.controller, made, None)
        while loop.now < seconds:
            loop.step(seconds)
        loop.finish()
        loop.close()
    finally:
        connection.close()
    return run


def controlled_run(city: config.City, street, seconds: float) -> ControlledRun:
    snapshots = Snapshots()
    return ControlledRun(control(city, street, seconds, lambda run: snapshots), snapshots.events)
