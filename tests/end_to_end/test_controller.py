"""The controller's command on the sample city: baselines without a model server, what it tells, what cannot be used."""

import gc
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from controller.__main__ import main
from controller.config import parse
from controller.decision_step import DecisionLoop
from controller.sumo import programs
from tests.conftest import GRID
from tests.end_to_end.programs import CITY, controller, free_port, started, sumo
from tests.error_lines import refused
from tests.sample_city import DISTRICTS, districts, write_city

CONTRACT_CHECK = "the check of contracts"
DAY_S = 86_400.0
NO_DISPLAY = "sumo-gui needs a display, and DISPLAY is not set; run in a desktop session"


def control(*flags, city=CITY, policy=("--policy", "max-pressure")):
    return main(["--city", city, *policy, *flags])


@pytest.fixture
def each_step(monkeypatch):
    """A list: functions that are called before each step."""
    called, step = [], DecisionLoop.step

    def step_after_calls(loop, end_s):
        for call in called:
            call()
        step(loop, end_s)

    monkeypatch.setattr(DecisionLoop, "step", step_after_calls)
    return called


@pytest.mark.parametrize("policy", ["max-pressure", "greedy"])
def test_a_baseline_drives_all_tls_without_a_server(policy, tmp_path, caplog, grid_city):
    caplog.set_level("INFO", "controller")
    flags = ("--libsumo", "--end", "00:02:00", "--summary", str(tmp_path / "s.json"))
    assert control(*flags, policy=("--policy", policy)) == 0
    log = [record.getMessage() for record in caplog.records]
    assert f"controlling {', '.join(grid_city.tls)} from second 0, by {policy}, without models" in log
    assert any(f"second 120: 8 {policy.upper()}; " in line for line in log)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["policy"], summary["second"], summary["decisions"]) == (policy, 120, 8 * 24)
    assert summary["missing_answers"] == summary["fallbacks"] == summary["alarms"] == summary["rejections"] == 0


def test_city_without_tls_has_all_its_signals_driven_by_max_pressure(tmp_path, grid_street):
    (tmp_path / "city.toml").write_text(f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n')
    run = parse(["--city", str(tmp_path / "city.toml"), "--policy", "max-pressure", "--clients", "2"])
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
        ("--server", "127.0.0.1:1"),
        ("--fleet", ""),
        ("--model-number", "3"),
        ("--version-label", "x"),
        ("--tls-ca", "x"),
    ],
)
def test_flags_of_the_model_server_are_refused_with_max_pressure(capsys, flags):
    refused(capsys, control(*flags), f"{flags[0]} is for served policies; leave it out")


def test_network_without_signals_is_refused(tmp_path, capsys):
    (tmp_path / "a.net.xml").write_text('<net><junction id="J" type="priority" x="0" y="0"/></net>')
    (tmp_path / "city.toml").write_text('[network]\nnet = "a.net.xml"\n')
    code = control(city=str(tmp_path / "city.toml"))
    refused(capsys, code, "a.net.xml: has no signal; correct [network] of")


def test_gc_is_frozen_and_contracts_checked_while_signals_are_controlled(grid_server, each_step):
    def thread_names():
        return [thread.name for thread in threading.enumerate()]

    tracked, threads = [], []
    each_step += [lambda: tracked.append(len(gc.get_objects())), lambda: threads.extend(thread_names())]
    try:
        assert control("--end", "20", policy=("--server", grid_server)) == 0
    finally:
        gc.unfreeze()
    assert tracked and tracked[0] < 1000 < len(gc.get_objects())
    assert CONTRACT_CHECK in threads and CONTRACT_CHECK not in thread_names()


