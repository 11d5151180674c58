"""What the signals of one simulation showed, as SUMO itself writes it; for the report's time-space bands."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SignalBand:
    """What one signal showed."""

    signal: str
    x_m: float
    y_m: float
    states: tuple[tuple[float, str], ...]
    """(second from which on it was shown, state)."""
    end_s: float
    """When the recording ends."""


class SignalRecording:
    """The signals of one simulation, recorded by SUMO's SaveTLSStates."""

    def __init__(self, folder: Path, signals: Sequence[str]) -> None:
        """`folder`: of the recording's files."""
        self._signals = signals
        self._output = folder / "signals.xml"
        self._position: dict[str, tuple[float, float]] = {}
        self.additional_file = folder / "signals.add.xml"
        """To be loaded by SUMO."""
        root = ET.Element("additional")
        for signal in signals:
            ET.SubElement(root, "timedEvent", type="SaveTLSStates", source=signal, dest=str(self._output))
        ET.ElementTree(root).write(self.additional_file)

    def locate(self, api: Any) -> None:
        """Read where the signals are: at the end of their first lane."""
        for signal in self._signals:
            lane = api.trafficlight.getControlledLanes(signal)[0]
            self._position[signal] = tuple(api.lane.getShape(lane)[-1])[:2]

    def bands(self) -> tuple[SignalBand, ...]:
        """What was shown; to be called after the simulation has ended."""
        states: dict[str, list[tuple[float, str]]] = {signal: [] for signal in self._signals}
        root, end_s = None, 0.0
        for event, element in ET.iterparse(self._output, ("start", "end")):
            root = element if root is None else root
            if event == "end" and element.tag == "tlsState":
                shown, state = states[element.attrib["id"]], element.attrib["state"]
                end_s = float(element.attrib["time"]) + 1.0  # written every second
                if not shown or shown[-1][1] != state:
                    shown.append((end_s - 1.0, state))
                root.clear()
        return tuple(SignalBand(signal, *self._position[signal], tuple(states[signal]), end_s) for signal in self._signals)
