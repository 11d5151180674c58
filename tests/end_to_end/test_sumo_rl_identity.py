"""A run with [safety] floors = "dialect" against sumo-rl's own environment: the same observations, actions and
trips."""

import urllib.request

import pytest

from city import network
from controller.__main__ import main
from controller.decision_step import DecisionLoop
from tests.end_to_end import sumo_rl_runs
from tests.end_to_end.programs import free_port
from tests.end_to_end.sumo_rl_runs import Run
from tests.networks import netconvert
from tests.sample_city import write_city
from tests.sumo_rl_cases import run_in_a_process


@pytest.mark.parametrize(
    ("name", "transport", "has_internal_links", "times", "step_s", "seconds"),
    [
        pytest.param("cologne1", "libsumo", True, (5, 2, 5), 1.0, 600, marks=pytest.mark.slow),
        pytest.param("cologne1", "guard", True, (5, 3, 5), 1.0, 600, marks=pytest.mark.slow),
        pytest.param("cologne1", "traci", False, (5, 2, 5), 1.0, 300, marks=pytest.mark.slow),
        ("cologne1", "traci", True, (5, 2, 5), 0.5, 150),
        pytest.param("cologne8", "traci", True, (5, 2, 5), 1.0, 600, marks=pytest.mark.slow),
        pytest.param("cologne8", "libsumo", False, (5, 4, 8), 1.0, 600, marks=pytest.mark.slow),
        ("ingolstadt7", "traci", True, (10, 3, 10), 1.0, 150),
        pytest.param("ingolstadt7", "libsumo", True, (5, 2, 5), 1.0, 600, marks=pytest.mark.slow),
    ],
)
def test_run_with_the_dialects_floors_is_sumo_rls_trip_by_trip(
    name, transport, has_internal_links, times, step_s, seconds, shared, tmp_path
):
    pytest.importorskip("gymnasium", reason="sumo-rl is not installed (pip install sumo-rl)")
    folder = shared / "scenarios" / name
    street = network.of_sumocfg(folder / f"{name}.sumocfg")
    net_file = street.net_file
    if not has_internal_links:
        net_file = netconvert(net_file, tmp_path / "x.net.xml", "--no-internal-links")
    run = Run(
        str(tmp_path), str(net_file), str(folder / f"{name}.rou.xml"), int(street.begin_s), seconds, step_s, *times
    )
    expected, expected_trips = run_in_a_process(sumo_rl_runs, "sumo-rl", run, LIBSUMO_AS_TRACI="1")
    result, trips = run_in_a_process(sumo_rl_runs, transport, run)
    assert result["alarms"] == [] and result["overrides"] == {}
    assert result["decisions"] == expected["decisions"] and len(expected["decisions"]) == seconds // times[0]
    assert trips == expected_trips != []


def test_floors_that_are_off_are_reported_at_the_start(tmp_path, monkeypatch, caplog):
    def step(loop, end_s):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics.append(answer.read().decode())
        control_step(loop, end_s)

    port, metrics, control_step = free_port(), [], DecisionLoop.step
    monkeypatch.setattr(DecisionLoop, "step", step)
    city = write_city(tmp_path, ("[safety]\n", '[safety]\nfloors = "dialect"\n'))
    flags = ("--policy", "max-pressure", "--libsumo", "--end", "10", "--http", f"127.0.0.1:{port}")
    assert main(["--city", city, *flags]) == 0
    assert "controller_street_floors 0.0" in metrics[0]
    (line,) = (each.getMessage() for each in caplog.records if "floors" in each.getMessage())
    assert line.startswith("[safety] floors = dialect: the street's floors are off")
