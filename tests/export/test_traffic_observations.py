"""Recorded observations in the exporter's parity check."""

import json

import numpy as np
import pytest

from export.__main__ import main
from export.graphs.graph_actor import PARITY_OBSERVATIONS
from tests.conftest import GRID

CITY = str(GRID / "city.toml")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "observations"
    folder.mkdir()
    np.save(folder / "SA101.npy", np.random.default_rng(1).random((7, 21), np.float32))
    return folder


def export(tmp_path, folder, tl="SA101"):
    return main(["--city", CITY, "--tl", tl, "--models-dir", str(tmp_path / "models"), "--observations", str(folder)])


def test_recorded_observations_are_compared_too(tmp_path, folder):
    assert export(tmp_path, folder) == 0
    (manifest,) = (tmp_path / "models" / "SA101").glob("*/assets.extra/export.json")
    assert json.loads(manifest.read_text())["parity"]["observations"] == PARITY_OBSERVATIONS + 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 4), np.float32), "they have 4 values each, and the actor takes"),
        (np.zeros((3, 21)), "is not an array float32 [n, O]"),
        (np.full((3, 21), np.nan, np.float32), "holds values that are not finite"),
        (np.zeros((0, 21), np.float32), "holds 0 observations"),
        (np.array([object()]), "is not an array of NumPy"),
    ],
    ids=["other size", "float64", "nan", "none", "objects"],
)
def test_observations_that_do_not_fit_are_refused_in_one_line(tmp_path, folder, values, message, capsys):
    np.save(folder / "SA101.npy", values, allow_pickle=True)
    assert export(tmp_path, folder) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("models/SA101/*"))


def test_folder_without_observations_of_the_tls_is_refused(tmp_path, folder, capsys):
    assert export(tmp_path, folder, "SA102") == 2
    assert "holds no observations of SA102" in capsys.readouterr().err
