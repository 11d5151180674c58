"""Waits for a condition, with a limit of wall time."""

import time


def wait_until(condition, timeout_s=30.0):
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)
