"""The signal states of one simulation, as SUMO writes them, for the report's time-space diagram."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SignalBand:
    """The states of one signal over time, and its position."""

    signal: str
    x_m: float
    y_m: float
    states: tuple[tuple[float, str], ...]
    """(second at which it began, state)."""
    end_s: float
    """Second at which the recording ends."""


class SignalRecording:
    """The signals of one simulation, recorded by SUMO's SaveTLSStates."""

    def __init__(self, folder: Path, signals: Sequence[str]) -> None:
        """Write an additional file that lets SUMO record the signals. `folder`: of the recording's files."""
        self._signals = signals
        self._output = folder / "signals.xml"
        self._position: dict[str, tuple[float, float]] = {}
        self.additional_file = folder / "signals.add.xml"
        """SUMO must load this file."""
        root = ET.Element("additional")
        for signal in signals:
            ET.SubElement(root, "timedEvent", type="SaveTLSStates", source=signal, dest=str(self._output))
        ET.ElementTree(root).write(self.additional_file)

    def locate(self, api: Any) -> None:
        """Read the signals' positions: the end of their first lane."""
        for signal in self._signals:
            lane = api.trafficlight.getControlledLanes(signal)[0]
            self._position[signal] = tuple(api.lane.getShape(lane)[-1])[:2]

    def bands(self) -> tuple[SignalBand, ...]:
        """The recorded states. Call it after the simulation has ended."""
        states: dict[str, list[tuple[float, str]]] = {signal: [] for signal in self._signals}
        root, end_s = None, 0.0
        for event, element in ET.iterparse(self._output, ("start", "end")):
            root = element if root is None else root
            if event == "end" and element.tag == "tlsState":
                signal_states, state = states[element.attrib["id"]], element.attrib["state"]
                begin_s = float(element.attrib["time"])
                end_s = begin_s + 1.0  # SUMO writes a state every second
                if not signal_states or signal_states[-1][1] != state:
                    signal_states.append((begin_s, state))
                root.clear()
        return tuple(
            SignalBand(signal, *self._position[signal], tuple(states[signal]), end_s) for signal in self._signals
        )
