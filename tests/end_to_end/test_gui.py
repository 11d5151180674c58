"""`greenserve control --gui` starts sumo-gui."""

import shutil
import subprocess

import pytest

from controller.__main__ import main
from controller.sumo import programs
from tests.end_to_end.programs import CITY, free_port
from tests.error_lines import refused


def control(*flags):
    return main(["--city", CITY, "--policy", "max-pressure", "--end", "30", "--gui", *flags])


NO_DISPLAY = "sumo-gui needs a display, and DISPLAY is not set; run in a desktop session"


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
    refused(capsys, control(*flags), message)


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
