"""Networks that tests build with netgenerate and netconvert."""

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
