"""Memory of the controller over a simulated day of the sample city.

    python -m benchmarks.controller_memory [--hours 24]

The demand of one hour is repeated; served policies control all TLs. The controller runs in a
process of its own and reads its memory every simulated hour. Budget: flat.
"""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import server

ROOT = Path(__file__).resolve().parent.parent
GRID = ROOT / "examples" / "grid"
HOUR_S = 3600


def write_city(folder: Path, hours: int) -> Path:
    """Write the sample city with its demand repeated; return the path of city.toml."""
    demand = ET.parse(GRID / "demand.rou.xml").getroot()
    vehicles = [element for element in demand if "depart" in element.attrib]
    rest = [element for element in demand if "depart" not in element.attrib]
    with (folder / "demand.rou.xml").open("w", encoding="utf-8") as file:
        file.write("<routes>\n" + "".join(ET.tostring(element, "unicode") for element in rest))
        for hour in range(hours):
            for vehicle in vehicles:
                copy = ET.fromstring(ET.tostring(vehicle))
                copy.set("id", f"{hour}_{vehicle.get('id')}")
                copy.set("depart", f"{float(vehicle.get('depart', 0)) + hour * HOUR_S:.2f}")
                file.write(ET.tostring(copy, "unicode"))
        file.write("</routes>\n")
    config = (GRID / "grid.sumocfg").read_text()
    for name in ("grid.net.xml", "fixed_time.add.xml"):
        config = config.replace(name, str(GRID / name))
    (folder / "grid.sumocfg").write_text(config.replace('<end value="3600"/>', f'<end value="{hours * HOUR_S}"/>'))
    (folder / "city.toml").write_text(
        (GRID / "city.toml").read_text().replace('"checkpoints"', f'"{GRID / "checkpoints"}"')
    )
    return folder / "city.toml"


CHILD = """
import json, resource, sys
from pathlib import Path
from controller import daemon
from controller.config import parse
from controller.release import Stop
samples = []
def sample(loop):
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    samples.append((loop.now, pages * resource.getpagesize() / 1e6))
assert daemon.SUMMARY_INTERVAL_S and daemon.RunLog.summary, "the daemon logs no summary in which memory can be read"
daemon.SUMMARY_INTERVAL_S, daemon.RunLog.summary = 3600.0, lambda run_log, loop: sample(loop)
code = daemon.run(parse(sys.argv[1:]), Stop())
print(json.dumps(samples))
sys.exit(code)
"""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--hours", type=int, default=24, help="simulated hours (default: 24)")
    hours = parser.parse_args().hours
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        city = write_city(folder, hours)
        export = [
            sys.executable,
            "-m",
            "export",
            "--city",
            str(city),
            "--tl",
            "all",
            "--models-dir",
            str(folder / "models"),
        ]
        subprocess.run(export, check=True, capture_output=True, cwd=ROOT)
        with server(
            "-m", "serving", "--models-dir", str(folder / "models"), "--port", "0", "--city", str(city)
        ) as address:
            command = [
                sys.executable,
                "-c",
                CHILD,
                "--city",
                str(city),
                "--server",
                address,
                "--end",
                str(hours * HOUR_S),
            ]
            controller = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if controller.returncode:
        sys.exit(controller.stderr[-2000:])
    samples = json.loads(controller.stdout.splitlines()[-1])
    if len(samples) < hours:
        sys.exit(f"error: {len(samples)} samples in {hours} h")
    for second, megabytes in samples:
        print(f"after {second / HOUR_S:5.1f} h {megabytes:7.1f} MB")
    (first_s, early_mb), (_, late_mb) = samples[min(2, len(samples) - 1)], samples[-1]
    print(f"from hour {first_s / HOUR_S:.0f} on {late_mb / early_mb:.3f} x")


if __name__ == "__main__":
    main()
