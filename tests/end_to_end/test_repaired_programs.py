"""`greenserve city init --repair`: programs that give G to two foes, and the simulations that run the repaired ones;
programs that stay refused."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from city import config, network
from city.errors import InputError
from greenserve.__main__ import main
from signals import contract
from signals.safety.conflicts import ConflictRules, check_phases, yielding_states
from tests.networks import crossroads

NOT_REPAIRED = ["GGGrrrGGGrrr", "yyyrrryyyrrr", "rrrGGGrrrGGG", "rrryyyrrryyy"]
REPAIRED = ["GGgrrrGGgrrr", "yyyrrryyyrrr", "rrrGGgrrrGGg", "rrryyyrrryyy"]
ROUTES = "".join(
    f'<flow id="{a}{b}" begin="0" end="300" probability="0.05" from="{a}c" to="c{b}"/>'
    for a, b in ("ns", "sn", "we", "ew", "ne", "sw")
)
ACTUATED = 'type="actuated" offset="0"', 'minDur="5" maxDur="40"', '<param key="max-gap" value="4.0"/>'
OFFSET = '<tlLogic id="c" programID="day" offset="7"/>'
LINE = "repaired c: program '0-repaired' is '0' with g instead of G for links that yield by SUMO's right of way: 2, 5, 8, 11"


def logic(name, states, attributes=('type="static" offset="0"', "", "")):
    settings, of_phase, content = attributes
    phases = "".join(f'<phase duration="{20 if "y" not in s else 3}" {of_phase} state="{s}"/>' for s in states)
    return f'<tlLogic id="c" programID="{name}" {settings}>{content}{phases}</tlLogic>'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a network whose left turns have G, and its demand: the working folder."""
    monkeypatch.chdir(tmp_path)
    crossroads(tmp_path, programs=logic("0", NOT_REPAIRED))
    (tmp_path / "d.rou.xml").write_text(f"<routes>{ROUTES}</routes>")
    return tmp_path


def init(*flags):
    return main(["city", "init", *map(str, flags)])


def test_network_that_gives_green_to_foes_is_refused_with_the_remedy(folder, capsys):
    assert init("--net", "c.net.xml", "--route", "d.rou.xml") == 2
    assert "write GGgrrrGGgrrr; phase rrrGGGrrrGGG has links" in (line := capsys.readouterr().err)
    assert "write rrrGGgrrrGGg; greenserve city init --repair does so in an additional file)" in line


@pytest.mark.slow
def test_repaired_network_is_controlled_trained_and_evaluated(folder, capsys):
    before = (folder / "c.net.xml").read_bytes()
    assert init("--net", "c.net.xml", "--route", "d.rou.xml", "--num-seconds", 120, "--repair") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == LINE and lines[1].endswith("a SUMO that loads them: start it with -c c.sumocfg")
    assert (folder / "c.net.xml").read_bytes() == before, "nothing in the network is changed"
    signal = network.of_city(config.load(folder / "city.toml")).signals["c"]
    assert signal.active_program == "0-repaired" and [phase.state for phase in signal.plan.phases] == REPAIRED
    assert [phase.state for phase in signal.program("0").phases] == NOT_REPAIRED
    check_phases("c", signal, "0-repaired", REPAIRED)

    assert main(["evaluate", "--arms", "max-pressure,fixed,actuated", "--seeds", "1", "--out", "results"]) == 0
    simulations = json.loads((folder / "results" / "results.json").read_text())["simulations"]
    assert all(each["finished"] > 0.3 * each["total"] > 5 for each in simulations)
    assert main(["control", "--policy", "max-pressure", "--summary", "summary.json"]) == 0
    output = capsys.readouterr()
    assert "SUMO runs other programs" not in output.err + output.out
    assert json.loads((folder / "summary.json").read_text())["second"] == 120
    assert (
        main(
            [
                "train",
                "--target-tl",
                "c",
                "--episodes",
                "1",
                "--episodes-per-update",
                "1",
                "--held-out",
                "1",
                "--seconds",
                "60",
            ]
        )
        == 0
    )


def test_sumo_that_does_not_load_the_repaired_programs_is_refused(folder, capsys):
    assert init("--net", "c.net.xml", "--route", "d.rou.xml", "--num-seconds", 30, "--repair") == 0
    (folder / "other.add.xml").write_text("<additional/>")
    assert main(["control", "--policy", "max-pressure", "--", "--additional-files", "other.add.xml"]) == 2
    assert "SUMO has no program '0-repaired', only 0; start it with" in capsys.readouterr().err