def test_wall_clock_that_jumps_by_days_changes_nothing(grid_server, tmp_path, monkeypatch):
    """gRPC keeps the real clock: its core compares deadlines with it."""
    real, calls = time.time, []

    def jumping():
        if sys._getframe(1).f_globals["__name__"].partition(".")[0] == "grpc":
            return real()
        calls.append(None)
        return real() + DAY_S * (-1) ** len(calls)

    monkeypatch.setattr(time, "time", jumping)
    assert abs(time.time() - time.time()) > DAY_S
    flags = ("--libsumo", "--end", "120", "--deadline-ms", "5000", "--summary", str(tmp_path / "summary"))
    assert control(*flags, policy=("--server", grid_server)) == 0
    summary = json.loads((tmp_path / "summary").read_text())
    assert summary["decisions"] > 120 and summary["missing_answers"] == summary["alarms"] == summary["fallbacks"] == 0


def test_floors_that_are_off_are_reported_at_the_start(tmp_path, each_step, caplog):
    def read():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics.append(answer.read().decode())

    port, metrics = free_port(), []
    each_step.append(read)
    city = write_city(tmp_path, ("[safety]\n", '[safety]\nfloors = "dialect"\n'))
    assert control("--libsumo", "--end", "10", "--http", f"127.0.0.1:{port}", city=city) == 0
    assert "controller_street_floors 0.0" in metrics[0]
    (line,) = (each.getMessage() for each in caplog.records if "floors" in each.getMessage())
    assert line.startswith("[safety] floors = dialect: the street's floors are off")


def test_full_disk_is_one_error_line_for_each_output_and_exit_code_1(caplog):
    assert control("--end", "120", "--tripinfo", "/dev/full", "--summary", "/dev/full") == 1
    summary, trips = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "--summary /dev/full: cannot be written (No space left on device)" in summary
    assert "--tripinfo /dev/full: is not a complete tripinfo file" in trips


@pytest.mark.parametrize("name", ["trips.csv.gz", "/dev/null", "trips.xml.gz", "trips.csv", "trips"])
def test_every_format_of_tripinfo_is_accepted(tmp_path, name):
    assert control("--libsumo", "--end", "60", "--tripinfo", str(tmp_path / name)) == 0
    assert (tmp_path / name).exists()


def test_controller_tells_systemd_that_it_is_ready_alive_and_stopping(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    flags = ("--policy", "max-pressure", "--no-guard", "--sumo")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(tmp_path / "notify"))
        notifications.settimeout(60)

        def until(wanted):
            """The messages up to the first one that holds a line."""
            received = [notifications.recv(4096).decode().splitlines()]
            return received if wanted in received[-1] else received + until(wanted)

        with sumo(1, "--end", "100000") as (port, _), controller(*flags, f"127.0.0.1:{port}") as process:
            assert not [lines for lines in until("READY=1")[:-1] if "WATCHDOG=1" in lines], "ready comes first"
            until("WATCHDOG=1")
            until("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            until("STOPPING=1")
            assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("display", "flags", "message"),
    [
        (None, (), NO_DISPLAY),
        (None, ("--clients", "2"), NO_DISPLAY),
        (":97531", (), "sumo-gui cannot open the display :97531; run in a desktop session"),
        (":1", ("--libsumo",), "--libsumo has no window"),
        (":1", ("--sumo", "127.0.0.1:1"), "--gui is for a SUMO started here"),
    ],
)
def test_gui_that_cannot_be_shown_is_one_line(monkeypatch, capsys, display, flags, message):
    monkeypatch.delenv("DISPLAY", raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    refused(capsys, control("--gui", *flags), message)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="Xvfb is not installed")
def test_sumo_gui_is_controlled_and_ends_with_the_control(monkeypatch):
    opened, find = [], programs.sumo_program
    monkeypatch.setattr(programs, "sumo_program", lambda name="sumo": opened.append(name) or find(name))
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        monkeypatch.setenv("DISPLAY", f":{server.stdout.readline().strip()}")
        assert control("--gui", "--end", "30", "--sumo-port", str(free_port())) == 0
    assert opened == ["sumo-gui"]
