"""Tasks that run periodically beside the decision steps."""

import threading

from controller.policies.periodic_thread import PeriodicThread


def test_task_runs_again_after_a_failure_until_it_is_stopped(caplog):
    runs, second = [], threading.Event()

    def task():
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("broken")
        second.set()

    thread = PeriodicThread("the task", 0.001, task)
    thread.start()
    assert second.wait(10)
    thread.stop()
    runs_at_stop = len(runs)
    assert thread.wait(0.02) and len(runs) == runs_at_stop
    assert "the task failed; it runs again in 0.001 s" in caplog.text and "RuntimeError: broken" in caplog.text


def test_thread_that_was_never_started_can_be_stopped():
    PeriodicThread("the task", 0.001, lambda: None).stop()
