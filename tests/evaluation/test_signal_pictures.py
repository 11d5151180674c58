"""ATSPM's pictures in the evaluation's report, of controlled and of uncontrolled signals."""

import json
from dataclasses import replace

import pytest

from city.errors import InputError
from controller.sumo.libsumo_connection import start_libsumo
from evaluation import arms, report, results_files
from evaluation.signal_pictures import MAX_TLS, ZERO, PicturedTls, SignalPictures, UncontrolledSignals, compared
from evaluation.simulation import ArmSimulator, EvaluationTask, outcome_values
from records.atspm import detectors
from records.atspm.analysis_period import ProgramChange
from signals import phase_numbers
from simulation.demand import Demand
from tests.conftest import GRID
from tests.evaluation.outcomes import ZERO as ZERO_OUTCOME

TLS = ("SA101", "SA105")
OPTIONS = ["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "true", "--no-warnings", "true", "--seed", "5"]
CONDITIONS = {"city": "city.toml", "tls": ["A"], "models": {}}
OUTCOME = replace(ZERO_OUTCOME, delay_by_tl={"A": 2.0, "B": 1.0}, delay_quantiles_s=(0.0,) * 101)


@pytest.mark.parametrize("name", ["max-pressure", "actuated"])
def test_pictures_of_an_arm_change_nothing_in_its_simulation(grid_city, name):
    simulator = ArmSimulator(EvaluationTask(grid_city, TLS, 150))
    (arm,) = arms.parse(name)
    plain, pictured = (simulator.run(arm, Demand(3), records_signals=records) for records in (False, True))
    assert outcome_values(plain) == outcome_values(pictured) and plain.pictures is None
    assert pictured.pictures.by_tl.keys() == set(TLS) and pictured.no_pictures == ""
    drawn = [text for view in pictured.pictures.by_tl.values() for text in compared([view])]
    for text in (pictured.pictures.page, *drawn):
        assert "Purdue Coordination Diagram" in text and "Purdue Split Failure" in text
        assert "Arrivals on Green: " in text
    for title in ("Phase Termination", "Split Monitor", "Approach Volume", "Approach Delay", "Queue Length"):
        assert title in pictured.pictures.page
    assert ("Gap Outs" in pictured.pictures.page) == (name == "actuated")
    assert ">fallback<" not in pictured.pictures.page and (f">{name}<" in pictured.pictures.page) == (
        name != "actuated"
    )
    assert "class='none'" not in pictured.pictures.page.replace("no two signals", "")


def test_signals_without_a_controller_are_read_after_every_step(grid_city, grid_street, tmp_path):
    seconds = 130
    pictured = PicturedTls(grid_city, grid_street, TLS)
    (placed,) = pictured.write_detectors(tmp_path / "detectors.add.xml", [])
    options = [*OPTIONS, "-a", f"{GRID / 'fixed_time.add.xml'},{placed}"]
    connection = start_libsumo(options)
    signals = UncontrolledSignals(pictured, connection)
    for end_s in (40, 77, seconds):
        signals.advance(end_s)
    connection.close()
    period = signals._steps.recorded(ZERO).period
    connection = start_libsumo(options)
    states = {own.signal: [] for own in period.signals}
    entries = set()
    for _ in range(seconds):
        connection.api.simulationStep()
        for signal, shown in states.items():
            shown.append(connection.api.trafficlight.getRedYellowGreenState(signal))
        for detector in detectors.read(placed):
            data = connection.api.inductionloop.getVehicleData(detector.id)
            entries |= {(detector.id, round(entry_s, 3)) for _, _, entry_s, *_ in data}
    connection.close()
    for own in period.signals:
        expected = states[own.signal]
        changes = [k for k in range(seconds) if k == 0 or expected[k] != expected[k - 1]]
        assert [(shown.begin_s, shown.state) for shown in own.states] == [(k, expected[k]) for k in changes]
    # a presence detector may have a second vehicle on it
    points = {entry for entry in entries if not entry[0].startswith("presence")}
    found = {(each.detector, each.time_s) for each in period.detections if each.is_on}
    assert points and {each for each in found if not each[0].startswith("presence")} == points and found <= entries
    assert signals._programs == {signal: [ProgramChange(0.0, "adapted")] for signal in states}


def test_detectors_of_the_city_are_used_if_it_has_some(grid_city, grid_street, tmp_path):
    pictured = PicturedTls(grid_city, grid_street, TLS)
    own = pictured.write_detectors(tmp_path / "own.add.xml", [GRID / "fixed_time.add.xml"])
    assert {detector.signal for detector in detectors.read(own[0])} == {"A0", "B1"}
    assert pictured.write_detectors(tmp_path / "more.add.xml", own) == [] and not (tmp_path / "more.add.xml").exists()


def test_tls_with_the_most_lanes_are_pictured(grid_city, grid_street):
    many = {f"T{k}": replace(grid_city.tls["SA101"], signals=("A0",), name=f"T{k}") for k in range(MAX_TLS + 2)}
    many["T3"] = replace(many["T3"], signals=("A0", "B1"))
    pictured = PicturedTls(replace(grid_city, tls=many), grid_street, list(many))
    assert pictured.tls == tuple(f"T{k}" for k in range(MAX_TLS))
    last = {**many, "T11": many["T3"], "T3": many["T0"]}
    assert PicturedTls(replace(grid_city, tls=last), grid_street, list(last)).tls == (
        *(f"T{k}" for k in range(MAX_TLS - 1)),
        "T11",
    )


def test_evaluation_goes_on_without_pictures_if_phases_have_no_numbers(grid_city, monkeypatch):
    def refuse(*_):
        raise InputError("signal A0 has more approaches than phases")

    monkeypatch.setattr(phase_numbers, "of_city", refuse)
    outcome = ArmSimulator(EvaluationTask(grid_city, TLS, 20)).run(
        *arms.parse("fixed"), Demand(1), records_signals=True
    )
    assert outcome.pictures is None and outcome.no_pictures == "signal A0 has more approaches than phases"


def test_report_shows_the_tl_with_most_delay_and_links_all_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "compared", lambda views: [f"<svg>{view}</svg>" for view in views])
    both = arms.parse("served:3,fixed")
    pictures = [SignalPictures(f"page of {k}", {"B": f"B{k}", "A": f"A{k}"}) for k in range(2)]
    results = {arm.name: [replace(OUTCOME, arm=arm.name, pictures=pictures[k])] for k, arm in enumerate(both)}
    page = report.write(tmp_path, both, results, CONDITIONS).read_text()
    assert "<svg>A0</svg>" in page and "<svg>A1</svg>" in page and "<svg>B" not in page
    for k, name in enumerate(("signals-1-served-3.html", "signals-2-fixed.html")):
        assert f'href="{name}"' in page and (tmp_path / name).read_text() == f"page of {k}"
    results_files.write(tmp_path, both, results, CONDITIONS)
    assert "pictures" not in (tmp_path / "results.json").read_text()
    assert len(json.loads((tmp_path / "results.json").read_text())["simulations"]) == 2


def test_report_says_why_an_arm_has_no_pictures(tmp_path):
    results = {"fixed": [replace(OUTCOME, arm="fixed", no_pictures="5 approaches <here>")]}
    page = report.write(tmp_path, arms.parse("fixed"), results, CONDITIONS).read_text()
    assert "No pictures: 5 approaches &lt;here&gt;" in page and 'href="signals-' not in page
    results = {"fixed": [replace(OUTCOME, arm="fixed")]}
    assert "ATSPM" not in report.write(tmp_path, arms.parse("fixed"), results, CONDITIONS).read_text()
