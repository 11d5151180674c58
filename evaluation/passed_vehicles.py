"""Number of vehicles that passed each TL in one simulation, from SUMO's edgeData output."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path


class PassedVehicles:
    """Counts the vehicles that left the roads towards each TL."""

    def __init__(self, folder: Path, roads: Mapping[str, Sequence[str]]) -> None:
        """Write the additional file with which SUMO counts.

        Args:
            folder: folder of the additional file and the output.
            roads: TL -> roads that end at its signals.
        """
        self._roads, self._output = roads, folder / "passed.xml"
        self.additional_file = folder / "passed.add.xml"
        """SUMO must load this file."""
        root = ET.Element("additional")
        edges = " ".join(sorted({road for of_tl in roads.values() for road in of_tl}))
        if edges:
            ET.SubElement(
                root, "edgeData", id="greenserve_passed", file=str(self._output), edges=edges, excludeEmpty="true"
            )
        ET.ElementTree(root).write(self.additional_file)

    def by_tl(self) -> dict[str, int]:
        """TL -> vehicles that left its roads, once for each signal passed. Call it after the simulation has ended."""
        by_road: Counter[str] = Counter()
        if self._output.exists():
            for _, element in ET.iterparse(self._output):
                if element.tag == "edge":
                    by_road[element.attrib["id"]] += int(element.attrib["left"])
        return {tl: sum(by_road[road] for road in roads) for tl, roads in self._roads.items()}