def test_existing_configuration_is_kept_and_gets_a_repaired_one_beside_it(folder, capsys):
    (folder / "own.add.xml").write_text(f"<additional>{logic('day', NOT_REPAIRED, ACTUATED)}{OFFSET}</additional>")
    text = (
        "<configuration><!-- ours --><input><n v='c.net.xml'/><r v='d.rou.xml'/><a v='own.add.xml'/></input>"
        "<time><e v='60'/></time></configuration>"
    )
    (folder / "own.sumocfg").write_text(text)
    (folder / "city").mkdir()
    assert init("--sumocfg", "own.sumocfg", "--repair", "--out", "city/city.toml") == 0
    assert "'day-repaired' is 'day'" in (output := capsys.readouterr().out) and "-c own.repaired.sumocfg" in output
    assert (folder / "own.sumocfg").read_text() == text and "<!-- ours -->" in (
        folder / "own.repaired.sumocfg"
    ).read_text()
    city = config.load(folder / "city" / "city.toml")
    assert city.network.sumocfg == folder / "own.repaired.sumocfg"
    (program,) = ET.parse(folder / "city" / "repaired.add.xml").getroot()
    assert (program.get("type"), program.get("offset")) == ("actuated", "7")
    assert [phase.get("state") for phase in program.findall("phase")] == REPAIRED
    assert program.find("param").attrib == {"key": "max-gap", "value": "4.0"}
    assert [phase.get("minDur") for phase in program.findall("phase")] == ["5"] * 4
    signal = network.of_city(city).signals["c"]
    assert (signal.active_program, signal.plan.offset_s, len(signal.programs)) == ("day-repaired", 7, 3)
    assert main(["evaluate", "--city", "city/city.toml", "--arms", "fixed", "--seeds", "1"]) == 0, "SUMO loads it"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        pytest.param("waut", "never show: phase GGGrrrGGGrrr has links .*: write rrrGGgrrrGGg$", id="a WAUT"),
        pytest.param("unregulated", "never show them green together", id="foes of which none yields"),
        pytest.param("one green", "program '0' of signal c has one green, so there is", id="nothing to choose"),
    ],
)
def test_signals_that_cannot_be_repaired_are_still_refused(folder, capsys, setting, reason):
    files = ""
    if setting == "waut":
        (folder / "w.add.xml").write_text(
            '<additional><WAUT id="w" startProg="0" refTime="0"><wautSwitch time="99" to="0"/></WAUT>'
            '<wautJunction wautID="w" junctionID="c"/></additional>'
        )
        files = "<additional-files value='w.add.xml'/>"
    elif setting == "unregulated":
        crossroads(folder, kind="traffic_light_unregulated", programs=logic("0", NOT_REPAIRED))
    else:
        crossroads(folder, programs=logic("0", NOT_REPAIRED[:2]))
    (folder / "own.sumocfg").write_text(
        f"<configuration><input><net-file value='c.net.xml'/>{files}</input></configuration>"
    )
    assert init("--sumocfg", "own.sumocfg", "--repair") == 2
    line = capsys.readouterr().err
    assert re.search(reason, line.removesuffix("); pass another network\n")) and "--repair" not in line
    assert not list(folder.glob("*.toml")) and not list(folder.glob("*repaired*"))


def test_repair_needs_a_configuration_and_says_when_there_is_nothing_to_do(folder, capsys):
    assert init("--net", "c.net.xml", "--repair") == 2
    assert "--repair needs a .sumocfg" in capsys.readouterr().err
    crossroads(folder)
    assert init("--net", "c.net.xml", "--route", "d.rou.xml", "--repair") == 0
    assert "nothing to repair" in capsys.readouterr().out and not list(folder.glob("*repaired*"))


def test_every_repaired_program_of_random_greens_is_permitted(folder):
    plan = network.read(folder / "c.net.xml").signals["c"]
    rng = np.random.default_rng(1)
    repaired = 0
    for _ in range(300):
        state = "".join(rng.choice(list("Ggr"), len(plan.links)))
        phases = tuple(network.ProgramPhase(text, 20, 20, 20) for text in (*NOT_REPAIRED, state))
        street = replace(plan, programs=(network.Program("0", "static", 0, phases),))
        states = yielding_states(street)
        rules = ConflictRules(street)
        assert all(rules.violation(text) is None for text in states.values())
        assert all(a == b or (a, b) == ("G", "g") for old, new in states.items() for a, b in zip(old, new, strict=True))
        repaired += bool(states)
    assert 0 < repaired < 300


@pytest.mark.parametrize(
    ("kind", "states", "settings", "message"),
    [
        *(
            (
                "NEMA",
                None,
                {"dialect": "sappo", "state": "d", "action": action},
                "of signal X has type NEMA, which does not",
            )
            for action in ("gr", "gro", "offset", "kc")
        ),
        ("static", ("gggg", "YYYY"), {}, r"SA101: signal X: phase 'Y+' .* write y for Y"),
        ("static", ("oooo",), {}, r"phase 'o+' .* is not a state .* a colour for o"),
    ],
)
def test_program_that_no_policy_can_show_is_refused(crossing, kind, states, settings, message):
    phases = crossing.plan.phases if states is None else [network.ProgramPhase(text, 9, 9, 9) for text in states]
    signal = replace(crossing, programs=(network.Program("0", kind, 0, tuple(phases)),))
    tl = config.TL(("X",), settings.pop("dialect", "sumo-rl"), "SA101", **settings)
    with pytest.raises(InputError, match=message):
        contract.build(config.City(Path("x.net.xml")), tl, network.StreetNetwork(None, {"X": signal}, {}))
