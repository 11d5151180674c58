"""Max-pressure controls a city without a model and without a model server."""

import json
import logging

import pytest

from controller.__main__ import main
from controller.config import parse
from tests.conftest import GRID
from tests.end_to_end.programs import CITY
from tests.sample_city import DISTRICTS, districts, write_city


@pytest.fixture
def network_only(tmp_path):
    (tmp_path / "city.toml").write_text(f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n')
    return str(tmp_path / "city.toml")


@pytest.mark.parametrize("policy", ["max-pressure", "greedy"])
def test_a_baseline_drives_all_tls_without_a_server(policy, tmp_path, caplog, grid_city):
    caplog.set_level(logging.INFO, "controller")
    flags = ["--policy", policy, "--end", "00:02:00", "--summary", str(tmp_path / "s.json")]
    assert main(["--city", CITY, "--libsumo", *flags]) == 0
    log = [record.getMessage() for record in caplog.records]
    assert f"controlling {', '.join(grid_city.tls)} from second 0, by {policy}, without models" in log
    assert any(f"second 120: 8 {policy.upper()}; " in line for line in log)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["policy"] == policy and summary["second"] == 120
    assert summary["decisions"] == 8 * 24
    assert summary["missing_answers"] == summary["fallbacks"] == summary["alarms"] == summary["rejections"] == 0


def test_city_without_tls_has_all_its_signals_driven_by_max_pressure(network_only, grid_street):
    run = parse(["--city", network_only, "--policy", "max-pressure", "--clients", "2"])
    assert run.guard and run.policy == "max-pressure"
    assert [run.city.tls[tl].signals for tl in run.infer_tls] == [(signal,) for signal in grid_street.signals]


def test_city_with_districts_is_driven_without_their_servers(tmp_path):
    city = write_city(tmp_path, more=districts("127.0.0.1:1", "127.0.0.1:1"))
    flags = ["--city", city, "--policy", "max-pressure"]
    assert parse(flags).infer_tls == (*DISTRICTS["north"], *DISTRICTS["south"])
    assert parse([*flags, "--district", "north"]).infer_tls == DISTRICTS["north"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--server", "127.0.0.1:1"],
        ["--fleet", ""],
        ["--model-number", "3"],
        ["--version-label", "x"],
        ["--tls-ca", "x"],
    ],
)
def test_flags_of_the_model_server_are_refused_with_max_pressure(capsys, flags):
    assert main(["--city", CITY, "--policy", "max-pressure", *flags]) == 2
    assert f"error: {flags[0]} is for served policies; leave it out" in capsys.readouterr().err


def test_network_without_signals_is_refused(tmp_path, capsys):
    (tmp_path / "a.net.xml").write_text('<net><junction id="J" type="priority" x="0" y="0"/></net>')
    (tmp_path / "city.toml").write_text('[network]\nnet = "a.net.xml"\n')
    assert main(["--city", str(tmp_path / "city.toml"), "--policy", "max-pressure"]) == 2
    assert "a.net.xml: has no signal; correct [network] of" in capsys.readouterr().err
