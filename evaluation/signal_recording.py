"""The signal states of one simulation, as SUMO writes them at each change."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from city.network import SignalNetwork
from city.sumo_files import seconds
from signals.movement_names import CROSSING, THROUGH, MovementNames
from signals.policy_signals import lasting_greens

SEVERAL_DIRECTIONS = "several directions"


@dataclass(frozen=True)
class SignalBand:
    """The states of one signal over time, and its position."""

    signal: str
    x_m: float
    y_m: float
    states: tuple[tuple[float, str], ...]
    """(second at which it began, state)."""
    end_s: float
    greens: Mapping[str, str] = field(default_factory=dict)
    """By green state, its direction (`directions`); states that lead from one green to the next are left out."""

    @property
    def changes_green(self) -> bool:
        """True if it has shown another green after its first one and the one that followed: a controller's first
        choice."""
        greens = [state for _, state in self.states if state in self.greens]
        return sum(state != before for before, state in zip(["", *greens], greens, strict=False)) > 2


class SignalRecording:
    """The signals of one simulation, recorded by SUMO's SaveTLSSwitchStates."""

    def __init__(self, folder: Path, signals: Sequence[str]) -> None:
        """Write an additional file that lets SUMO record the signals. `folder`: of the recording's files."""
        self._signals = signals
        self._output = folder / "signals.xml"
        self._position: dict[str, tuple[float, float]] = {}
        self.additional_file = folder / "signals.add.xml"
        """SUMO must load this file."""
        root = ET.Element("additional")
        for signal in signals:
            ET.SubElement(root, "timedEvent", type="SaveTLSSwitchStates", source=signal, dest=str(self._output))
        ET.ElementTree(root).write(self.additional_file)

    def locate(self, api: Any) -> None:
        """Read the signals' positions: the end of their first lane."""
        for signal in self._signals:
            lane = api.trafficlight.getControlledLanes(signal)[0]
            self._position[signal] = tuple(api.lane.getShape(lane)[-1])[:2]

    def bands(self, end_s: float, greens: Mapping[str, Mapping[str, str]]) -> tuple[SignalBand, ...]:
        """The recorded states. Call it after the simulation has ended.

        `end_s`: its last second. `greens`: `directions` by signal.
        """
        states: dict[str, list[tuple[float, str]]] = {signal: [] for signal in self._signals}
        root = None
        for event, element in ET.iterparse(self._output, ("start", "end")):
            root = element if root is None else root
            if event == "end" and element.tag == "tlsState":
                states[element.attrib["id"]].append((seconds(element.attrib["time"]), element.attrib["state"]))
                root.clear()
        return tuple(
            SignalBand(signal, *self._position.get(signal, (0.0, 0.0)), tuple(states[signal]), end_s, greens[signal])
            for signal in self._signals
        )


def directions(signal: SignalNetwork, names: MovementNames) -> dict[str, str]:
    """By green state of a signal's programs, which traffic goes: `north-south through`, `east-west turns`, ..."""
    return {
        state: _direction(names, state)
        for program in signal.programs
        for state in (lasting_greens(signal, program) if not program.is_blinking else ())
    }


def _direction(names: MovementNames, state: str) -> str:
    shown = [group for group in names.groups if any(state[link] in "Gg" for link in group.links if link < len(state))]
    vehicles = [group for group in shown if group.kind != CROSSING]
    if not vehicles:
        return "pedestrians"
    through = [group for group in vehicles if group.kind == THROUGH]
    axes = {"north-south" if round(group.heading_deg / 90.0) % 2 == 0 else "east-west" for group in through or vehicles}
    return f"{axes.pop()} {'through' if through else 'turns'}" if len(axes) == 1 else SEVERAL_DIRECTIONS
