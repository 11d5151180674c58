"""Networks as engineers have them: real programs in an additional file, one signal that no policy can control."""

import json
import re

import numpy as np
import pytest

from city import config, network
from controller.__main__ import main as control
from controller.check import main as check
from evaluation.__main__ import main as evaluate
from export import training_record
from export.__main__ import main as export
from greenserve.__main__ import main as greenserve
from rounds.__main__ import main as rounds
from serving.contract import from_saved_model
from signals import contract
from tests.conftest import GRID

PARTS = ("kernel", "bias")
ODD = "A1"
"""The signal whose real program shows foes green."""


def logic(signal, states):
    phases = "".join(f'<phase duration="20" state="{state}"/>' for state in states)
    return f'<tlLogic id="{signal}" type="static" programID="real" offset="0">{phases}</tlLogic>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sample city's street with real programs; its configuration asks for statistics."""
    folder = tmp_path_factory.mktemp("street")
    street = network.read(GRID / "grid.net.xml")
    logics = []
    for signal in street.signals.values():
        states = [phase.state for phase in signal.plan.phases]
        if signal.id == ODD:
            states = ["G" * len(states[0]), "y" * len(states[0]), states[0]]
        elif signal.id == "A0":
            # each green of the guess in two steps, the second one without its first link
            states = [part for s in states for part in ((s, re.sub("[Gg]", "r", s, count=1)) if "y" not in s else (s,))]
        logics.append(logic(signal.id, states))
    (folder / "real.add.xml").write_text(f"<additional>{''.join(logics)}</additional>")
    (folder / "street.sumocfg").write_text(
        f'<configuration><input><net-file value="{GRID / "grid.net.xml"}"/><route-files '
        f'value="{GRID / "demand.rou.xml"}"/>'
        '<additional-files value="real.add.xml"/></input><time><begin value="0"/><end value="60"/></time>'
        '<report><verbose value="true"/><duration-log.statistics value="true"/></report></configuration>'
    )
    return folder


@pytest.fixture(scope="module")
def city_toml(folder):
    assert (
        greenserve(["city", "init", "--sumocfg", str(folder / "street.sumocfg"), "--out", str(folder / "city.toml")])
        == 0
    )
    return folder / "city.toml"


def with_every_signal(folder, city_toml):
    path = folder / "all.toml"
    path.write_text(city_toml.read_text() + f'\n[tl.ODD]\nsignals = ["{ODD}"]\ndialect = "sumo-rl"\n')
    return path


def test_city_init_writes_the_running_program_and_leaves_out_an_odd_signal(city_toml):
    city = config.load(city_toml)
    assert city.tls["A0"].program == "real" and city.tls["B0"].program is None, (
        "its greens are those of the first program"
    )
    assert ODD not in city.tls
    text = city_toml.read_text()
    assert "# Left out: A1: signal A1: program " in text
    assert 'program = "real"  # it runs at the begin time; a policy of sumo-rl is trained on the first, 0' in text


def test_baselines_choose_from_the_program_that_runs(city_toml):
    city = config.load(city_toml)
    street = network.of_city(city)
    made = contract.build(city, city.tls["A0"], street)
    assert made.signals[0].program_id == "real" and made.action.size == 8
    of_sumo_rl = contract.build(city, config.TL(("A0",), "sumo-rl", "A0"), street, takes_first=True)
    assert of_sumo_rl.signals[0].program_id == "0" and of_sumo_rl.action.size == 4


def test_evaluation_goes_on_without_an_odd_signal_and_names_it_once(folder, city_toml, capfd):
    flags = ["--city", str(with_every_signal(folder, city_toml)), "--arms", "fixed,max-pressure", "--seeds", "1"]
    assert evaluate(flags) == 0
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["max-pressure", "fixed"]
    assert "Statistics" not in out and "Loading" not in out, "SUMO's own text"
    (line,) = (line for line in err.splitlines() if "left on its own program" in line)
    assert "ODD: signal A1: program" in line and "foes of the network" in line
    assert "not of the network's first: A0 (program 'real', not '0')" in err
    assert evaluate([*flags, "--strict"]) == 2
    assert capfd.readouterr().err.startswith("error: ODD: signal A1: program")
    assert evaluate([*flags, "--tl", "ODD"]) == 2, "nothing is left"
    assert capfd.readouterr().err.startswith("error: ODD: signal A1: program")


def test_check_names_a_signal_that_stays_on_its_own_program(folder, city_toml, capsys):
    flags = ["--city", str(with_every_signal(folder, city_toml)), "--infer-tl", "ODD"]
    assert check(flags) == 0
    assert "left on its own program: ODD: signal A1" in " ".join(capsys.readouterr().out.split())
    assert check([*flags, "--strict"]) == 2
    strict = " ".join(capsys.readouterr().out.split())
    assert "ODD: signal A1: program" in strict and "left on its own program" not in strict


def test_export_takes_the_program_that_the_training_recorded_and_else_sumo_rls(folder, city_toml, tmp_path, capsys):
    city = tmp_path / "city.toml"
    street = f'[network]\nsumocfg = "{folder / "street.sumocfg"}"\n[training]\nmodel_path = "."\n'
    city.write_text(street + '[tl.A0]\nsignals = ["A0"]\ndialect = "sumo-rl"\n')
    observed = contract.build(config.load(city), config.load(city).tls["A0"], network.of_city(config.load(city)))
    sizes = {"dense": (observed.observation.size, 8), "dense_1": (8, observed.action.size)}
    arrays = {
        f"actor/{name}/{part}": np.ones(size[k:], np.float32)
        for name, size in sizes.items()
        for k, part in enumerate(PARTS)
    }
    np.savez(tmp_path / "A0_trial_1.npz", **arrays)
    flags = ["--city", str(city), "--tl", "A0", "--models-dir", str(tmp_path / "models")]
    assert export(flags) == 2
    of_first_program = capsys.readouterr().err
    assert "inputs" in of_first_program or "observation" in of_first_program, of_first_program
    training_record.write(tmp_path, 1, {"A0": training_record.TrainingRecord({"A0": "real"}, 5.0)})
    assert export(flags) == 0, capsys.readouterr().err
    (signal,) = from_saved_model(tmp_path / "models" / "A0" / "1").signals
    assert signal.program_id == "real"
    training_record.write(tmp_path, 1, {"A0": training_record.TrainingRecord({"A0": "0"}, 5.0)})
    capsys.readouterr()
    assert export([*flags, "--overwrite"]) == 2 and capsys.readouterr().err == of_first_program


def test_control_goes_on_without_an_odd_signal_unless_it_is_strict(folder, city_toml, capsys, caplog):
    flags = [
        "--policy",
        "max-pressure",
        "--libsumo",
        "--end",
        "20",
        "--city",
        str(with_every_signal(folder, city_toml)),
    ]
    assert control([*flags, "--strict"]) == 2
    assert capsys.readouterr().err.startswith("error: ODD: signal A1: program")
    assert control(flags) == 0
    (line,) = (record.getMessage() for record in caplog.records if "left on its own program" in record.getMessage())
    assert "ODD: signal A1: program" in line


def test_city_without_tables_has_the_same_signals_evaluated_and_controlled(folder, tmp_path, capfd, caplog):
    caplog.set_level("INFO", "controller")
    city = tmp_path / "city.toml"
    city.write_text(f'[network]\nsumocfg = "{folder / "street.sumocfg"}"\n')
    tls = sorted(network.of_city(config.load(city)).signals.keys() - {ODD})
    flags = ["--city", str(city), "--arms", "max-pressure", "--seeds", "1", "--out", str(tmp_path)]
    assert evaluate(flags) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(results["conditions"]["tls"]) == tls == sorted(results["delay_by_tl"]["max-pressure"])
    assert control(["--city", str(city), "--policy", "max-pressure", "--libsumo", "--end", "20"]) == 0
    log = [record.getMessage() for record in caplog.records]
    assert any(line.startswith(f"controlling {', '.join(results['conditions']['tls'])} from second 0") for line in log)
    for lines in (capfd.readouterr().err.splitlines(), log):
        (line,) = (line for line in lines if "left on its own program" in line)
        assert f"{ODD}: signal {ODD}: program" in line
    assert evaluate([*flags, "--strict"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"error: {ODD}: signal {ODD}: program")


@pytest.mark.slow
def test_rounds_go_on_without_an_odd_signal_unless_they_are_strict(folder, tmp_path, capsys):
    city = tmp_path / "city.toml"
    tls = (("ODD", ODD), ("A0", "A0"), ("B0", "B0"))
    tables = [f'[tl.{tl}]\nsignals = ["{signal}"]\ndialect = "sumo-rl"\n' for tl, signal in tls]
    city.write_text(f'[network]\nsumocfg = "{folder / "street.sumocfg"}"\n' + "".join(tables))
    flags = ["--city", str(city), "--groups", "ODD;A0,B0", "--rounds", "1", "--seeds", "2", "--tasks", "1"]
    flags += ["--episodes", "1", "--evaluate-every", "1", "--held-out", "1", "--out", str(tmp_path / "out")]
    assert rounds(flags) == 0
    out, err = capsys.readouterr()
    (line,) = (line for line in err.splitlines() if "left on its own program" in line)
    assert "ODD: signal A1: program" in line
    (decision,) = json.loads((tmp_path / "out" / "rounds.json").read_text())["rounds"]
    assert all(simulation["delay_by_tl"].keys() == {"A0", "B0"} for simulation in decision["simulations"])
    assert [line.partition(":")[0] for line in out.splitlines()] == ["A0", "B0"], "the rounds' result"
    assert rounds([*flags, "--resume", "--strict"]) == 2
    assert capsys.readouterr().err.startswith("error: ODD: signal A1: program")
