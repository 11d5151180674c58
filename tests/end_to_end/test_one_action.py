"""A policy that never changes its green is named by export, check and evaluate."""

import contextlib
import io
import json
import re
import shutil

import numpy as np
import pytest

from city import config, network
from controller.check import main as check
from evaluation.__main__ import main as evaluate
from export.__main__ import main as export
from serving.embedded.config import ServerConfig
from signals import contract, movement_names, varied_observations
from tests.conftest import GRID
from tests.serving.conftest import running
from training import checkpoints

CITY = GRID / "city.toml"
WARNING = r"SA101: warning: gives one action, green 2 \(eastbound and westbound .*\), for all of 1000 or more varied observations"


@pytest.fixture(scope="module")
def exported(tmp_path_factory, grid_models):
    """(the folder of a city whose SA101 has one action, the lines of its export)."""
    folder = tmp_path_factory.mktemp("constant") / "grid"
    shutil.copytree(GRID, folder, ignore=shutil.ignore_patterns("models"))
    shutil.copytree(grid_models, folder / "models", ignore=shutil.ignore_patterns("SA101"))
    city = config.load(folder / "city.toml")
    built = contract.build(city, city.tls["SA101"], network.of_city(city))
    layers = [(np.zeros((built.observation.size, built.action.size), np.float32), np.eye(4, dtype=np.float32)[2])]
    checkpoints.write("tf2", folder / "one", built, layers, 1)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert export(["--city", str(folder / "city.toml"), "--tl", "SA101", "--model-path", str(folder / "one")]) == 0
    return folder, out.getvalue().splitlines()


def test_export_names_the_only_action_in_a_line_and_in_the_manifest(exported):
    folder, (first, second) = exported
    assert first.startswith("SA101: SA101-1 -> ") and re.match(WARNING, second)
    manifest = json.loads((folder / "models" / "SA101" / "1" / "assets.extra" / "export.json").read_text())
    assert manifest["parity"]["only_action"].startswith("green 2 (eastbound and westbound through")


def test_check_names_it_alone(exported, capsys):
    folder, _ = exported
    flags = ["--city", str(folder / "city.toml")]
    with running(ServerConfig(folder / "models", port=0, poll_s=0)) as server:
        for source in ([], ["--server", f"127.0.0.1:{server.port}"]):
            assert check([*flags, *source]) == 0
            text = " ".join(capsys.readouterr().out.split())
            assert re.search(WARNING, text) and text.count("gives one action") == 1, text


@pytest.mark.slow
def test_evaluate_names_the_arm_whose_tl_never_changed_its_green(exported, tmp_path, capsys):
    flags = (
        "--city",
        str(exported[0] / "city.toml"),
        "--tl",
        "SA101,SA102",
        "--arms",
        "served,fixed",
        "--seconds",
        "150",
    )
    assert evaluate([*flags, "--seeds", "2", "--out", str(tmp_path)]) == 0
    line = "warning: served: never changed its green in a simulation: SA101 (2 of 2)"
    assert line in capsys.readouterr().out.splitlines()
    assert line in (tmp_path / "report.html").read_text()
    simulations = json.loads((tmp_path / "results.json").read_text())["simulations"]
    assert [each["unchanged_tls"] for each in simulations] == [["SA101"], ["SA101"], [], []]


def test_actions_that_vary_or_have_no_other_are_no_warning():
    city = config.load(CITY)
    built = contract.build(city, city.tls["SA101"], network.of_city(city))
    x = varied_observations.varied(built)
    assert x.shape == (1000, 21) and (x[:, :4].sum(1) == 1).all() and (x[:, 4] == 1).all()
    assert len(np.unique(x[:, :4].argmax(1))) == 4 and (x[:, 5:].mean(1) < 0.02).any() and x.max() <= 1
    actions = np.zeros(1000, np.int64)
    assert varied_observations.only_action(built, actions) == "green 0 (GGgrrrGGgrrr)"
    names = movement_names.of_city(city, network.of_city(city))
    assert varied_observations.only_action(built, actions, names).startswith("green 0 (northbound and southbound ")
    actions[7] = 1
    assert varied_observations.only_action(built, actions) == ""
    kc = contract.build(city, city.tls["SA103"], network.of_city(city))
    values = np.full((1000, 1), 0.25, np.float32)
    assert varied_observations.only_action(kc, values) == "0.25"
    values[3] = 0.26
    assert varied_observations.only_action(kc, values) == ""
