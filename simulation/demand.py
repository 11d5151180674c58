"""Demand of an episode: the city's own routes, varied by seed with SUMO's own options.

A policy that is trained on one morning overfits to it. So each episode has other vehicles
(a bootstrap sample: each vehicle of the routes 0, 1, 2, ... times, once on average), more or
fewer of them (`--scale`), at other times (`--random-depart-offset`), with other drivers
(`--seed`).
"""

import functools
import gzip
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import sumo_files
from city.errors import InputError

MIN_SCALE, MAX_SCALE = 0.8, 1.2
"""Bounds of the factor of the traffic volume."""
MAX_SHIFT_S = 60.0
"""Largest delay of a departure against the routes."""
MAX_SUMO_SEED = 1 << 30
_RIDERS = ("person", "personFlow", "container", "containerFlow")


@dataclass(frozen=True)
class Demand:
    """The demand of one simulation."""

    seed: int
    """SUMO's random seed."""
    scale: float = 1.0
    shift_s: float = 0.0
    resampled: bool = False
    """Whether the vehicles of the routes are a bootstrap sample."""

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options; `scale` multiplies the configuration's own. `folder`: where sampled route files are written."""
        # a configuration may set `random`, but paired simulations and resumed trainings need this seed
        options = ["--seed", str(self.seed), "--random", "false"]
        if self.scale != 1.0:
            options += ["--scale", f"{self.scale * _configured_scale(sumocfg):.6g}"]
        if self.shift_s:
            options += ["--random-depart-offset", f"{self.shift_s:g}"]
        if self.resampled:
            rng = np.random.default_rng([self.seed, 3])
            departures = _departures(tuple(sumo_files.listed_files(sumocfg, "route-files")))
            files = [_write_sample(elements, folder / f"{k}.rou.xml", rng) for k, elements in enumerate(departures)]
            if files:
                options += ["--route-files", ",".join(map(str, files))]
        return options


def _configured_scale(sumocfg: Path) -> float:
    text = sumo_files.options(sumocfg).get("scale", "1")
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{sumocfg}: its scale {text!r} is not a number; correct it") from None


@functools.cache
def _departures(routes: tuple[Path, ...]) -> list[list[tuple[str, str]]]:
    """The elements of each route file as XML text, split after the id of a vehicle or trip: (head, rest); others have no head.

    Empty if a file has persons: they may ride in a vehicle by its name, so no vehicle is sampled. Raises InputError.
    """
    files = []
    for path in routes:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                root = ET.parse(file).getroot()
        except (OSError, EOFError, ET.ParseError) as error:
            raise InputError(f"{path}: is not a readable route file ({error}); fix it, or its path in the .sumocfg") from None
        if any(element.tag in _RIDERS for element in root):
            return []
        elements = []
        for element in root:
            if element.tag == "include":
                # the sample lies in another folder
                element.set("href", str(path.parent / element.get("href", "")))
            text = ET.tostring(element, encoding="unicode")
            is_vehicle = element.tag in ("vehicle", "trip") and ' id="' in text
            id_end = text.index('"', text.index(' id="') + len(' id="')) if is_vehicle else 0
            elements.append((text[:id_end], text[id_end:]))
        files.append(elements)
    return files


def _write_sample(elements: Sequence[tuple[str, str]], target: Path, rng: np.random.Generator) -> Path:
    """Write a route file in which each vehicle occurs k times, k drawn from a Poisson distribution of mean 1."""
    counts = rng.poisson(1.0, len(elements)).tolist()
    with target.open("w", encoding="utf-8") as file:
        file.write("<routes>\n")
        for (head, rest), count in zip(elements, counts, strict=True):
            for k in range(count if head else 1):
                file.write(f"{head}#{k}{rest}" if k else head + rest)
        file.write("</routes>\n")
    return target


def varied(rng: np.random.Generator, varies: bool) -> Demand:
    """Draw the demand of a training episode; without `varies` only the drivers differ."""
    seed = int(rng.integers(1, MAX_SUMO_SEED))
    return Demand(seed, float(rng.uniform(MIN_SCALE, MAX_SCALE)), MAX_SHIFT_S, resampled=True) if varies else Demand(seed)
