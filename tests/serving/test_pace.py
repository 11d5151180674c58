"""What is quick: what has been so, as long as none of its kind hangs."""

from serving.embedded import pace
from serving.embedded.pace import QUICK_S, Pace


def test_only_what_has_been_quick_and_hangs_nowhere_is_quick(monkeypatch):
    """Its caller's thread waits for it, and whatever else that thread would have read."""
    clock = 0.0
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock)
    one = Pace()
    assert not one.is_quick, "nobody knows"
    one.begin()
    clock += QUICK_S / 2
    one.end()
    assert one.is_quick
    one.begin()
    assert one.is_quick
    clock += 2 * QUICK_S
    assert not one.is_quick, "one hangs"
    one.end()
    assert not one.is_quick, "it took long"
