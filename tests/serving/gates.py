"""Calls that a test holds up."""

import contextlib
import threading
from concurrent import futures


class Gate:
    """Replaces an object's method: its calls wait until `go` is set."""

    def __init__(self, monkeypatch, target, name):
        self.began = threading.Event()
        self.go = threading.Event()
        self.count = 0
        self._original = getattr(target, name)
        monkeypatch.setattr(target, name, self)

    def __call__(self, *args):
        self.count += 1
        self.began.set()
        assert self.go.wait(60)
        return self._original(*args)


@contextlib.contextmanager
def repeated(call):
    """Call a function again and again in a thread during the block; yields the list of its results."""
    results, stop = [], threading.Event()

    def run():
        while not stop.is_set():
            results.append(call())

    with futures.ThreadPoolExecutor(1) as pool:
        caller = pool.submit(run)
        try:
            yield results
        finally:
            stop.set()
        caller.result()
