"""A path that the system cannot use is wrong input to every program: one error line, exit code 2."""

import errno

import pytest

from city.errors import path_errors_as_input_errors
from controller.guard.__main__ import main as guard
from export.__main__ import main as export
from serving.__main__ import main as serving_command
from serving.tf_serving.__main__ import main as tf_serving
from tests.conftest import GRID
from tests.end_to_end.programs import CITY
from tests.error_lines import assert_refused

TOO_LONG = "x" * 300
COMMANDS = {
    "export --city": (export, ["--city", TOO_LONG, "--tl", "all"]),
    "export --model-path": (export, ["--city", CITY, "--tl", "SA101", "--model-path", TOO_LONG]),
    "export --models-dir": (export, ["--city", CITY, "--tl", "SA101", "--models-dir", TOO_LONG]),
    "export fleet --models-dir": (export, ["fleet", "city", "--tl", "SA101,SA103", "--models-dir", TOO_LONG]),
    "export inspect": (export, ["inspect", TOO_LONG]),
    "serving status --city": (serving_command, ["status", "SA101", "--city", TOO_LONG]),
    "serving --models-dir": (serving_command, ["--models-dir", TOO_LONG]),
    "tf_serving --models-dir": (tf_serving, ["--models-dir", TOO_LONG, "--out", "config"]),
    "guard --pid-file": (guard, ["--pid-file", TOO_LONG, "--", "-c", str(GRID / "grid.sumocfg")]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_too_long_gives_one_error_line(command, capfd):
    main, arguments = COMMANDS[command]
    assert main(arguments) == 2
    assert_refused(capfd, TOO_LONG, "too long")


@pytest.mark.parametrize("error", [OSError("broken"), OSError(errno.EMFILE, "too many open files", "a.json")])
def test_an_error_that_the_path_did_not_cause_is_not_wrong_input(error):
    with pytest.raises(OSError, match=r"broken|too many"), path_errors_as_input_errors():
        raise error
