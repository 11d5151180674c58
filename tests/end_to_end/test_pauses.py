"""Nothing that the controller does for itself keeps a street waiting."""

import gc
import threading

from controller import daemon
from controller.__main__ import main
from tests.end_to_end.programs import CITY


def test_while_signals_are_controlled_contracts_are_watched_and_what_was_made_before_is_not_looked_through_for_garbage(
    grid_server, monkeypatch
):
    def loop(*args):
        left.append(len(gc.get_objects()))
        threads.extend(thread.name for thread in threading.enumerate())
        return controlled(*args)

    left, threads, controlled = [], [], daemon._loop
    monkeypatch.setattr(daemon, "_loop", loop)
    try:
        assert main(["--city", CITY, "--server", grid_server, "--end", "20"]) == 0
    finally:
        gc.unfreeze()
    assert left and left[0] < 1000 < len(gc.get_objects())
    assert "contracts" in threads and "contracts" not in [thread.name for thread in threading.enumerate()]
