"""Demand of an episode: the city's own routes, varied by seed with SUMO's own options.

A policy that is trained on one morning learns that morning. So each episode has other
vehicles (each of the routes' vehicles 0, 1, 2, ... times, once on average: a bootstrap
sample), more or fewer of them (`--scale`), at other moments (`--random-depart-offset`),
with other drivers (`--seed`).
"""

import functools
import gzip
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MIN_SCALE, MAX_SCALE = 0.8, 1.2
"""Factors of the number of vehicles."""
MAX_SHIFT_S = 60.0
"""A vehicle departs up to this much later than in the routes."""
MAX_SUMO_SEED = 1 << 30
_RIDERS = ("person", "personFlow", "container", "containerFlow")


@dataclass(frozen=True)
class Demand:
    """The demand of one simulation."""

    seed: int
    """SUMO's."""
    scale: float = 1.0
    shift_s: float = 0.0
    resampled: bool = False
    """Whether the vehicles of the routes are a bootstrap sample."""

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options; the configuration's own scale is multiplied. `folder`: for route files."""
        # a configuration may ask for a random seed, but pairs and resumed trainings need this one
        options = ["--seed", str(self.seed), "--random", "false"]
        if self.scale != 1.0:
            options += ["--scale", f"{self.scale * _own_scale(sumocfg):.6g}"]
        if self.shift_s:
            options += ["--random-depart-offset", f"{self.shift_s:g}"]
        if self.resampled:
            rng = np.random.default_rng([self.seed, 3])
            files = [_resampled(path, folder / f"{k}.rou.xml", rng) for k, path in enumerate(_route_files(sumocfg))]
            if files:
                options += ["--route-files", ",".join(map(str, files))]
        return options


@functools.cache
def _own_scale(sumocfg: Path) -> float:
    for _, element in ET.iterparse(sumocfg):
        if element.tag == "scale":
            return float(element.get("value", "1"))
    return 1.0


@functools.cache
def _route_files(sumocfg: Path) -> tuple[Path, ...]:
    for _, element in ET.iterparse(sumocfg):
        if element.tag in ("route-files", "r"):
            names = (element.get("value") or element.get("v") or "").split(",")
            return tuple(sumocfg.resolve().parent / name.strip() for name in names if name.strip())
    return ()


@dataclass(frozen=True)
class _Departures:
    """A route file, ready to be written with other vehicles."""

    elements: tuple[tuple[str, str], ...]
    """The file's elements in order, as XML: (up to the end of the id of a vehicle or trip, the rest); ("", all) of others."""
    has_riders: bool


@functools.cache
def _departures(routes: Path) -> _Departures:
    elements = []
    has_riders = False
    with gzip.open(routes) if routes.suffix == ".gz" else routes.open("rb") as file:
        for element in ET.parse(file).getroot():
            has_riders = has_riders or element.tag in _RIDERS
            text = ET.tostring(element, encoding="unicode")
            # at the second quote after the attribute's name
            cut = text.index('"', text.index(' id="') + 5) if element.tag in ("vehicle", "trip") else 0
            elements.append((text[:cut], text[cut:]))
    return _Departures(tuple(elements), has_riders)


def _resampled(routes: Path, target: Path, rng: np.random.Generator) -> Path:
    """A route file with each vehicle as often as a Poisson number of mean 1 says; with persons, the file as it is.

    A person may ride in a vehicle by its name, so vehicles beside persons are not sampled.
    """
    departures = _departures(routes)
    if departures.has_riders:
        return routes
    counts = rng.poisson(1.0, len(departures.elements)).tolist()
    with target.open("w", encoding="utf-8") as file:
        file.write("<routes>\n")
        for (head, rest), count in zip(departures.elements, counts, strict=True):
            for k in range(count if head else 1):
                file.write(f"{head}#{k}{rest}" if k else head + rest)
        file.write("</routes>\n")
    return target


def varied(rng: np.random.Generator, varies: bool) -> Demand:
    """The demand of a training episode; without `varies` only the drivers differ."""
    seed = int(rng.integers(1, MAX_SUMO_SEED))
    return Demand(seed, float(rng.uniform(MIN_SCALE, MAX_SCALE)), MAX_SHIFT_S, resampled=True) if varies else Demand(seed)
