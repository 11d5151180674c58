"""sumo-rl's multi-agent environment starts in our environment, as the page for its users says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sumo

from tests.conftest import GRID

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
    variables = {**os.environ, "SUMO_HOME": str(Path(sumo.__file__).parent), "LIBSUMO_AS_TRACI": "1"}
    command = [sys.executable, "-c", SCRIPT, str(GRID / "grid.net.xml"), str(GRID / "demand.rou.xml")]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 1
