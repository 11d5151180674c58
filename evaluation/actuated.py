"""The baseline `actuated`: SUMO's own actuated logic on the network's own phases.

A green lasts between minDur and maxDur, as long as vehicles keep arriving at its detectors
(https://sumo.dlr.de/docs/Simulation/Traffic_Lights.html#type_actuated). Phases that have
no minDur and maxDur get netconvert's defaults.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from city.errors import InputError
from city.network import SEQUENTIAL_TYPES, UNBOUNDED_S, SignalNetwork
from signals.policy_signals import lasting_greens

MIN_GREEN_S, MAX_GREEN_S = 5.0, 50.0
"""netconvert's --tls.min-dur and --tls.max-dur."""
PROGRAM = "greenserve-actuated"


def write(path: Path, signals: Iterable[SignalNetwork]) -> Path:
    """Write an additional file with an actuated program for each signal. SUMO must load it last, to run these programs.

    Raises InputError if a WAUT would switch a signal to another program, or a signal's phases have no order.
    """
    root = ET.Element("additional")
    for signal in signals:
        if signal.switches:
            raise InputError(
                f"signal {signal.id} follows a WAUT, which would end its actuated program; leave actuated out of --arms"
            )
        if signal.plan.type not in SEQUENTIAL_TYPES:
            raise InputError(
                f"signal {signal.id} has a program of type {signal.plan.type}, whose phases have no order; "
                "leave actuated out of --arms"
            )
        logic = ET.SubElement(root, "tlLogic", id=signal.id, type="actuated", programID=PROGRAM, offset="0")
        greens = set(lasting_greens(signal, signal.plan))
        for phase in signal.plan.phases:
            element = ET.SubElement(logic, "phase", duration=f"{phase.duration_s:g}", state=phase.state)
            if phase.state in greens:
                # netconvert writes the duration as both bounds of a phase of fixed duration
                has_bounds = phase.min_s < phase.max_s < UNBOUNDED_S
                low, high = (phase.min_s, phase.max_s) if has_bounds else (MIN_GREEN_S, MAX_GREEN_S)
                element.set("minDur", f"{min(low, phase.duration_s):g}")
                element.set("maxDur", f"{max(high, phase.duration_s):g}")
    ET.ElementTree(root).write(path)
    return path
