"""docs/atspm.md: its examples run, and its tables have every code and function."""

import re
import subprocess
import sys

from city import config, network
from controller.recording.detectors import FUNCTIONS
from records.atspm import detectors
from records.atspm.event_codes import Code
from signals.phase_numbers import of_city
from tests.conftest import GRID, ROOT

PAGE = (ROOT / "docs" / "atspm.md").read_text()


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)[1]


def test_table_of_events_has_every_code():
    rows = re.findall(r"^\| ([\d, ]+) \| .* \|$", PAGE[PAGE.index("## Events") : PAGE.index("### Terminations")], re.M)
    assert sorted(int(code) for row in rows for code in row.split(", ")) == sorted(Code)


def test_table_of_detectors_has_every_function():
    assert tuple(re.findall(r"^\| `(\w+)` \| .* before .* \|$", PAGE, re.M)) == FUNCTIONS


def test_example_of_city_toml_is_of_the_sample_city(tmp_path):
    path = tmp_path / "city.toml"
    path.write_text(f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n{block("toml")}')
    city = config.load(path)
    found = {phase.number: phase.description for phase in of_city(city, network.of_city(city))["A0"].phases}
    assert found.keys() == {1, 2, 3, 4, 5, 6, 8, 11} and found[11] == "southbound left"


def test_example_in_python_writes_the_files(tmp_path):
    (tmp_path / "city.toml").write_text(f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n')
    detectors.write(tmp_path / "detectors.add.xml", detectors.place(network.of_sumocfg(GRID / "grid.sumocfg")))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{block('python')}{block('py')}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("device 1, signal A0, phase ")
    named = re.findall(r"^\| `([\w.-]+)` \| .* \| .* \|$", PAGE[: PAGE.index("## Detectors")], re.M)
    assert {re.sub(r"-\d+", "-N", path.name) for path in (tmp_path / "atspm").iterdir()} == set(named)
    assert "Phase Termination" in (tmp_path / "page.html").read_text()
