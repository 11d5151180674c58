"""`greenserve city init`: a first city.toml for a network."""

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import config, init, network
from city.names import canonical, contains_tl
from city.network import Program, ProgramPhase, SignalNetwork, StreetNetwork
from controller.sumo.programs import sumo_program
from greenserve.__main__ import main
from signals import dialects
from signals.contract import build
from tests.conftest import GRID
from tests.error_lines import assert_refused

NET, ROUTES = GRID / "grid.net.xml", GRID / "demand.rou.xml"


def written_city(folder, tls):
    green = (Program("0", "static", 0, (ProgramPhase("Gr", 30, 30, 30), ProgramPhase("yr", 3, 3, 3))),)
    signals = {i: SignalNetwork(i, ((), ()), ("a_0",), green, "0", None, None, None) for i in tls.values()}
    choices = dict.fromkeys(signals, init.Choice("0", ("Gr",)))
    text = init.city_toml(NET, None, StreetNetwork(NET, signals, {}), tls, choices, {}, "sumo-rl", folder)
    (folder / "city.toml").write_text(text, encoding="utf-8")


def run(*flags):
    return main(["city", "init", *map(str, flags)])


def test_every_signal_becomes_a_tl_that_all_commands_accept(tmp_path, in_tmp_path, capsys):
    assert run("--net", NET) == 0
    assert capsys.readouterr().out.splitlines()[0] == "wrote city.toml: 9 TLs of dialect sumo-rl"
    city = config.load(tmp_path / "city.toml")
    dialects.check_city_settings(city)
    street = network.of_city(city)
    assert [tl.signals[0] for tl in city.tls.values()] == list(street.signals)
    for tl in city.tls.values():
        contract = build(city, tl, street)
        assert (contract.timing.decision_interval_s, contract.timing.yellow_s, contract.timing.min_green_s) == (5, 2, 5)


def test_times_to_train_with_are_printed_as_a_table_to_append(tmp_path, capsys):
    out = tmp_path / "city.toml"
    assert run("--net", NET, "--out", out) == 0
    _, pretrained, advice, *table = capsys.readouterr().out.splitlines()
    assert pretrained.endswith(
        'dialect = "street" in the tables [tl.NAME], then greenserve export --pretrained --tl all'
    )
    assert advice.startswith("To train outside greenserve, append the street's times to city.toml")
    assert table[0] == "[training.times]" and len(table) == 10
    assert config.load(out).tls["A0"].yellow_s == 2
    out.write_text("\n".join((out.read_text(), *table, "")))
    tl = config.load(out).tls["A0"]
    assert (tl.yellow_s, tl.all_red_s) == (3, 0)


def test_demand_gets_a_sumocfg_with_the_options_of_sumo_rl(tmp_path):
    out = tmp_path / "city.toml"
    assert run("--net", NET, "--route", ROUTES, "--begin-time", 60, "--num-seconds", 120, "--out", out) == 0
    sumocfg = tmp_path / "grid.sumocfg"
    text = sumocfg.read_text()
    assert all(f'{option} value="{value}"' in text for option, value in init.SUMO_RL_OPTIONS.items())
    street = network.of_city(config.load(out))
    assert (street.begin_s, street.end_s) == (60, 180)
    subprocess.run([sumo_program(), "-c", sumocfg, "--no-step-log", "--no-warnings"], check=True, timeout=60)


def test_tls_are_named_like_their_signals(tmp_path, in_tmp_path, capsys, shared):
    assert run("--net", shared / "scenarios" / "cologne1" / "cologne1.net.xml") == 0
    assert capsys.readouterr().out.splitlines()[0] == "wrote city.toml: 1 TL of dialect sumo-rl"
    (tl,) = config.load(tmp_path / "city.toml").tls
    assert tl == "GS_cluster_357187_359543" and contains_tl(f"ppo_{tl}.zip", tl)


@pytest.mark.parametrize(
    ("signal", "tl"),
    [
        ("cluster_1_2", "cluster_1_2"),
        ("J_12", "J12"),
        ("-1#2/ä", "1-2"),
        ("..", "signal"),
        ("City", "City-2"),
        ("x_" * 200, "TL001"),
    ],
)
def test_ids_that_cannot_be_names_are_changed_and_shown(signal, tl):
    assert init.tl_names([signal]) == {tl: signal}


def test_long_ids_get_short_names_with_the_id_beside_them(tmp_path):
    ids = ["A0", "cluster_1098574052_1098574061_247379905", "TL001", "joinedS_cluster_1\n#2_357187_359543", "B1"]
    names = init.tl_names(ids)
    assert list(names) == ["A0", "TL001", "TL001-2", "TL002", "B1"]
    written_city(tmp_path, names)
    assert f"[tl.TL001]  # {ids[1]}\n" in (tmp_path / "city.toml").read_text()
    assert [tl.signals[0] for tl in config.load(tmp_path / "city.toml").tls.values()] == ids


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, min_size=1, max_size=8))
def test_any_ids_give_different_valid_names(tmp_path_factory, ids):
    names = init.tl_names(ids)
    assert list(names.values()) == ids
    assert all(canonical(name) == name for name in names) and not {"all", "city"} & set(names)
    assert len({name.lower() for name in names}) == len(ids)
    folder = tmp_path_factory.mktemp("city")
    written_city(folder, names)
    assert {name: tl.signals[0] for name, tl in config.load(folder / "city.toml").tls.items()} == names


