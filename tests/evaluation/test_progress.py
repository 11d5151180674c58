"""The progress of an evaluation, on a terminal and in a log."""

import io
from dataclasses import replace

import pytest

from evaluation import __main__ as program
from evaluation import arms
from evaluation.progress import Progress
from tests.conftest import GRID
from tests.evaluation.outcomes import ZERO


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _show(output, ends_s):
    times = iter([0.0, *ends_s])
    with Progress(arms.parse("max-pressure,fixed"), 4, output, lambda: next(times)) as progress:
        for k, _ in enumerate(ends_s):
            progress.add([replace(ZERO, arm=("max-pressure", "fixed")[k % 2], delay_s=10.0 * k + 20)])
    return output.getvalue()


def test_log_has_lines_with_count_estimate_and_means_so_far():
    assert _show(io.StringIO(), [60.0, 65.0, 3700.0, 4000.0]).splitlines() == [
        "simulation 1 of 4, 01:00 elapsed, about 03:00 left; mean delay so far: max-pressure 20.0 s",
        "simulation 3 of 4, 1:01:40 elapsed, about 20:33 left; mean delay so far: max-pressure 30.0 s, fixed 30.0 s",
    ]


def test_terminal_has_one_line_that_is_updated_and_removed():
    shown = _show(Terminal(), [60.0, 65.0, 70.0, 75.0])
    assert "0/4" in shown and "4/4" in shown and "max-pressure 30.0 s, fixed 40.0 s" in shown
    assert "\n" not in shown and shown.endswith("\r")


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_progress_of_simulations_is_on_stderr_alone(workers, monkeypatch, capsys):
    monkeypatch.setattr("evaluation.progress.LINE_INTERVAL_S", 0.0)
    flags = ("--city", str(GRID / "city.toml"), "--tl", "SA101", "--seeds", "2", "--seconds", "60")
    assert program.main([*flags, "--arms", "max-pressure,fixed", "--workers", workers]) == 0
    shown = capsys.readouterr()
    assert "elapsed" not in shown.out and len(shown.out.splitlines()) == 5
    assert "simulation 2 of 4" in shown.err and "left; mean delay so far: max-pressure" in shown.err
