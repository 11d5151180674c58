"""The controller's own work does not delay the simulation."""

import gc
import threading

from controller import daemon
from controller.__main__ import main
from tests.end_to_end.programs import CITY

CONTRACT_CHECK = "the check of contracts"


def thread_names():
    return [thread.name for thread in threading.enumerate()]


def test_gc_is_frozen_and_contracts_checked_while_signals_are_controlled(grid_server, monkeypatch):
    def loop(*args):
        tracked.append(len(gc.get_objects()))
        threads.extend(thread_names())
        return control_loop(*args)

    tracked, threads, control_loop = [], [], daemon._loop
    monkeypatch.setattr(daemon, "_loop", loop)
    try:
        assert main(["--city", CITY, "--server", grid_server, "--end", "20"]) == 0
    finally:
        gc.unfreeze()
    assert tracked and tracked[0] < 1000 < len(gc.get_objects())
    assert CONTRACT_CHECK in threads and CONTRACT_CHECK not in thread_names()
