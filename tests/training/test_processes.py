"""Functions in other processes: order, errors, processes that die, and a parent that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from city.errors import InputError
from tests.conftest import ROOT
from training.processes import MAX_RESTARTS, Processes, ThisProcess
from training.street_simulation import SimulationFailed


def square(n):
    return n * n


def fail(n):
    raise InputError(f"{n} is wrong")


def die_once(path):
    """Kill this process in the first call with the path."""
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def die(n):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("make", [ThisProcess, lambda: Processes(2)], ids=["here", "others"])
def test_results_have_the_index_of_their_job(make):
    with make() as executor:
        assert dict(executor.run(square, [3, 1, 2])) == {0: 9, 1: 1, 2: 4}
        assert dict(executor.run(square, [])) == {}
        with pytest.raises(InputError, match="5 is wrong"):
            dict(executor.run(fail, [5]))


def test_jobs_of_a_process_that_dies_are_run_again(tmp_path):
    jobs = [str(tmp_path / name) for name in "abc"]
    with Processes(2) as processes:
        results = list(processes.run(die_once, jobs))
    assert sorted(results) == [(0, jobs[0]), (1, jobs[1]), (2, jobs[2])], "each result once"


def test_processes_that_die_again_and_again_end_the_run():
    with Processes(1) as processes, pytest.raises(SimulationFailed, match=f"processes died {MAX_RESTARTS} times in a row"):
        dict(processes.run(die, [1]))


def test_processes_end_with_a_parent_that_is_killed():
    script = (
        "import os, time\n"
        "from training.processes import Processes\n"
        "if __name__ == '__main__':\n"
        "    processes = Processes(1)\n"
        "    print(dict(processes.run(eval, ['__import__(\"os\").getpid()']))[0], flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.kill()
    process.wait(10)
    process.stdout.close()
    end_s = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < end_s, "the process still runs"
        time.sleep(0.05)
