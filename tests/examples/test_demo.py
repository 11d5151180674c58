"""The demo's stages: their output goes to log files, and an error names the file."""

import sys

import pytest

from tests.conftest import GRID, ROOT


@pytest.fixture(scope="module")
def pipeline():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import pipeline

        yield pipeline
    finally:
        sys.path.remove(str(ROOT / "examples"))


def test_export_returns_the_summary_line_and_logs_the_rest(pipeline, tmp_path, capfd):
    assert pipeline.export(tmp_path / "models", tmp_path / "export.log").startswith("8 of 8 TLs exported")
    assert "SA101" in (tmp_path / "export.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_a_controlled_run_reports_progress_once_per_second_reached(pipeline, grid_server, tmp_path, capfd):
    reached = []
    run = pipeline.controlled(grid_server, GRID / "demand.rou.xml", 1, tmp_path, reached.append)
    assert reached == [600, 1200, 1800, 2400, 3000, 3600]
    assert run.figures["missing_answers"] == 0 and run.trips.all > 2000
    assert capfd.readouterr() == ("", "")


def test_a_failed_stage_names_its_log_and_quotes_its_end(pipeline, tmp_path):
    with pytest.raises(pipeline.StageFailed) as failed:
        pipeline.controlled("127.0.0.1:1", GRID / "demand.rou.xml", 1, tmp_path)
    log = tmp_path / "controller_1.log"
    assert f"the controller ended with exit code 2; its log is {log}" in str(failed.value)
    assert "error: no model server answers at 127.0.0.1:1" in str(failed.value)
