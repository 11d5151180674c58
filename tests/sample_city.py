"""Copies of the sample city with other settings or files."""

import json
import shutil
from pathlib import Path

from tests.conftest import GRID

FILES = ("city.toml", "grid.sumocfg", "fixed_time.add.xml", "demand.rou.xml", "grid.net.xml")

DISTRICTS = {"north": ("SA101", "SA102", "SA103", "SA104"), "south": ("SA105", "SA106", "SA107", "SA108")}


def districts(*addresses: str) -> str:
    """Tables of city.toml for the districts, with the addresses of their servers."""
    return "".join(
        f'\n[serving.districts.{name}]\naddress = "{address}"\ntls = {json.dumps(tls)}\n'
        for (name, tls), address in zip(DISTRICTS.items(), addresses, strict=True)
    )


def write_city(folder: Path, *changes: tuple[str, str], more: str = "") -> str:
    """The path of a city.toml of the same street.

    Args:
        folder: where it is written.
        changes: texts of city.toml, each with the one in its place.
        more: what follows the last table.
    """
    text = (GRID / "city.toml").read_text()
    for before, after in (('"grid.sumocfg"', f'"{GRID / "grid.sumocfg"}"'), *changes):
        assert before in text, before
        text = text.replace(before, after)
    (folder / "city.toml").write_text(text + more)
    return str(folder / "city.toml")


def copy_city(folder: Path, *additional: str) -> str:
    """The path of a city.toml whose street is copied too, with further additional files of that folder."""
    for name in FILES:
        shutil.copy(GRID / name, folder)
    sumocfg = folder / "grid.sumocfg"
    named = 'fixed_time.add.xml"'
    assert named in sumocfg.read_text()
    sumocfg.write_text(sumocfg.read_text().replace(named, ",".join(("fixed_time.add.xml", *additional)) + '"'))
    return str(folder / "city.toml")
