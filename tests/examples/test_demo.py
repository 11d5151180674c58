"""The demo's stages: their output goes to log files, and an error names the file."""

import importlib
import subprocess
import sys

import pytest

from city.errors import InputError
from tests.conftest import ROOT


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("pipeline")


@pytest.mark.slow
def test_export_returns_the_summary_line_and_logs_the_rest(pipeline, tmp_path, capfd):
    for _ in range(2):  # as after a run that failed
        assert pipeline.export(tmp_path / "models", tmp_path / "export.log").startswith("8 of 8 TLs exported")
    assert "SA101" in (tmp_path / "export.log").read_text()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_controlled_run_reports_progress_once_per_second_reached(pipeline, grid_server, tmp_path, capfd):
    reached = []
    run = pipeline.controlled(grid_server, 1, tmp_path, reached.append)
    assert reached == [600, 1200, 1800, 2400, 3000, 3600]
    assert run.figures["missing_answers"] == 0 and run.trips.total > 2000
    assert capfd.readouterr() == ("", "")


def test_a_failed_stage_names_its_log_and_quotes_its_end(pipeline, tmp_path):
    with pytest.raises(pipeline.StageFailed) as failed:
        pipeline.controlled("127.0.0.1:1", 1, tmp_path)
    log = tmp_path / "controller_1.log"
    assert f"the controller ended with exit code 2; its log is {log}" in str(failed.value)
    assert "error: no model server answers at 127.0.0.1:1" in str(failed.value)


def test_an_out_folder_that_is_a_file_gives_one_error_line_and_the_file_stays(tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    demo = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py", "--out", out], capture_output=True, text=True, check=False
    )
    assert (demo.returncode, demo.stderr) == (2, f"error: {out}: File exists; name another path\n")
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [("InputError", 2, "wrong"), ("StageFailed", 1, "failed"), ("KeyboardInterrupt", 1, "interrupted; every program")],
)
def test_an_expected_error_of_an_example_gives_one_line_and_an_exit_code(pipeline, capfd, error, code, text):
    errors = {"InputError": InputError, "StageFailed": pipeline.StageFailed, "KeyboardInterrupt": KeyboardInterrupt}

    def main():
        raise errors[error](text)

    assert pipeline.exit_code(main) == code
    assert capfd.readouterr().err.startswith(f"error: {text}")
