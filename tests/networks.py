"""Networks that tests build with netgenerate and netconvert."""

import itertools
import subprocess
from pathlib import Path

from controller.sumo.programs import sumo_program

SIGNALS = ("--default-junction-type", "traffic_light")


def netgenerate(path: Path, *options: str) -> Path:
    """A network of netgenerate, whose junctions are signals unless the options say otherwise."""
    options = options if "--default-junction-type" in options else (*options, *SIGNALS)
    command = [sumo_program("netgenerate"), *options, "--output-file", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def netconvert(net: Path, path: Path, *options: str) -> Path:
    """A network converted by netconvert."""
    command = [sumo_program("netconvert"), "-s", str(net), *options, "--output-file", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


ARMS = {"n": (0, 200), "e": (200, 0), "s": (0, -200), "w": (-200, 0)}
"""Ends of the roads of `crossroads`, clockwise."""


def crossroads(
    folder: Path,
    *options: str,
    kind: str = "traffic_light",
    lanes: str = "",
    connections: str = "",
    programs: str = "",
) -> Path:
    """A signal c with four roads, made by netconvert of plain XML.

    Args:
        folder: of the files.
        options: further options of netconvert.
        kind: netconvert's type of the junction.
        lanes: the lanes of every road; one lane for all without it.
        connections: of netconvert's <connections>; its own guess without it.
        programs: of netconvert's <tlLogics>; its own guess without it.
    """
    ends = "".join(f'<node id="{arm}" x="{x}" y="{y}"/>' for arm, (x, y) in ARMS.items())
    roads = "".join(
        f'<edge id="{a}{b}" from="{a}" to="{b}" numLanes="{max(1, lanes.count("<lane"))}" speed="13.89">{lanes}</edge>'
        for arm in ARMS
        for a, b in ((arm, "c"), ("c", arm))
    )
    files = {
        "-n": f'<nodes><node id="c" x="0" y="0" type="{kind}"/>{ends}</nodes>',
        "-e": f"<edges>{roads}</edges>",
        "-x": connections and f"<connections>{connections}</connections>",
        "-i": programs and f"<tlLogics>{programs}</tlLogics>",
    }
    command = [sumo_program("netconvert"), *options, "--no-turnarounds", "--output-file", str(folder / "c.net.xml")]
    for option, text in files.items():
        if text:
            path = folder / f"plain{option}.xml"
            path.write_text(text)
            command += [option, str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "c.net.xml"


def bicycle_crossroads(folder: Path, *options: str) -> Path:
    """Crossroads with lanes for bicycles, whose left turns are indirect."""
    lanes = '<lane index="0" allow="bicycle"/><lane index="1" disallow="bicycle pedestrian"/>'
    arms, connections = list(ARMS), ""
    for k, arm in enumerate(arms):
        for turn, lane in itertools.product((1, 2, 3), (0, 1)):
            indirect = ' indirect="true"' if (turn, lane) == (1, 0) else ""
            connections += (
                f'<connection from="{arm}c" to="c{arms[(k + turn) % 4]}" fromLane="{lane}" toLane="{lane}"{indirect}/>'
            )
    return crossroads(folder, *options, lanes=lanes, connections=connections)