NO_GREEN = "program '0' of signal A0 has no green phase; add a phase with G or g, without y"


def all_red(text):
    return re.sub(r'(<phase [^>]*state=")(\w+)', lambda phase: phase[1] + "r" * len(phase[2]), text)


def test_signals_without_a_green_phase_are_left_out_and_named(tmp_path, in_tmp_path, capsys):
    logic = re.search('<tlLogic id="A0".*?</tlLogic>', NET.read_text(), re.DOTALL)[0]
    (tmp_path / "net.net.xml").write_text(NET.read_text().replace(logic, all_red(logic)))
    assert run("--net", "net.net.xml") == 0
    text = (tmp_path / "city.toml").read_text()
    assert f"left out: A0: {NO_GREEN}\n" in capsys.readouterr().out and f"# Left out: A0: {NO_GREEN}\n" in text
    assert "A0" not in {tl.signals[0] for tl in config.load(tmp_path / "city.toml").tls.values()}


def test_network_whose_programs_have_no_green_is_refused_also_by_the_pretrained_policy(tmp_path, in_tmp_path, capsys):
    (tmp_path / "net.net.xml").write_text(all_red(NET.read_text()))
    assert run("--net", "net.net.xml", "--dialect", "street") == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: net.net.xml: no signal can be controlled (A0: {NO_GREEN}; A1: program ")
    assert line.count("has no green phase") == 9 and line.endswith("); pass another network\n")
    assert [path.name for path in tmp_path.iterdir()] == ["net.net.xml"]
    (tmp_path / "city.toml").write_text(
        '[network]\nnet = "net.net.xml"\n[tl.A0]\nsignals = ["A0"]\ndialect = "street"\n'
    )
    assert main(["export", "--pretrained", "--tl", "all"]) == 2
    assert NO_GREEN in "".join(capsys.readouterr()) and not (tmp_path / "models").exists()


def test_existing_sumo_configuration_is_used_as_it_is(tmp_path, in_tmp_path, capsys):
    assert run("--sumocfg", GRID / "grid.sumocfg") == 0
    city = config.load(tmp_path / "city.toml")
    assert city.network.sumocfg == GRID / "grid.sumocfg" and len(city.tls) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["city.toml"]


@pytest.mark.parametrize("name", ["city.toml", "grid.sumocfg"])
def test_existing_files_are_not_overwritten(tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    assert run("--net", NET, "--route", ROUTES, "--out", tmp_path / "city.toml") == 2
    assert f"{name}: exists already, and is not overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--net", "none.net.xml"), "none.net.xml: no such file; pass another --net"),
        (("--net", ROUTES), "is not a SUMO network: it has no junctions"),
        (("--net", NET, "--route", NET), "is not a route file: its root is <net>"),
        (("--net", NET, "--dialect", "sumo_rl"), "invalid choice: 'sumo_rl'"),
        (("--net", NET, "--begin-time", -5), "--begin-time must be at least 0"),
        (("--net", NET, "--begin-time", 60), "--begin-time and --num-seconds are for the .sumocfg"),
        (("--net", NET, "--num-seconds", 60), "--begin-time and --num-seconds are for the .sumocfg"),
        (("--sumocfg", "none.sumocfg"), "none.sumocfg: no such file; pass another --sumocfg"),
        (("--sumocfg", GRID / "grid.sumocfg", "--route", ROUTES), "--sumocfg names its own demand"),
        ((), "one of the arguments --net --sumocfg is required"),
        (("--net", NET, "--out", "nowhere/city.toml"), "there is no folder nowhere"),
        (("--net", NET, "--route", ROUTES, "--out", "grid.sumocfg"), "the .sumocfg has the same name"),
    ],
)
def test_wrong_input_gets_one_line_and_no_file(tmp_path, in_tmp_path, capsys, flags, part):
    assert run(*flags) == 2
    assert_refused(capsys, part)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("has_crossings", "dialect", "max_red_s", "line"),
    [
        (True, "street", config.STREET_MAX_RED_S, "^max_red_s = 300 .*also if its detector fails"),
        (True, "sumo-rl", None, "^# max_red_s = 120 .*a crossing with a longer red is served next"),
        (False, "street", config.STREET_MAX_RED_S, "^max_red_s = 300 .*also if its detector fails"),
        (False, "sumo-rl", None, ""),
    ],
)
def test_max_red_of_a_new_city(has_crossings, dialect, max_red_s, line, crossroads_net, tmp_path):
    out = tmp_path / "city.toml"
    assert run("--net", crossroads_net if has_crossings else NET, "--dialect", dialect, "--out", out) == 0
    assert config.load(out).safety.max_red_s == max_red_s
    assert re.search(line, out.read_text(), re.M) and ("max_red_s" in out.read_text()) == bool(line)
