"""The lock that only one run holds."""

import subprocess
import sys

import pytest

from city import run_lock
from city.errors import InputError
from tests.conftest import ROOT

HOLD = (
    "import sys, time; from pathlib import Path; from city import run_lock\n"
    "with run_lock.held(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
)


def test_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / ".run.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="it runs"), run_lock.held(path, "it runs"):
            pass
    finally:
        process.kill()
        process.communicate()
    assert path.exists(), "a killed process leaves the file"
    with run_lock.held(path, ""):
        pass
    assert not path.exists()


def test_folder_that_is_empty_after_the_run_is_removed(tmp_path):
    with run_lock.held(tmp_path / "out" / ".run.lock", ""):
        pass
    assert not (tmp_path / "out").exists()
    with run_lock.held(tmp_path / "out" / ".run.lock", ""):
        (tmp_path / "out" / "result").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["result"]
    (tmp_path / "empty").mkdir()
    with run_lock.held(tmp_path / "empty" / ".run.lock", ""):
        pass
    assert (tmp_path / "empty").is_dir(), "it was there before"
