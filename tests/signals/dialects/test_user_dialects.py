"""Dialects beyond the included ones: a further file, a class that city.toml names, an installed distribution's."""

import sys
from pathlib import Path

import numpy as np
import pytest

from city import config
from city.config import Controller, Safety
from city.errors import InputError
from controller.sumo.network import check_contract_matches_network, check_contracts_match_city
from signals import contract, dialects
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.intersection import Intersection
from signals.observation import Readings, shares_of
from signals.policy import Answer
from signals.safety.safety_times import times_for
from signals.safety.signal_safety import SignalSafety
from tests.conftest import GRID, ROOT
from tests.signals.dialects import toy_counts
from tests.signals.single_signal import play

TOY = "tests.signals.dialects.toy_counts:Toy"
MARKS_ITS_IMPORT = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    pass\n"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(dialects, "_of_cities", {})
    dialects.installed.cache_clear()
    yield
    dialects.installed.cache_clear()


@pytest.fixture
def load_city(tmp_path):
    def load(dialect, settings=""):
        (tmp_path / "city.toml").write_text(
            f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.SA101]\nsignals = ["A0"]\ndialect = "{dialect}"\n'
            f"{settings}"
        )
        return config.load(tmp_path / "city.toml")

    return load


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution that declares dialects on the path, as an installed wheel is."""

    def install(**declared):
        for number, (name, value) in enumerate(declared.items()):
            info = tmp_path / f"dist{number}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist{number}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(
                f"[greenserve.dialects]\n{name.split('__')[0].replace('_', '-')} = {value}\n"
            )
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def marked(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported."""
    (tmp_path / "evil_module.py").write_text(MARKS_ITS_IMPORT.format(mark=str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    sys.modules.pop("evil_module", None)


def test_class_that_city_toml_names_is_the_tls_dialect_in_every_process(load_city, grid_street, monkeypatch):
    city = load_city(TOY)
    dialects.check_city_settings(city)
    made = contract.build(city, city.tls["SA101"], grid_street)
    assert made.observation.dialect == "toy-counts" and made.observation.size == len(grid_street.signals["A0"].lanes)
    check_contract_matches_network(made, grid_street)
    monkeypatch.setattr(dialects, "_of_cities", {})  # as in a worker, which gets the contract from a server
    check_contracts_match_city(city, {"SA101": made})
    assert isinstance(dialects.of(made), toy_counts.Toy)


@pytest.fixture
def included(tmp_path, monkeypatch):
    """The dialect toy-counts as a further file in signals/dialects."""
    (tmp_path / "dialects").mkdir()
    (tmp_path / "dialects" / "toy_counts.py").write_text(Path(toy_counts.__file__).read_text())
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path / "dialects")])
    yield
    sys.modules.pop("signals.dialects.toy_counts", None)
    vars(dialects).pop("toy_counts", None)


@pytest.mark.usefixtures("included")
def test_settings_are_checked_by_the_new_dialect(load_city):
    dialects.check_city_settings(load_city("toy-counts"))
    with pytest.raises(InputError, match=r"city.toml: \[tl.SA101\] state is not a setting of toy-counts"):
        dialects.check_city_settings(load_city("toy-counts", 'state = "d"'))


