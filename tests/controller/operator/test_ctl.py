"""`greenserve ctl`: its output, exit codes and errors, against a real server."""

import csv
import getpass
import io
import json
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from city.errors import ProgramFailed
from controller.operator.control_client import ControlClient
from controller.operator.ctl import main
from controller.policies.served_contracts import ComparedContracts
from signals.safety.monitor import Alarm, MonitorRule
from tests.conftest import ROOT
from tests.controller.decision_events import decision, event
from tests.controller.operator.operated_runs import TLS, OperatedRun, Pins


@pytest.fixture
def operated():
    return OperatedRun(pins=Pins())


@pytest.fixture
def address(operated, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with operated.applying(), operated.served() as address:
        yield address


def ctl(address, *arguments):
    return main([*arguments, "--address", address], "greenserve ctl")


def output(capsys, address, *arguments):
    assert ctl(address, *arguments) == 0
    return capsys.readouterr().out


def printed(capsys, address, *arguments):
    return json.loads(output(capsys, address, *arguments, "--json"))


def test_a_table_and_json_show_the_same(operated, address, capsys):
    operated.state.add(event(10, [decision("SA101", "Unavailable: refused")]))
    lines = output(capsys, address, "set", "fixed", "SA102,SA103", "--for", "30m", "--author", "ann").splitlines()
    assert lines[0] == "second 10, runs as fast as possible, policy served"
    assert [line.split()[:6] for line in lines[2:]] == [
        [tl, "fixed", "0", "ann", "until", "1800"] for tl in ("SA102", "SA103")
    ]
    state = printed(capsys, address, "tls")
    assert [(tl["tl"], tl["mode"], tl["until_s"]) for tl in state["tls"]] == [
        ("SA101", "policy", 0.0), ("SA102", "fixed", 1800.0), ("SA103", "fixed", 1800.0),
    ]  # fmt: skip
    assert state["tls"][0]["reason"] == "Unavailable: refused" and state["commands"][0]["number"] == 1


def test_a_reason_is_shown_and_the_log_is_a_table_json_and_csv(operated, address, capsys):
    assert output(capsys, address, "log") == "no commands yet\n"
    answer = output(capsys, address, "set", "fixed", "SA101,SA102", "--reason", "roadworks", "--author", "ann")
    assert answer.count("ann (roadworks)") == 2
    for command in ("tls", "log"):
        assert "SA101, SA102 set to fixed, by ann: roadworks\n" in output(capsys, address, command)
    header, *rows = csv.reader(io.StringIO(output(capsys, address, "log", "--csv")))
    assert [dict(zip(header, row, strict=True))["target"] for row in rows] == ["SA101", "SA102"]
    assert [each["reason"] for each in printed(capsys, address, "log")["commands"]] == ["roadworks", "roadworks"]


def test_every_command_reaches_the_run(operated, address, capsys):
    assert printed(capsys, address, "pause")["is_paused"] is True
    assert operated.state.commands()[0].author == getpass.getuser()
    assert printed(capsys, address, "step", "5", "--author", "ann")["step_until_s"] == 5.0
    assert printed(capsys, address, "speed", "2")["speed"] == 2.0
    assert printed(capsys, address, "resume")["is_paused"] is False
    assert printed(capsys, address, "pin", "SA101", "3")["tls"][0]["pinned_version"] == 3
    assert printed(capsys, address, "pin", "SA101", "latest")["tls"][0]["pinned_version"] == 0
    assert printed(capsys, address, "set", "hold", "all")["tls"][2]["mode"] == "hold"
    operated.alarms.add(event(10, alarms=[Alarm("A0", MonitorRule.CONFLICT, 10, "both green")]))
    (alarm,) = printed(capsys, address, "ack", "GreenserveMonitorAlarm/conflict", "--author", "ann")["alarms"]
    assert alarm["acknowledged_by"] == "ann"


def test_alarms_say_what_to_do_and_one_that_is_named_has_the_whole_runbook(operated, address, capsys):
    assert output(capsys, address, "alarms").splitlines()[1] == "no alarm is active"
    operated.alarms.add(
        event(10, [decision("SA101", "Unavailable: x")], alarms=[Alarm("A0", MonitorRule.CONFLICT, 10, "y")])
    )
    text = output(capsys, address, "alarms")
    assert "GreenserveMonitorAlarm/conflict" in text and "greenserve ctl set fixed TL" in text
    assert text.endswith("the runbook: greenserve ctl alarms ALARM\n") and "docs/" not in text
    for name in ("GreenserveMonitorAlarm/conflict", "GreenserveMonitorAlarm"):
        text = output(capsys, address, "alarms", name)
        assert "a defect. Take the TL out of control" in text
        assert "GreenserveServerDown" not in text and "](" not in text
    (alarm,) = printed(capsys, address, "alarms", "GreenserveServerDown")["alarms"]
    assert alarm["name"] == "GreenserveServerDown" and "Its TLs hold their states" in alarm["instructions"]
    assert ctl(address, "alarms", "GreenserveOverrides") == 2
    listed = "GreenserveMonitorAlarm/conflict, GreenserveServerDown"
    message = f"GreenserveOverrides: no listed alarm has this id or name; pass one of {listed}"
    assert message in capsys.readouterr().err


def test_shared_flags_may_stand_before_the_command_too(operated, address, capsys):
    for arguments in (
        ["--address", address, "--json", "--author", "ann", "set", "hold", "SA101"],
        [f"--address={address}", "--author=ann", "set", "--json", "hold", "SA101"],
    ):
        assert main(arguments, "greenserve ctl") == 0
        (tl,) = json.loads(capsys.readouterr().out)["tls"]
        assert (tl["tl"], tl["mode"], tl["set_by"]) == ("SA101", "hold", "ann")
    assert main(["--address", "127.0.0.1:1", "tls", "--address", address, "SA102"], "greenserve ctl") == 0
    assert "SA102" in capsys.readouterr().out


@pytest.fixture
def unanswered(monkeypatch):
    """After the first table, no method is answered."""
    answers = iter([ControlClient.call, Mock(side_effect=ProgramFailed("no answer"))])
    monkeypatch.setattr(ControlClient, "call", lambda *arguments: next(answers)(*arguments))


def watched(operated, capsys, address, *flags, at_end=None):
    """The exit code and output of `watch`, while after a step the run ends, or `at_end` happens."""
    operated.state.add(event(10, [decision("SA101"), decision("SA102")]))
    threading.Timer(0.2, at_end or operated.state.close).start()
    return ctl(address, "watch", *flags, "--interval-s", "0.1"), capsys.readouterr()


def test_watch_prints_a_line_for_each_new_step_and_ends_with_the_run(operated, address, capsys):
    code, captured = watched(operated, capsys, address, "SA101", "--json")
    assert [each["tl"] for each in json.loads(captured.out.splitlines()[0])["decisions"]] == ["SA101"]
    assert code == 0 and "the run has ended" in captured.err


def test_watch_shows_the_table_again(operated, address, capsys):
    code, captured = watched(operated, capsys, address)
    assert code == 0 and "alarms: none" in captured.out


def test_watch_ends_with_the_run_although_the_last_table_is_missing(operated, address, capsys, unanswered):
    code, captured = watched(operated, capsys, address)
    assert code == 0 and "the run has ended" in captured.err


def test_watch_fails_if_the_tables_cannot_be_read_while_the_run_goes_on(operated, address, capsys, unanswered):
    code, captured = watched(operated, capsys, address, at_end=lambda: operated.state.add(event(11)))
    assert code == 1 and "no answer" in captured.err


# both signals are handled alike: tests/city/test_interrupts.py
@pytest.mark.parametrize(
    ("number", "arguments"),
    [(signal.SIGINT, ["watch"]), (signal.SIGTERM, ["watch", "--json"]), (signal.SIGINT, ["pause"])],
)
def test_a_signal_ends_a_wait_for_the_controller_at_once(operated, number, arguments):
    """No command is applied: `pause` waits for it."""
    command = [sys.executable, "-m", "controller.operator.ctl", *arguments, "--address"]
    pipes = dict(cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with operated.served() as address, subprocess.Popen([*command, address], **pipes) as ctl:
        if arguments == ["pause"]:
            operated.queue.wait(20)
        else:
            ctl.stdout.readline()
        time.sleep(0.3)
        ctl.send_signal(number)
        begin_s = time.monotonic()
        try:
            assert ctl.wait(10) == 1 and time.monotonic() - begin_s < 3
        finally:
            ctl.kill()
        assert ctl.stderr.read() == "error: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "fixed", "SA11"], "SA11 is not a TL of this controller; did you mean SA101"),
        (["watch", "SA11"], "SA11 is not a TL"),
        (["set", "policy", "SA101", "--for", "5m"], "--for is for the modes hold and fixed; leave it out"),
        (["set", "off", "SA101"], "invalid choice: 'off'"),
        (["set", "fixed", "SA101", "--for", "soon"], "'soon' is not a time; write 90, 90s, 30m or 2h"),
        (["set", "fixed", "SA101", "--for", "-5"], "'-5' is not a time"),
        (["step", "-1"], "S -1 must be greater than 0 and at most 1e+06"),
        (["step", "nan"], "S nan must be greater than 0 and at most 1e+06"),
        (["speed", "2000"], "factor 2000 must lie between 0 and 1000"),
        (["ack", "x"], "x: no active alarm has this id; no alarm is active"),
        (["tls", "--timeout-s", "0"], "--timeout-s 0 must be above 0"),
        (["watch", "--interval-s", "0"], "--interval-s 0 must be above 0"),
        (["pause", "--tls-key", "x"], "--tls-certificate and --tls-key belong together"),
        (["fly"], "invalid choice: 'fly'"),
        (["tls", "--address", "localhost"], "--address 'localhost' must be HOST:PORT with a port below 65536, such as"),
        (["--author", "ann", "tls"], "unrecognized arguments: --author"),
        (["--nothing", "tls"], "--nothing"),
        (["--json"], "COMMAND"),
        ([], "COMMAND"),
    ],
)
def test_wrong_input_is_one_line(address, capsys, arguments, message):
    flags = ["--address", address] if arguments and not {"fly", "--address"} & {*arguments} else []
    assert main([*arguments, *flags], "greenserve ctl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


def test_without_a_controller_it_is_one_line_and_exit_code_2(capsys):
    page = (ROOT / "docs" / "operator.md").read_text()
    assert "Exit codes: 2 if the input is wrong, such as an unknown TL or an address at which no controller" in page
    assert ctl("127.0.0.1:9", "tls", "--timeout-s", "2") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("error: no controller answers at 127.0.0.1:9 (") and "start one with --control-address" in line
    )


def test_the_address_is_that_of_city_toml(operated, address, capsys, tmp_path):
    (tmp_path / "city.toml").write_text(f'[controller]\ncontrol_address = "{address}"\n')
    assert main(["tls", "--json"], "greenserve ctl") == 0
    assert len(json.loads(capsys.readouterr().out)["tls"]) == len(TLS)


def test_reload_without_an_answered_contract_tells_why(operated, address, capsys, monkeypatch):
    monkeypatch.setattr(operated.pins, "compare_contracts", lambda: ComparedContracts((), (), ()))
    assert "0 contracts compared: no TL's own model has answered" in output(capsys, address, "reload")
