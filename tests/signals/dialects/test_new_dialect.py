"""A dialect is added by one file in signals/dialects."""

import sys
from pathlib import Path

import numpy as np
import pytest

from city import config, network
from city.config import Controller, Safety
from city.errors import InputError
from controller.sumo.network import check_contract_matches_network
from signals import dialects
from signals.contract import build as contract_of
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.intersection import Intersection
from signals.observation import Readings, shares_of
from signals.policy import Answer
from signals.safety.safety_times import times_for
from signals.safety.signal_safety import SignalSafety
from tests.conftest import GRID
from tests.signals.dialects import toy_counts

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
    (tmp_path / "dialects" / "toy_counts.py").write_text(Path(toy_counts.__file__).read_text())
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path / "dialects")])
    yield
    sys.modules.pop("signals.dialects.toy_counts", None)
    vars(dialects).pop("toy_counts", None)


def test_unknown_dialect_is_refused_with_the_known_ones(load_city):
    known = ", ".join(dialects.included_names())
    with pytest.raises(InputError, match=rf"\[tl.SA101\] dialect 'toy-counts' is not one of {known}"):
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
    contract = contract_of(city, city.tls["SA101"], street)
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
        if x.state.next_decision_s <= now:
            assert x.apply_answer(Answer(np.array([phases.index(first if now < 14 else second)])), now) == ""
        shown += [(now, command.state) for command in x.commands(now)[0]]
    assert x.state.next_decision_s == 35
    assert shown[0] == (0, first) and shown[-1] == (17, second), "the safety rules add yellow"
