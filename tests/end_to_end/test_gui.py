"""`greenserve control --gui` starts sumo-gui."""

import shutil
import subprocess

import pytest

from controller.__main__ import main
from controller.sumo import programs
from tests.end_to_end.programs import CITY, free_port


def control(*flags):
    return main(["--city", CITY, "--policy", "max-pressure", "--end", "30", "--gui", *flags])


@pytest.mark.parametrize("clients", [(), ("--clients", "2")])
def test_gui_without_a_display_is_one_line(monkeypatch, capsys, clients):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert control(*clients) == 2
    assert (
        "error: --gui: sumo-gui needs a display, and DISPLAY is not set; run in a desktop session"
        in capsys.readouterr().err
    )


def test_display_that_cannot_be_opened_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("DISPLAY", ":97531")
    assert control() == 2
    assert "sumo-gui cannot open the display :97531; run in a desktop session" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--libsumo",), "--libsumo has no window"),
        (("--sumo", "127.0.0.1:1"), "--gui is for a SUMO started here"),
    ],
)
def test_gui_is_refused_where_no_program_is_started(capsys, flags, message):
    assert control(*flags) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def display(monkeypatch):
    program = shutil.which("Xvfb")
    if program is None:
        pytest.skip("Xvfb is not installed")
    with subprocess.Popen([program, "-displayfd", "1", "-screen", "0", "800x600x24", "-nolisten", "tcp"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:  # fmt: skip
        monkeypatch.setenv("DISPLAY", f":{server.stdout.readline().strip()}")
        yield
        server.terminate()


@pytest.mark.slow
def test_sumo_gui_is_controlled_and_ends_with_the_control(display, monkeypatch):
    started, find = [], programs.sumo_program
    monkeypatch.setattr(programs, "sumo_program", lambda name="sumo": started.append(name) or find(name))
    assert control("--sumo-port", str(free_port())) == 0
    assert started == ["sumo-gui"]
