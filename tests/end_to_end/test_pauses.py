"""The controller's own work does not delay the simulation."""

import gc
import threading

from controller.__main__ import main
from controller.decision_step import DecisionLoop
from tests.end_to_end.programs import CITY

CONTRACT_CHECK = "the check of contracts"


def thread_names():
    return [thread.name for thread in threading.enumerate()]


def test_gc_is_frozen_and_contracts_checked_while_signals_are_controlled(grid_server, monkeypatch):
    def step(loop, end_s):
        tracked.append(len(gc.get_objects()))
        threads.extend(thread_names())
        control_step(loop, end_s)

    tracked, threads, control_step = [], [], DecisionLoop.step
    monkeypatch.setattr(DecisionLoop, "step", step)
    try:
        assert main(["--city", CITY, "--server", grid_server, "--end", "20"]) == 0
    finally:
        gc.unfreeze()
    assert tracked and tracked[0] < 1000 < len(gc.get_objects())
    assert CONTRACT_CHECK in threads and CONTRACT_CHECK not in thread_names()
