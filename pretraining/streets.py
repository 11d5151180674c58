"""Many streets instead of one city: their settings, random demand on them, and their files as bytes for processes that
share no folder with this one."""

import contextlib
import functools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from city import config, network, sumo_files
from city.errors import InputError
from evaluation.policy_models import with_street_dialect
from pretraining.synthetic.demand import RandomDemand
from pretraining.synthetic.streets import generate
from signals.contract import controllable
from simulation import model_files
from simulation.demand import MAX_SUMO_SEED
from simulation.executors import Executor

SYNTHETIC, PLAIN = "synthetic", "plain"
"""Names of generated streets, instead of a folder: random ones, and one of each plain kind."""
SUMOCFG, CITY_TOML = "street.sumocfg", "city.toml"
"""Names of the configuration in a street's folder, and of a description of its own."""
INTERVALS_S, INTERVAL_SHARES = (5, 3, 4, 6, 8, 10), (0.7, 0.06, 0.06, 0.06, 0.06, 0.06)
MIN_GREENS_S, MIN_GREEN_SHARES = (5.0, 4.0, 7.0, 10.0), (0.7, 0.1, 0.1, 0.1)
PATH_RED_SHARE = 0.5
"""Share of the streets with an all-red by the junction's size; the others have that of their programs."""
MAX_KEPT_STREETS = 200
"""Demands, and packed streets, that a process keeps in memory."""
INPUTS = ("net-file", "additional-files")
"""Options of a .sumocfg whose files a simulation with random demand reads."""
MAX_STANDING_S = 60.0
"""SUMO's vehicles may wait for each other for ever, whatever the signals show, where drivers would not: on short roads,
each at the end of the lane that the other needs, and inside a junction, each before the same exit (eclipse-sumo/sumo,
issue 13592)."""


@dataclass(frozen=True)
class RandomTraffic:
    """A random demand of one simulation, with the interface of `simulation.demand.Demand`."""

    net_file: Path
    seed: int
    vehicles_per_lane_h: float | None
    """Demand by lane of the sources; None: the street's own vehicles."""
    seconds: float

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options. `folder`: where the route file is written.

        Vehicles are not removed from a gridlock. But one that has stood at the end of a wrong lane for MAX_STANDING_S
        continues behind the junction, and one that has stood inside a junction for that time does not hold up others
        there.
        """
        options = []
        if self.vehicles_per_lane_h is not None:
            routes = folder / "demand.rou.xml"
            rng = np.random.default_rng([self.seed, 4])
            _demand_of(self.net_file).write(routes, rng, self.vehicles_per_lane_h, self.seconds)
            options = ["--route-files", str(routes)]
        return [
            "--seed", str(self.seed % MAX_SUMO_SEED), "--random", "false", *options,
            "--time-to-teleport", "-1", "--time-to-teleport.highways", f"{MAX_STANDING_S:g}",
            "--time-to-teleport.highways.min-speed", "0", "--ignore-junction-blocker", f"{MAX_STANDING_S:g}",
        ]  # fmt: skip


_demand_of = functools.lru_cache(MAX_KEPT_STREETS)(RandomDemand)


def synthetic(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Generate synthetic streets, or find those of an earlier run. Raises InputError, ProgramFailed."""
    # threads: SUMO's tools, which run in processes of their own, take most of the time
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        streets = pool.map(functools.partial(generate, folder), seeds)
        try:
            return list(tqdm(streets, total=len(seeds), desc="streets", unit="street", disable=None, leave=False))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def of_folder(folder: Path, report: Callable[[str], None]) -> list[Path]:
    """The streets of a folder, of --streets: each of its folders with SUMOCFG and a signal; reports those left out.

    Raises InputError without any.
    """
    if not folder.is_dir():
        raise InputError(f"--streets {folder}: no such folder; pass a folder of streets, or {SYNTHETIC}")
    usable, reasons = [], []
    for street in sorted(path.parent for path in folder.glob(f"*/{SUMOCFG}")):
        try:
            city_of(street)
        except InputError as error:
            reasons.append(str(error))
        else:
            usable.append(street)
    if not usable:
        reason = f"; {reasons[0]}" if reasons else ""
        raise InputError(f"--streets {folder}: none of its folders has a {SUMOCFG} with a signal to control{reason}")
    for left_out in reasons:
        report(f"left out: {left_out}")
    return usable


