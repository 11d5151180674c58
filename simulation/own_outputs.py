"""Keep a simulation from writing the files that the user's configuration names.

An evaluation runs its configuration many times, several at a time: each run would overwrite the user's outputs of an
earlier one. Options that change what SUMO writes would change the trips that are read here.
"""

import xml.etree.ElementTree as ET
from pathlib import Path

from city import sumo_files

NOWHERE = "/dev/null"
"""SUMO discards an output of this name, on every system."""
_OVERRIDES = {
    "output-prefix": "",
    "output-suffix": "",
    "output.format": "xml",
    "human-readable-time": "false",
    "precision": "2",
    "save-state.times": "",
    "save-state.period": "-1",
    "netstate-dump": NOWHERE,
    "log": NOWHERE,
    "message-log": NOWHERE,
    "error-log": NOWHERE,
    "device.rerouting.output": NOWHERE,
    "device.ssm.file": NOWHERE,
    "device.toc.file": NOWHERE,
    "pedestrian.jupedsim.wkt": NOWHERE,
    "pedestrian.jupedsim.py": NOWHERE,
}
"""By option of a configuration, the value that it has here."""
_READ_A_FILE = ("rerouter", "variableSpeedSign", "calibrator")
"""Elements whose attribute `file` names an input; that of all others names an output."""
_INPUTS = ("edgesFile", "imgFile")


def options(sumocfg: Path, folder: Path) -> list[str]:
    """SUMO's options that silence the outputs of a configuration; the tripinfo file has its own option.

    `folder`: for outputs that cannot be discarded. Raises InputError.
    """
    configured = sumo_files.options(sumocfg)
    result: list[str] = []
    for option in configured:
        if option in _OVERRIDES:
            result += [f"--{option}", _OVERRIDES[option]]
        elif option == "vtk-output":  # a file for each step, whose name begins with this one's
            result += [f"--{option}", str(folder / "vtk")]
        elif option.endswith("-output") and option != "tripinfo-output":
            result += [f"--{option}", NOWHERE]
    if any(option.startswith("device.ssm.") for option in configured) and "device.ssm.file" not in configured:
        result += ["--device.ssm.file", NOWHERE]
    if any(option.startswith("device.tripinfo.") for option in configured):
        result += ["--device.tripinfo.probability", "1"]
    return result


def additional_files(sumocfg: Path, folder: Path) -> list[Path]:
    """The additional files of a configuration; those with outputs as copies in `folder` without. Raises InputError."""
    listed = sumo_files.listed_files(sumocfg, "additional-files")
    return [_silenced(path, folder, str(k)) for k, path in enumerate(listed)]


def _silenced(path: Path, folder: Path, name: str) -> Path:
    """A file without outputs: itself, or a copy in `folder`. Raises InputError."""
    if not any(_has_outputs(file) for file in sumo_files.with_includes(path)):
        return path
    with sumo_files.opened(path) as file:
        tree = ET.parse(file)
    for k, element in enumerate(tree.iter()):
        for attribute in _outputs_of(element):
            element.set(attribute, NOWHERE)
        for attribute in _inputs_of(element):
            element.set(attribute, str((path.parent / element.attrib[attribute]).resolve()))
        if element.tag == "include":
            element.set("href", str(_silenced(Path(element.get("href", "")), folder, f"{name}-{k}")))
    silenced = folder / f"{name}.add.xml"
    tree.write(silenced)
    return silenced


def _has_outputs(path: Path) -> bool:
    """True if an element of a file names an output. Raises InputError."""
    found = False
    for _, element in sumo_files.elements(path):
        found = found or bool(_outputs_of(element))
        element.clear()
    return found


def _outputs_of(element: ET.Element) -> list[str]:
    """The attributes of an element that name an output."""
    if element.tag == "include":
        return []
    if element.tag == "param":  # the detectors of an actuated program
        return ["value"] if element.get("key") == "file" else []
    written = ("output", "dest") if element.tag in _READ_A_FILE else ("file", "output", "dest")
    return [attribute for attribute in written if element.get(attribute)]


def _inputs_of(element: ET.Element) -> list[str]:
    """The attributes of an element that name an input, relative to its file."""
    read = [
        *_INPUTS,
        *(["file"] if element.tag in _READ_A_FILE else []),
        *(["href"] if element.tag == "include" else []),
    ]
    return [attribute for attribute in read if element.get(attribute)]
