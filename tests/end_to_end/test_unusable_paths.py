"""A path that the system does not let anybody look at is wrong input to every program: one line, exit code 2."""

import errno

import pytest
from serving.client.commands import main as shell

from city.errors import InputError, path_errors_as_input_errors
from controller.guard.__main__ import main as guard
from export.__main__ import main as export
from serving.embedded.flags import parse as serving
from serving.tf_serving.__main__ import main as tf_serving
from tests.conftest import GRID
from tests.end_to_end.programs import CITY

TOO_LONG = "x" * 300
WORDS = {
    "export's city": (export, ["--city", TOO_LONG, "--tl", "all"]),
    "export's checkpoints": (export, ["--city", CITY, "--tl", "SA101", "--model-path", TOO_LONG]),
    "export's models": (export, ["--city", CITY, "--tl", "SA101", "--models-dir", TOO_LONG]),
    "fleet's models": (export, ["fleet", "city", "--tl", "SA101,SA103", "--models-dir", TOO_LONG]),
    "what is inspected": (export, ["inspect", TOO_LONG]),
    "a client's city": (shell, ["status", "SA101", "--city", TOO_LONG]),
    "models.config": (tf_serving, ["--models-dir", TOO_LONG]),
    "the guard's record": (guard, ["--record", TOO_LONG, "--", "-c", str(GRID / "grid.sumocfg")]),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_name_that_is_too_long_is_told_in_one_line(words, capfd):
    main, arguments = WORDS[words]
    assert main(arguments) == 2
    lines = capfd.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("error: ")]
    assert len(told) == 1 and TOO_LONG in told[0] and "too long" in told[0] and not any("Traceback" in line for line in lines)


def test_a_servers_models_too():
    with pytest.raises(InputError, match="too long; name one that can be used"):
        serving(["--models-dir", TOO_LONG])


@pytest.mark.parametrize("error", [OSError("broken"), OSError(errno.EMFILE, "too many open files", "a.json")])
def test_what_is_not_the_paths_fault_is_no_wrong_input(error):
    with pytest.raises(OSError, match=r"broken|too many"), path_errors_as_input_errors():
        raise error
