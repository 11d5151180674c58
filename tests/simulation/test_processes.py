"""Functions in other processes: order, errors, processes that die, and a parent that is killed."""

import subprocess
import sys
import time

import pytest

from city.errors import InputError
from simulation.executors import ThisProcess
from simulation.executors.processes import MAX_RETRIES, Processes
from simulation.street_simulation import SimulationFailed
from tests.conftest import ROOT
from tests.simulation import process_jobs


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as processes:
        yield processes


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "others"])
def test_results_have_the_index_of_their_job(is_here, processes):
    executor = ThisProcess() if is_here else processes
    assert dict(executor.run(process_jobs.square, [3, 1, 2])) == {0: 9, 1: 1, 2: 4}
    assert dict(executor.run(process_jobs.square, [])) == {}
    with pytest.raises(InputError, match="5 is wrong"):
        dict(executor.run(process_jobs.fail, [5]))


def test_jobs_of_a_process_that_dies_are_run_again(processes, tmp_path):
    jobs = [str(tmp_path / name) for name in "abc"]
    assert sorted(processes.run(process_jobs.die_once, jobs)) == list(enumerate(jobs)), "each result once"


def test_only_the_job_of_the_process_that_dies_is_run_again(processes, tmp_path):
    (started := tmp_path / "started").mkdir()
    jobs = [str(started / "first"), str(tmp_path / "second")]
    assert sorted(processes.run(process_jobs.wait_until_another_died, jobs)) == [(0, None), (1, None)]
    assert (started / "first").read_text() == "x", "it was started once"


def test_jobs_that_use_several_cpus_run_one_after_another():
    with Processes(2) as processes:
        assert len({process_id for _, process_id in processes.run(process_jobs.own_process, [0, 0, 0], cpus=2)}) == 1


def first_and_second(folder):
    return [str(folder / "first"), str(folder / "second")]


def test_terminated_process_ends_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr("simulation.executors.processes.TERMINATE_TIMEOUT_S", 60)
    with pytest.raises(InputError), Processes(2) as processes:
        try:
            dict(processes.run(process_jobs.fail_while_another_runs, first_and_second(tmp_path)))
        finally:
            begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 30, "it ends by itself"
    assert (tmp_path / "first").read_text() == "ended"


def test_process_that_swallows_its_termination_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("simulation.executors.processes.TERMINATE_TIMEOUT_S", 0.5)
    with pytest.raises(InputError), Processes(2) as processes:
        dict(processes.run(process_jobs.fail_while_another_ignores_its_end, first_and_second(tmp_path)))


def test_job_whose_process_dies_again_and_again_ends_the_run():
    with (
        Processes(1) as processes,
        pytest.raises(SimulationFailed, match=f"process of a simulation died {MAX_RETRIES + 1} times"),
    ):
        dict(processes.run(process_jobs.die, [1]))


def test_processes_end_with_a_parent_that_is_killed():
    script = (
        "import os, time\n"
        "from simulation.executors.processes import Processes\n"
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
    process_jobs.wait_for(lambda: process_jobs.has_ended(child), "the process still runs")


def test_a_running_job_ends_what_it_has_started_when_its_parent_is_killed(tmp_path):
    script = (
        "import sys\n"
        "from simulation.executors.processes import Processes\n"
        "from tests.simulation.process_jobs import clean_up_at_the_end\n"
        "if __name__ == '__main__':\n"
        "    list(Processes(1).run(clean_up_at_the_end, [sys.argv[1]]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    for name in ("begun", "ended"):
        process_jobs.wait_for((tmp_path / name).exists, f"the job has not {name}")
        process.kill()
        process.wait(10)


def test_exit_of_a_job_with_a_reason_is_reported_and_not_repeated(tmp_path):
    with Processes(1) as processes, pytest.raises(SimulationFailed, match=r"^the reward needs a detector E1$"):
        list(processes.run(process_jobs.leave_with_a_reason, [str(tmp_path / "runs")]))
    assert (tmp_path / "runs").read_text() == "x"
