"""Memory of the controller over a simulated day of the sample city.

    python -m benchmarks.controller_memory [--hours 24]

The demand of an hour, over and over; all TLs decide by served policies. The
controller runs in a process of its own; its memory is read at every hour of the
street. Budget: flat.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.unary_predict import server

ROOT = Path(__file__).resolve().parent.parent
GRID = ROOT / "examples" / "grid"
HOUR_S = 3600


def write_city(folder: Path, hours: int) -> Path:
    """The sample city with its demand repeated; city.toml's path."""
    demand = ET.parse(GRID / "demand.rou.xml").getroot()
    vehicles = [element for element in demand if "depart" in element.attrib]
    rest = [element for element in demand if "depart" not in element.attrib]
    with (folder / "demand.rou.xml").open("w", encoding="utf-8") as file:
        file.write("<routes>\n" + "".join(ET.tostring(element, "unicode") for element in rest))
        for hour in range(hours):
            for vehicle in vehicles:
                again = ET.fromstring(ET.tostring(vehicle))
                again.set("id", f"{hour}_{vehicle.get('id')}")
                again.set("depart", f"{float(vehicle.get('depart', 0)) + hour * HOUR_S:.2f}")
                file.write(ET.tostring(again, "unicode"))
        file.write("</routes>\n")
    config = (GRID / "grid.sumocfg").read_text()
    for name in ("grid.net.xml", "fixed_time.add.xml"):
        config = config.replace(name, str(GRID / name))
    (folder / "grid.sumocfg").write_text(config.replace('<end value="3600"/>', f'<end value="{hours * HOUR_S}"/>'))
    (folder / "city.toml").write_text((GRID / "city.toml").read_text().replace('"checkpoints"', f'"{GRID / "checkpoints"}"'))
    return folder / "city.toml"


CHILD = """
import json, resource, sys
from pathlib import Path
from controller import daemon
from controller.config import parse
from controller.release import Stop
told = []
def tell(steps):
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    told.append((steps.now, pages * resource.getpagesize() / 1e6))
daemon.TELL_S, daemon._tell = 3600.0, tell
code = daemon.run(parse(sys.argv[1:]), Stop())
print(json.dumps(told))
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    hours = parser.parse_args().hours
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        city = write_city(folder, hours)
        exported = [sys.executable, "-m", "export", "--city", str(city), "--tl", "all", "--models-dir", str(folder / "models")]
        subprocess.run(exported, check=True, capture_output=True, cwd=ROOT)
        with server("-m", "serving", "--models-dir", str(folder / "models"), "--port", "0", "--city", str(city)) as address:
            command = [sys.executable, "-c", CHILD, "--city", str(city), "--server", address, "--end", str(hours * HOUR_S)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    told = json.loads(done.stdout.splitlines()[-1])
    for second, megabytes in told:
        print(f"after {second / HOUR_S:5.1f} h {megabytes:7.1f} MB")
    early, late = told[min(2, len(told) - 1)][1], told[-1][1]
    print(f"from hour {told[min(2, len(told) - 1)][0] / HOUR_S:.0f} on {late / early:.3f} x")


if __name__ == "__main__":
    main()
