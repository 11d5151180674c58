"""A dialect is added by one file in signals/dialects."""

import sys

import numpy as np
import pytest

from city import config, network
from city.config import Controller, Safety
from city.errors import InputError
from controller.sumo.network import check_contract_matches_network
from signals import dialects
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.intersection import Intersection
from signals.observation import Readings, shares_of
from signals.safety.safety_times import times_for
from signals.safety.signal_safety import SignalSafety
from tests.conftest import GRID

SOURCE = '''
"""Vehicles per lane; the action is the index of a phase, shown at once."""

import math

import numpy as np

from city.errors import InputError
from signals.dialects import signal_messages
from signals.observation import PhaseState
from protos import policy_pb2 as pb
from serving.contract import ContractError


class Toy:
    name = "toy-counts"
    action_kinds = ("categorical",)
    file_name_settings = ()

    def check_settings(self, tl):
        if tl.state:
            raise InputError("state is not a setting of toy-counts")

    def action_kind(self, tl):
        return "categorical"

    def build_contract(self, tl, signals, safety):
        messages = signal_messages([(network, network.plan.id) for network in signals])
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

    def runs_plan(self, contract):
        return False

    def counts_outflow(self, contract):
        return False

    def observer(self, contract, lane_row, length_m):
        return ToyObserver([lane_row[lane] for lane in contract.signals[0].lane_ids])

    def sequencer(self, contract):
        return ToySequencer([phase.state for phase in contract.signals[0].phases])


class ToyObserver:
    def __init__(self, rows):
        self._rows, self.size = rows, len(rows)

    def observe(self, readings, shares, phase_state):
        return readings.vehicles[self._rows].astype(np.float32)

    def decided(self):
        pass


class ToySequencer:
    def __init__(self, states):
        self._states, self._phase = states, 0

    def enter(self, now, shown, start=False):
        self._phase = 0

    def apply_action(self, now, action):
        self._phase = int(action[0])

    def requested_states(self, now):
        return (self._states[self._phase],)

    def note_shown(self, now, signal):
        pass

    def phase_state(self, now):
        return PhaseState((self._phase,), True)

    def next_change_s(self, now):
        return math.inf

    def next_decision_s(self, now):
        return now + 7

    def decides_at(self, now):
        return True


DIALECT = Toy()
'''
CITY = """
[network]
sumocfg = "{sumocfg}"
[tl.SA101]
signals = ["A0"]
dialect = "toy-counts"
{settings}
"""


@pytest.fixture
def load_city(tmp_path):
    def load(settings=""):
        (tmp_path / "city.toml").write_text(CITY.format(sumocfg=GRID / "grid.sumocfg", settings=settings))
        return config.load(tmp_path / "city.toml")

    return load


@pytest.fixture
def toy_dialect(tmp_path, monkeypatch):
    (tmp_path / "dialects").mkdir()
    (tmp_path / "dialects" / "toy_counts.py").write_text(SOURCE)
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path / "dialects")])
    yield
    sys.modules.pop("signals.dialects.toy_counts", None)
    vars(dialects).pop("toy_counts", None)


def test_unknown_dialect_is_refused_with_the_known_ones(load_city):
    with pytest.raises(InputError, match=r"\[tl.SA101\] dialect 'toy-counts' is not one of sappo, sumo-rl"):
        dialects.check_city_settings(load_city())


@pytest.mark.usefixtures("toy_dialect")
def test_settings_are_checked_by_the_new_dialect(load_city):
    dialects.check_city_settings(load_city())
    with pytest.raises(InputError, match=r"city.toml: \[tl.SA101\] state is not a setting of toy-counts"):
        dialects.check_city_settings(load_city('state = "d"'))


@pytest.mark.usefixtures("toy_dialect")
def test_intersection_decides_with_the_new_dialect(load_city):
    city = load_city()
    street = network.of_city(city)
    signal = street.signals["A0"]
    assert "toy-counts" in dialects.names()
    contract = dialects.find("toy-counts", "").build_contract(city.tls["SA101"], [signal], city.safety)
    check_contract_matches_network(contract, street)
    dialect = dialects.of(contract)
    times = times_for(contract, Safety(min_yellow_s=3, min_green_s=4), dialect.runs_plan(contract))
    lane_row = {lane: i for i, lane in enumerate(reversed(signal.lanes))}
    length_m = np.full(len(lane_row), 100.0)
    x = Intersection(
        contract,
        dialect.observer(contract, lane_row, length_m),
        dialect.sequencer(contract),
        [SignalSafety(signal, times)],
        [FallbackSchedule(FallbackPlan(signal.plan, False))],
        Controller(),
    )
    phases = [phase.state for phase in signal.plan.phases]
    first, second = (phases[k] for k in signal.plan.greens[:2])
    x.start(0, [first])
    vehicles = np.arange(len(lane_row), dtype=float)
    readings = Readings(np.array([vehicles, vehicles]), vehicles, vehicles)
    assert x.observe(readings, shares_of(readings, length_m), 0).tolist() == vehicles[::-1].tolist()
    shown = []
    for now in range(30):
        if x.next_decision_s <= now:
            assert x.apply_answer(np.array([phases.index(first if now < 14 else second)]), now) == ""
        shown += [(now, command.state) for command in x.commands(now)[0]]
    assert x.next_decision_s == 35
    assert shown[0] == (0, first) and shown[-1] == (19, second), "the safety rules add yellow and red"
