"""Runs that are compared with sumo-rl's environment, each in a process of its own.

Libsumo's simulations in one process are not independent of each other.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conftest import ROOT


@dataclass(frozen=True)
class Case:
    """What both runs share; each writes NAME.json and the trips NAME.xml into the folder."""

    folder: str
    net_file: str
    routes: str
    begin_s: int
    seconds: int

    def file(self, name, suffix):
        return Path(self.folder) / f"{name}.{suffix}"


def run_in_a_process(module, name, case, **variables):
    """(results, trips) of a run. `name`: sumo-rl, or our transport. `variables`: of the process's environment."""
    import sumo

    environment = {**os.environ, "SUMO_HOME": sumo.SUMO_HOME, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", module.__name__, name, json.dumps(asdict(case))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    trips = sorted(re.findall(r"<tripinfo .*", case.file(name, "xml").read_text()))
    return json.loads(case.file(name, "json").read_text()), trips