@pytest.mark.usefixtures("included")
def test_intersection_decides_with_a_dialect_that_is_one_file_more(load_city, grid_street):
    city, signal = load_city("toy-counts"), grid_street.signals["A0"]
    made = contract.build(city, city.tls["SA101"], grid_street)
    check_contract_matches_network(made, grid_street)
    dialect = dialects.of(made)
    times = times_for(made, Safety(min_yellow_s=3, min_green_s=4), dialect.runs_plan(made))
    lane_row = {lane: i for i, lane in enumerate(reversed(signal.lanes))}
    length_m = np.full(len(lane_row), 100.0)
    x = Intersection(
        made,
        dialect.observer(made, lane_row, length_m),
        dialect.sequencer(made),
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
    sent = play(x, 30, lambda now: Answer(np.array([phases.index(first if now < 14 else second)])))
    assert x.state.next_decision_s == 35
    states = [(now, command.state) for now, command in sent]
    assert states[0] == (0, first) and states[-1] == (17, second), "the safety rules add yellow"


def test_installed_distribution_declares_a_dialect_under_its_name(load_city, install, grid_street):
    install(toy_counts=TOY)
    assert dialects.names() == sorted([*dialects.included_names(), "toy-counts"])
    city = load_city("toy-counts")
    made = contract.build(city, city.tls["SA101"], grid_street)
    assert made.observation.dialect == "toy-counts" and isinstance(dialects.of(made), toy_counts.Toy)


def test_installed_dialects_are_not_imported_unless_they_are_named(install, marked, load_city):
    install(evil="evil_module:Evil")
    dialects.check_city_settings(load_city("sumo-rl"))
    assert "evil" in dialects.names() and "categorical" in dialects.action_kinds() and not marked.exists()


@pytest.mark.parametrize(
    "name", ["evil_module:Evil", "evil_module", "os:abort", "signals.dialects.sumo_rl:SumoRl", "../x"]
)
def test_module_that_a_contract_names_is_not_imported(name, marked, load_city, grid_street):
    city = load_city(TOY)
    foreign = contract.build(city, city.tls["SA101"], grid_street)
    foreign.observation.dialect = name
    for refused in (
        lambda: dialects.of(foreign),
        lambda: check_contract_matches_network(foreign, grid_street),
        lambda: check_contracts_match_city(city, {"SA101": foreign}),
    ):
        with pytest.raises(InputError):
            refused()
    assert not marked.exists() and "evil_module" not in sys.modules


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        (
            "nowhere:Class",
            r"\[tl.SA101\] dialect 'nowhere:Class' cannot be imported: ModuleNotFoundError.*set PYTHONPATH",
        ),
        (f"{TOY}s", "cannot be imported: AttributeError"),
        (
            "evil_module:Evil",
            r"lacks name, action_kinds, .*takes_first_program, check_settings\(\), .*see the protocol in",
        ),
        (
            "tests.signals.dialects.toy_counts:Unfinished",
            r"lacks name, .*build_contract\(\), check_contract\(\), observer\(\), sequencer\(\); see",
        ),
        ("tests.signals.dialects.toy_counts:ToySequencer", r"cannot be imported: TypeError"),
        ("signals.dialects.sumo_rl:SumoRl", "its name 'sumo-rl' belongs to another dialect; rename it"),
        ("a/b:C", "must be module:Class, such as my_package.counts:Counts"),
        ("mine:", "must be module:Class"),
    ],
)
def test_class_that_is_not_a_dialect_is_refused_in_one_line(load_city, marked, dialect, message):
    with pytest.raises(InputError, match=message) as caught:
        dialects.check_city_settings(load_city(dialect))
    assert "\n" not in str(caught.value)


def test_documented_dialect_observes_halting_vehicles(tmp_path, monkeypatch, load_city, grid_street):
    page = (ROOT / "docs" / "reference" / "dialects.md").read_text()
    (tmp_path / "documented_dialect.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    city = load_city("documented_dialect:Halting")
    made = contract.build(city, city.tls["SA101"], grid_street)
    check_contract_matches_network(made, grid_street)
    lanes = list(grid_street.signals["A0"].lanes)
    observer = dialects.of(made).observer(made, {lane: k for k, lane in enumerate(lanes)}, np.ones(len(lanes)))
    halting = np.arange(len(lanes), dtype=float)
    readings = Readings(np.array([halting + 1, halting]), halting, halting)
    assert made.observation.size == observer.size == len(lanes)
    assert observer.observe(readings, None, None).tolist() == halting.tolist()
    sys.modules.pop("documented_dialect")


@pytest.mark.parametrize(
    ("declared", "name", "message"),
    [
        ({}, "toy-counts", rf"\[tl.SA101\] dialect 'toy-counts' is not one of {', '.join(dialects.included_names())}"),
        (
            {"toy_counts": TOY, "toy_counts__2": "elsewhere:Toy"}, "toy-counts",
            r"is declared by several distributions, as elsewhere:Toy and as tests.*uninstall one",
        ),
        ({"other_name": TOY}, "other-name", "has the name 'toy-counts'; give both the same name"),
    ],
)  # fmt: skip
def test_name_that_no_or_several_distributions_declare_is_refused(load_city, install, declared, name, message):
    install(**declared)
    with pytest.raises(InputError, match=message):
        dialects.check_city_settings(load_city(name))
