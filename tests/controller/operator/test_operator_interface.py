"""Between two steps: commands are applied, and a run that waits stays alive."""

import contextlib
import threading
import time
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from controller.config import parse
from controller.operator.operator_interface import OperatorInterface
from controller.release import Stop
from controller.sumo.connection import SumoConnectionLost
from controller.telemetry.metrics import ControllerMetrics
from signals.fallback.control_mode import OperatorMode
from tests.controller.operator.operated_runs import Loop, command_of, contracts, set_modes
from tests.sample_city import write_city


@pytest.fixture
def recorder():
    """Health and connection of a run, which count their calls, and its loop."""
    made = Mock(loop=Loop(), kept_alive=[])
    made.loop.renew_readings = made.renew
    made.keep_alive.side_effect = lambda: made.kept_alive.append(time.monotonic())
    return made


@pytest.fixture
def stop():
    made = Stop()
    made.is_controlling = True
    return made


@pytest.fixture
def interface_of(recorder, tmp_path):
    with contextlib.ExitStack() as closing:

        def make(*flags, watchdog_s=10):
            city = write_city(tmp_path, ("[controller]\n", f"[controller]\nwatchdog_s = {watchdog_s}\n"))
            config = parse(["--city", city, "--policy", "max-pressure", *flags])
            metrics = ControllerMetrics(CollectorRegistry())
            made = OperatorInterface(config, contracts(), None, Mock(), metrics, recorder, None)
            closing.callback(made.close)
            return made

        yield make


def submit(interface, *requests, after_s=0.0):
    """Submit requests in another thread."""

    def run():
        for request in requests:
            interface.queue.submit(command_of(interface.queue, request), 10)

    threading.Timer(after_s, run).start()


def test_a_run_without_a_wait_is_neither_kept_alive_nor_renewed(recorder, stop, interface_of):
    assert interface_of().before_step(recorder.loop, 500.0, recorder, stop) == 500.0
    assert recorder.method_calls == []


def test_a_paused_run_beats_and_keeps_its_guard_more_often_than_its_watchdog(recorder, stop, interface_of):
    interface = interface_of(watchdog_s=1)
    interface.pace.pause()
    submit(interface, ("resume", "ann"), after_s=1.0)
    interface.before_step(recorder.loop, 500.0, recorder, stop)
    gaps = [b - a for a, b in zip(recorder.kept_alive, recorder.kept_alive[1:], strict=False)]
    assert gaps and max(gaps) < 0.9 and recorder.beat.call_count >= 3
    recorder.renew.assert_called_once_with()


def test_commands_are_applied_while_the_run_is_paused(recorder, stop, interface_of):
    interface = interface_of()
    interface.pace.pause()
    requests = ("pause", "bob"), set_modes(("SA101",), OperatorMode.FIXED, "ann", 40.0), ("step", 7.0, "ann")
    submit(interface, *requests)
    assert interface.before_step(recorder.loop, 500.0, recorder, stop) == 7.0
    assert recorder.loop.modes()["SA101"] == "fixed"


def test_a_step_ends_where_an_operators_mode_ends(recorder, stop, interface_of):
    interface = interface_of()
    submit(interface, set_modes(("SA101",), OperatorMode.HOLD, "ann", 40.0))
    end_s = 500.0
    while end_s == 500.0:
        end_s = interface.before_step(recorder.loop, 500.0, recorder, stop)
    assert end_s == 40.0


def test_a_stop_request_ends_the_wait(recorder, stop, interface_of):
    interface = interface_of()
    interface.pace.pause()
    threading.Timer(0.3, stop.request).start()
    begin_s = time.monotonic()
    interface.before_step(recorder.loop, 500.0, recorder, stop)
    assert 0.2 < time.monotonic() - begin_s < 5


def test_a_guard_that_is_lost_during_a_pause_ends_the_run(recorder, stop, interface_of):
    interface, recorder.keep_alive.side_effect = interface_of(watchdog_s=1), SumoConnectionLost("the guard has ended")
    interface.pace.pause()
    with pytest.raises(SumoConnectionLost):
        interface.before_step(recorder.loop, 500.0, recorder, stop)


def test_a_run_at_a_speed_begins_its_steps_on_time(recorder, stop, interface_of):
    interface = interface_of("--speed", "10")
    begins = []
    for second in range(6):
        recorder.loop.now = float(second)
        assert interface.before_step(recorder.loop, 500.0, recorder, stop) == second + 1
        begins.append(time.monotonic())
    assert begins[-1] - begins[0] > 0.48
    assert interface.state.second == 5.0


def test_without_a_folder_for_the_modes_the_run_goes_on_with_a_warning(
    recorder, monkeypatch, tmp_path, caplog, interface_of
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    interface_of("--control-address", "127.0.0.1:0")
    assert "a restart forgets the modes that operators set; set TMPDIR" in caplog.text
