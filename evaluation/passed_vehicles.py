"""Vehicles that passed the lanes of each TL in one simulation, and the time that they lost, from SUMO's laneData."""

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path


class PassedVehicles:
    """Counts the vehicles that leave the roads towards each TL, by lane."""

    def __init__(self, folder: Path, roads: Mapping[str, Sequence[str]]) -> None:
        """Write the additional file with which SUMO counts.

        Args:
            folder: folder of the additional file and the output.
            roads: TL -> roads that end at its signals.
        """
        self._roads, self._output = roads, folder / "passed.xml"
        self.additional_file = folder / "passed.add.xml"
        """SUMO must load this file."""
        self.by_lane: Counter[str] = Counter()
        """Lane -> vehicles that left it over its end, after `read`."""
        self.lost_s: defaultdict[str, float] = defaultdict(float)
        """Lane -> vehicle seconds lost on it, after `read`."""
        root = ET.Element("additional")
        edges = " ".join(sorted({road for of_tl in roads.values() for road in of_tl}))
        if edges:
            ET.SubElement(
                root, "laneData", id="greenserve_passed", file=str(self._output), edges=edges, excludeEmpty="true"
            )
        ET.ElementTree(root).write(self.additional_file)

    def read(self) -> dict[str, int]:
        """TL -> vehicles that left its roads, once for each signal passed. Call it after the simulation has ended."""
        by_road: Counter[str] = Counter()
        if self._output.exists():
            for _, element in ET.iterparse(self._output):
                if element.tag == "edge":
                    for lane in element:
                        self.by_lane[lane.attrib["id"]] += int(lane.attrib["left"])
                        self.lost_s[lane.attrib["id"]] += float(lane.get("timeLoss", 0.0))
                        by_road[element.attrib["id"]] += int(lane.attrib["left"])
        return {tl: sum(by_road[road] for road in roads) for tl, roads in self._roads.items()}
