"""Vehicles per lane; the action is the index of a phase, shown at once."""

import math

import numpy as np

from city.errors import InputError
from protos import policy_pb2 as pb
from serving.contract import ContractError
from signals.dialects import Dialect
from signals.observation import Observer, PhaseSequencer, PhaseState
from signals.policy_signals import signal_messages


class Toy(Dialect):
    name = "toy-counts"
    action_kinds = ("categorical",)
    file_name_settings = ()
    takes_first_program = False

    def check_settings(self, tl):
        if tl.state:
            raise InputError("state is not a setting of toy-counts")

    def action_kind(self, tl):
        return "categorical"

    def build_contract(self, tl, signals, safety):
        messages = signal_messages(signals)
        lanes = [pb.Feature(kind="vehicles", signal_id=m.id, lane_id=lane) for m in messages for lane in m.lane_ids]
        return pb.PolicyContract(
            tl=tl.name,
            signal_ids=[m.id for m in messages],
            signals=messages,
            observation=pb.Observation(dialect=self.name, size=len(lanes), features=lanes),
            action=pb.Action(kind="categorical", size=len(messages[0].phases)),
            timing=pb.Timing(decision_interval_s=7),
        )

    def check_contract(self, contract):
        if contract.action.size != len(contract.signals[0].phases):
            raise ContractError("toy-counts: wrong action size")

    def observer(self, contract, lane_row, length_m):
        return ToyObserver([lane_row[lane] for lane in contract.signals[0].lane_ids])

    def sequencer(self, contract):
        return ToySequencer([phase.state for phase in contract.signals[0].phases])


class ToyObserver(Observer):
    def __init__(self, rows):
        self._rows, self.size = rows, len(rows)

    def observe(self, readings, shares, phase_state):
        return readings.vehicles[self._rows].astype(np.float32)


class ToySequencer(PhaseSequencer):
    def __init__(self, states):
        self._states, self._phase = states, 0

    def enter(self, now, shown, start=False):
        self._phase = 0

    def apply_action(self, now, action):
        self._phase = int(action[0])

    def requested_states(self, now):
        return (self._states[self._phase],)

    def phase_state(self, now):
        return PhaseState((self._phase,), True)

    def next_change_s(self, now):
        return math.inf

    def next_decision_s(self, now):
        return now + 7


DIALECT = Toy()


class Unfinished(Dialect):
    """A dialect without the methods that each has of its own."""
