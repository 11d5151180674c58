"""Programs that show g instead of G to links that yield, in an additional file (`greenserve city init --repair`).

SUMO refuses a second program with the same id, so each has an id of its own; it is loaded last, and so it runs.
"""

import copy
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from city.network import UNNAMED_PROGRAM, Program, SignalNetwork, StreetNetwork
from city.sumo_files import read_elements


@dataclass(frozen=True)
class Repair:
    """A signal's running program, repaired."""

    signal: SignalNetwork
    """The signal as it is with the repaired program."""
    original: Program
    states: Mapping[str, str]
    """State of the original program -> the state with g."""

    @property
    def program(self) -> Program:
        return self.signal.plan

    @property
    def links(self) -> list[int]:
        """The links that show g instead of G in some phase."""
        return sorted({k for a, b in self.states.items() for k in range(len(a)) if a[k] != b[k]})


def repair(signal: SignalNetwork, states: Mapping[str, str]) -> Repair:
    """Repair the program that runs. `states`: state -> the state with g, for those that change."""
    original, ids = signal.plan, {program.id for program in signal.programs}
    name = "repaired" if original.id == UNNAMED_PROGRAM else f"{original.id}-repaired"
    while name in ids:
        name += "-again"
    phases = tuple(replace(phase, state=states.get(phase.state, phase.state)) for phase in original.phases)
    programs = sorted((*signal.programs, replace(original, id=name, phases=phases)), key=lambda program: program.id)
    return Repair(replace(signal, programs=tuple(programs), active_program=name), original, states)


def additional_file(street: StreetNetwork, repairs: Sequence[Repair]) -> str:
    """The text of the additional file with the repaired programs, else as in their own files. Raises InputError."""
    wanted = {(each.signal.id, each.original.id): each for each in repairs}
    found: dict[tuple[str, str], ET.Element] = {}

    def read(element: ET.Element) -> None:
        key = element.get("id", ""), element.get("programID", UNNAMED_PROGRAM)
        if element.tag == "tlLogic" and key in wanted:
            if element.find("phase") is not None:
                found[key] = copy.deepcopy(element)
            else:  # a file of offsets (tlsCoordinator)
                found[key].set("offset", element.get("offset", "0"))

    for path in (street.net_file, *street.additional):
        read_elements(path, read, "fix it")
    root = ET.Element("additional")
    for key, logic in found.items():
        logic.set("programID", wanted[key].program.id)
        for phase in logic.iter("phase"):
            phase.set("state", wanted[key].states.get(phase.attrib["state"], phase.attrib["state"]))
        root.append(logic)
    ET.indent(root, "    ")
    return f"{ET.tostring(root, 'unicode')}\n"