def has_own_demand(folder: Path) -> bool:
    """True for a street with a city.toml, from which its TLs and times are; its demand is that of its .sumocfg."""
    return (folder / CITY_TOML).exists()


def city_of(folder: Path) -> config.City:
    """A street as a city of TLs of the street dialect: its city.toml, or all signals, with times drawn by its name.

    Raises InputError.
    """
    is_own = has_own_demand(folder)
    city = with_street_dialect(config.load(folder / CITY_TOML)) if is_own else _drawn(folder)
    street = network.of_city(city)
    fit, _ = controllable(city, city.tls, street)
    if not fit:
        raise InputError(f"{folder / SUMOCFG}: has no signal that can be controlled; leave it out")
    city = replace(city, tls={tl: city.tls[tl] for tl in fit})
    if is_own:
        return city
    return replace(city, safety=replace(city.safety, max_red_s=config.STREET_MAX_RED_S))


def _drawn(folder: Path) -> config.City:
    """A street's signals as TLs, with drawn times. Raises InputError."""
    rng = np.random.default_rng(list(folder.name.encode()))
    interval_s = int(rng.choice(INTERVALS_S, p=INTERVAL_SHARES))
    min_green_s = float(rng.choice(MIN_GREENS_S, p=MIN_GREEN_SHARES))
    safety = config.Safety(all_red_s=config.COMPUTED if rng.random() < PATH_RED_SHARE else None)
    tls = {
        signal: config.TL((signal,), "street", signal, delta_time_s=interval_s, min_green_s=min_green_s)
        for signal in network.of_sumocfg(folder / SUMOCFG).signals
    }
    return config.City(folder / CITY_TOML, config.Network(sumocfg=folder / SUMOCFG), tls=tls, safety=safety)


@dataclass(frozen=True)
class PackedStreet:
    """The files of a street."""

    name: str
    """Name of its folder, by which its times are drawn."""
    archive: bytes


StreetFiles = Path | PackedStreet
"""A street's folder, or its files."""


def for_jobs(executor: Executor, folder: Path) -> StreetFiles:
    """A street as the jobs of an executor need it. Raises InputError."""
    return pack(folder) if executor.moves_files else folder


@functools.lru_cache(MAX_KEPT_STREETS)
def pack(folder: Path) -> PackedStreet:
    """The files that a street's SUMOCFG names. Raises InputError if one is missing or outside of the folder."""
    sumocfg = folder / SUMOCFG
    files = {SUMOCFG: sumocfg}
    options = list(INPUTS)
    if has_own_demand(folder):
        files[CITY_TOML] = folder / CITY_TOML
        options.append("route-files")
    for path in (path for option in options for path in sumo_files.listed_files(sumocfg, option)):
        # by its name, not where a link leads: files of links are packed
        place = Path(os.path.normpath(path))
        if not place.is_relative_to(folder.resolve()):
            raise InputError(
                f"{sumocfg}: names {place}, which other machines do not have; copy it into {folder}, or leave --ray out"
            )
        files[str(place.relative_to(folder.resolve()))] = path
    try:
        return PackedStreet(folder.name, zlib.compress(model_files.pack(files)))
    except OSError as error:
        raise InputError(
            f"{sumocfg}: {error.filename} cannot be read: {error.strerror}; fix its path in the .sumocfg"
        ) from None


@contextlib.contextmanager
def unpacked(street: StreetFiles) -> Iterator[Path]:
    """The folder of a street; that of a packed one is temporary."""
    if isinstance(street, Path):
        yield street
        return
    with tempfile.TemporaryDirectory(prefix="greenserve-") as scratch:
        folder = Path(scratch) / street.name
        model_files.unpack(zlib.decompress(street.archive), folder)
        yield folder
