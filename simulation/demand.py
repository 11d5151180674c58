"""Demand of an episode: the city's own routes, varied by seed with SUMO's own options.

A policy that is trained on one morning overfits to it. So each episode has other vehicles
(a bootstrap sample: each vehicle of the routes 0, 1, 2, ... times, once on average), more or
fewer of them (`--scale`), at other times (`--random-depart-offset`), with other drivers
(`--seed`).
"""

import functools
import re
import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from city import sumo_files
from city.errors import InputError

MIN_SCALE, MAX_SCALE = 0.8, 1.2
"""Bounds of the factor of the traffic volume."""
MAX_SHIFT_S = 60.0
"""Largest delay of a departure against the routes."""
MAX_SUMO_SEED = 1 << 30
_ATTRIBUTE = re.compile(rb"""([^\s=<>"']+)\s*=\s*(?:"[^"]*"|'[^']*')""")
_RIDERS = ("person", "personFlow", "container", "containerFlow")


class SimulatedDemand(Protocol):
    """The demand of one simulation: of the city's own routes, or another one."""

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options. `folder`: where route files are written."""


@dataclass(frozen=True)
class Demand:
    """The demand of one simulation."""

    seed: int
    """SUMO's random seed."""
    scale: float = 1.0
    shift_s: float = 0.0
    resampled: bool = False
    """The vehicles of the routes are a bootstrap sample."""
    route_file: Path | None = None
    """Routes in the place of the city's."""

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options; `scale` multiplies the configuration's own. `folder`: where sampled route files are
        written."""
        # a configuration may set `random`, but paired simulations and resumed trainings need this seed
        options = ["--seed", str(self.seed), "--random", "false"]
        if self.scale != 1.0:
            options += ["--scale", f"{self.scale * _configured_scale(sumocfg):.6g}"]
        if self.shift_s:
            options += ["--random-depart-offset", f"{self.shift_s:g}"]
        if self.resampled:
            files = self._write_samples(sumo_files.listed_files(sumocfg, "route-files"), folder)
            if files:
                options += ["--route-files", ",".join(map(str, files))]
        if self.route_file is not None:
            options += ["--route-files", str(self.route_file)]
        return options

    def _write_samples(self, routes: Sequence[Path], folder: Path) -> list[Path]:
        """Write a sample of every route file into a folder; [] if vehicles must not be sampled. Raises InputError."""
        files = [_elements(path) for path in routes]
        # a person or container may ride in a vehicle by its name
        if any(elements.has_riders for elements in files):
            return []
        rng = np.random.default_rng([self.seed, 3])
        vehicles = sum(int(elements.is_vehicle.sum()) for elements in files)
        while True:
            # a draw for every element, so that a seed's sample does not depend on the kinds of the elements
            counts = [
                np.where(elements.is_vehicle, rng.poisson(1.0, len(elements.is_vehicle)), 1) for elements in files
            ]
            sampled = sum(int(count[elements.is_vehicle].sum()) for count, elements in zip(counts, files, strict=True))
            # a sample of few vehicles may be empty, at once or after --scale; then another one is drawn
            if vehicles == 0 or sampled * min(self.scale, 1.0) >= 1:
                break
        samples = [folder / f"{k}.rou.xml" for k in range(len(routes))]
        for path, elements, count, sample in zip(routes, files, counts, samples, strict=True):
            _write_sample(path, elements, count, sample)
        return samples


def _configured_scale(sumocfg: Path) -> float:
    text = sumo_files.options(sumocfg).get("scale", "1")
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{sumocfg}: its scale {text!r} is not a number; correct it") from None


@dataclass(frozen=True)
class _Elements:
    """Positions of the n elements below a route file's root. Their text stays in the file: every process holds this
    index."""

    offsets: NDArray[np.int64]
    """[n + 1], offset of each element in the uncompressed file, and the end of the last one."""
    is_vehicle: NDArray[np.bool_]
    """[n], whether an element is a vehicle or trip with an id."""
    includes: dict[int, bytes]
    """Element's index -> the include with an absolute path, because the sample is in another folder."""
    has_riders: bool
    """True if the file has persons or containers."""


@functools.cache
def _elements(path: Path) -> _Elements:
    """Index the elements below a route file's root. Raises InputError."""
    offsets, is_vehicle, includes, depth, has_riders = array("q"), bytearray(), {}, 0, False
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, has_riders
        depth += 1
        if depth != 2:
            return
        if tag == "include":
            href = quoteattr(str(path.parent / attributes.get("href", "")))
            includes[len(is_vehicle)] = f"<include href={href}/>\n".encode("ascii", "xmlcharrefreplace")
        has_riders = has_riders or tag in _RIDERS
        offsets.append(parser.CurrentByteIndex)
        is_vehicle.append(tag in ("vehicle", "trip") and "id" in attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            offsets.append(parser.CurrentByteIndex)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        with sumo_files.opened(path) as file:
            parser.ParseFile(file)
    except (OSError, EOFError, ValueError, expat.ExpatError) as error:
        raise InputError(
            f"{path}: is not a readable route file ({error}); fix it, or its path in the .sumocfg"
        ) from None
    finally:
        # the handlers refer to the parser, and would keep the lists until a garbage collection
        parser.StartElementHandler = parser.EndElementHandler = None
    return _Elements(np.array(offsets), np.array(is_vehicle, bool), includes, has_riders)


def _write_sample(routes: Path, elements: _Elements, counts: NDArray[np.int64], target: Path) -> None:
    """Write a route file in which each element occurs as often as its count says. Raises InputError."""
    with sumo_files.opened(routes) as source, target.open("wb") as file:
        file.write(source.read(int(elements.offsets[0])))
        for k, (length, count) in enumerate(zip(np.diff(elements.offsets).tolist(), counts.tolist(), strict=True)):
            text = source.read(length)
            if count:
                file.write(elements.includes.get(k, text))
            if count > 1:
                ids = (each for each in _ATTRIBUTE.finditer(text) if each[1] == b"id")
                if (own := next(ids, None)) is None:
                    raise InputError(f"{routes}: has no id that can be read; write the file as UTF-8")
                id_end = own.end() - 1
                file.writelines(b"%b#%d%b" % (text[:id_end], copy, text[id_end:]) for copy in range(1, count))
        shutil.copyfileobj(source, file)


def varied(rng: np.random.Generator, varies: bool) -> Demand:
    """Draw the demand of a training episode; without `varies` only the drivers differ."""
    seed = int(rng.integers(1, MAX_SUMO_SEED))
    return (
        Demand(seed, float(rng.uniform(MIN_SCALE, MAX_SCALE)), MAX_SHIFT_S, resampled=True) if varies else Demand(seed)
    )
