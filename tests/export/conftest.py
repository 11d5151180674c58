"""Set-up of the exporter's tests."""

import shutil

import pytest

from tests.conftest import GRID


@pytest.fixture
def checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def empty_city(tmp_path, checkpoints):
    """A copy of the sample city without checkpoints, which a test may damage."""
    for name in ("city.toml", "grid.net.xml", "grid.sumocfg", "fixed_time.add.xml", "demand.rou.xml"):
        shutil.copy(GRID / name, tmp_path)
    return tmp_path
