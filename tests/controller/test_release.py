"""Signals that ask the controller to stop, and what is logged if signals cannot be released any more."""

import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from controller.release import Stop, log_connection_lost, release
from controller.sumo.connection import SumoConnectionLost


@pytest.mark.parametrize(
    ("is_guarded", "consequence"),
    [(True, "SUMO has ended, or the guard hands"), (False, "the signals cannot be released any more")],
)
def test_lost_connection_is_logged_with_its_consequence(is_guarded, consequence, caplog):
    log_connection_lost(SimpleNamespace(now=7.0), SimpleNamespace(is_guarded=is_guarded), SumoConnectionLost("why"))
    assert f"the connection to SUMO was lost at second 7 of the simulation: why; {consequence}" in caplog.text


def test_second_stop_request_aborts_waits_and_third_quits(monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    stop = Stop()
    stop.install_handlers()
    assert set(handlers) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    stop.is_controlling = True
    requested = []
    for _ in range(4):
        requested.append((stop.is_requested(), stop.interrupts().abort_requested(), stop.interrupts().quit_requested()))
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert requested == [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]


def test_signal_before_any_control_interrupts_the_start():
    with pytest.raises(KeyboardInterrupt):
        Stop().request()


@pytest.mark.parametrize(
    ("requests", "aborted"), [(0, [False, True, True]), (1, [False, True, True]), (2, [True, True, True])]
)
def test_second_stop_request_within_one_step_does_not_wait_for_a_safe_transition(requests, aborted):
    stop, seen = Stop(), []
    stop.is_controlling = True
    for _ in range(requests):
        stop.request()

    def release_step_by_step(end_s, abort_requested):
        for _ in range(3):
            seen.append(abort_requested())
            stop.request()

    loop = Mock(now=10.0, clearing_s=8.0, release=release_step_by_step)
    loop.unreleased.return_value, loop.release_without_transition.return_value = [], ([], [])
    assert release(loop, SimpleNamespace(is_guarded=False), 3600.0, stop)
    assert seen == aborted
