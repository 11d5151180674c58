"""A run with [safety] floors = "dialect" against sumo-rl's own environment: the same observations, actions and
trips."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sumo

from city import network
from tests.conftest import GRID
from tests.end_to_end import sumo_rl_runs
from tests.end_to_end.sumo_rl_runs import Run
from tests.networks import netconvert
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


SCRIPT = """
import sys
from sumo_rl import parallel_env
environment = parallel_env(net_file=sys.argv[1], route_file=sys.argv[2], num_seconds=20)
observations, _ = environment.reset(seed=1)
while environment.agents:
    environment.step({agent: environment.action_space(agent).sample() for agent in environment.agents})
environment.close()
print(len(observations))
"""


@pytest.mark.slow
def test_parallel_env_of_sumo_rl_runs_an_episode(tmp_path):
    """It starts in our environment, as the page for its users says."""
    variables = {**os.environ, "SUMO_HOME": str(Path(sumo.__file__).parent), "LIBSUMO_AS_TRACI": "1"}
    command = [sys.executable, "-c", SCRIPT, str(GRID / "grid.net.xml"), str(GRID / "demand.rou.xml")]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 1
