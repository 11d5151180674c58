"""Operators' commands: their order, their end, and what a restart keeps."""

import json
import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.errors import InputError
from controller.operator import command_queue, saved_modes
from controller.operator.command_queue import author_of
from controller.operator.control_messages import OperatorError, Status
from signals.fallback.control_mode import OperatorMode
from tests.controller.operator.operated_runs import TLS, Loop, OperatedRun, Pins, command_of, contracts, pin, set_modes
from tests.waiting import wait_until

POLICY, HOLD, FIXED = OperatorMode.POLICY, OperatorMode.HOLD, OperatorMode.FIXED


def submit(operated, *requests):
    """Submit requests in order, while another thread applies them as the loop does; return the errors."""
    errors = []
    with operated.applying():
        for request in requests:
            try:
                operated.queue.submit(command_of(operated.queue, request), 5)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                errors.append(error)
    return errors


def everything(operated):
    queue = operated.queue
    return operated.loop.modes(), operated.state.commands(), operated.pace.state, queue.modes, queue.pinned


def test_a_repeated_command_changes_and_records_nothing():
    operated = OperatedRun(pins=Pins())
    requests = [
        set_modes(("SA101",), FIXED, "ann"),
        pin("SA102", 3, "ann"),
        ("pause", "ann"),
        ("set_speed", 2.0, "ann"),
        ("step", 9.0, "ann"),
    ]
    for request in requests:
        submit(operated, request)
        before = everything(operated)
        submit(operated, request)
        assert everything(operated) == before
    assert len(operated.state.commands()) == len(requests)


def test_pause_step_resume_and_speed_reach_the_run_and_the_record(operated):
    submit(operated, ("pause", "ann"))
    assert operated.pace.state.is_paused
    submit(operated, ("step", 5.0, "ann"))
    assert operated.pace.state.step_until_s == 5.0
    submit(operated, ("resume", "bob"), ("set_speed", 2.0, "bob"))
    assert operated.pace.state[:3] == (False, 2.0, 0.0)
    assert [tuple(action) for action in operated.loop.actions] == [
        ("pause", "", "", "ann"), ("step", "", "5", "ann"), ("resume", "", "", "bob"), ("speed", "", "2", "bob"),
    ]  # fmt: skip


def test_an_error_in_a_command_reaches_its_author_and_not_the_run(operated):
    (error,) = submit(operated, set_modes(("SA999",), FIXED, "ann"))
    assert isinstance(error, KeyError)
    assert submit(operated, set_modes(("SA101",), FIXED, "ann")) == []


def test_commands_in_the_second_of_the_release_are_refused(operated):
    command = command_of(operated.queue, set_modes(("SA101",), FIXED, "ann"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(operated.queue.submit, command, 5)
        wait_until(lambda: operated.queue._submitted)
        operated.queue.close("the controller ends")
        for refused in (waiting.result, lambda: operated.queue.submit(command, 5)):
            with pytest.raises(OperatorError, match="the controller ends") as error:
                refused()
            assert error.value.status is Status.UNAVAILABLE
    assert operated.loop.commands == []


def test_a_flood_of_commands_is_bounded(monkeypatch, operated):
    monkeypatch.setattr(command_queue, "MAX_QUEUED", 3)
    for _ in range(3):
        with pytest.raises(OperatorError) as late:
            operated.queue.submit(command_of(operated.queue, ("pause", "ann")), 0.0)
        assert late.value.status is Status.DEADLINE_EXCEEDED
    with pytest.raises(OperatorError, match="3 commands wait") as full:
        operated.queue.submit(command_of(operated.queue, ("pause", "ann")), 0.0)
    assert full.value.status is Status.RESOURCE_EXHAUSTED


def test_authors_are_printable_and_short():
    assert author_of("an\x1b[31mn\n\u202eb") == "an\ufffd[31mn\ufffd\ufffdb"
    assert len(author_of("x" * 1000)) == 100 and author_of("  ") == "unnamed"


COMMANDS = st.one_of(
    st.builds(
        set_modes,
        st.lists(st.sampled_from(TLS), min_size=1, max_size=2, unique=True).map(tuple),
        st.sampled_from(list(OperatorMode)),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from([0.0, 5.0, 20.0]),
        st.sampled_from(["", "roadworks"]),
    ),
    st.builds(pin, st.sampled_from(TLS), st.sampled_from([None, 1, 2]), st.sampled_from(["ann", "bob"])),
    st.integers(1, 15),
)
"""A command, or that many simulated seconds that pass."""


@given(st.lists(COMMANDS, max_size=25))
def test_after_any_order_of_commands_the_newest_of_each_tl_counts(commands):
    operated = OperatedRun(pins=Pins())
    until, wanted, pinned = dict.fromkeys(TLS, math.inf), dict.fromkeys(TLS, POLICY), dict.fromkeys(TLS)
    for command in commands:
        if isinstance(command, int):
            operated.loop.now += command
        else:
            operated.queue._submitted.append((command_of(operated.queue, command), Future()))
            match command:
                case "pin_model", tl, version, *_:
                    pinned[tl] = version
                case "set_modes", tls, mode, for_s, _, _:
                    for tl in tls:
                        wanted[tl] = mode
                        until[tl] = operated.loop.now + (for_s or math.inf) if mode is not POLICY else math.inf
        operated.queue.apply(operated.loop)
        for tl in TLS:
            if operated.loop.now >= until[tl]:
                wanted[tl], until[tl] = POLICY, math.inf
    modes = operated.loop.modes()
    for tl in TLS:
        expected = {wanted[tl].value} if wanted[tl] is not POLICY else {"policy", "recovering"}
        assert modes[tl] in expected
        assert (operated.queue.modes[tl].until_s if tl in operated.queue.modes else math.inf) == until[tl]
    kept = {tl: version for tl, version in pinned.items() if version is not None}
    assert {tl: pin.version for tl, pin in operated.queue.pinned.items()} == kept
    assert {tl: version for tl, version in operated.pins.pinned.items() if version is not None} == kept


@pytest.fixture
def path(tmp_path):
    return tmp_path / "operator.json"


def run_before(path, *commands, now=0.0):
    operated = OperatedRun(path, Pins(), Loop(now=now))
    submit(operated, *commands)
    operated.saved.close()


def restarted(path, now=0.0, tls=TLS, pins=None):
    operated = OperatedRun(path, pins, Loop(tls, now))
    operated.queue.restore(operated.loop)
    return operated


def test_modes_and_pins_survive_a_restart_and_are_named(path, caplog):
    for_both = set_modes(("SA101", "SA102"), FIXED, "ann", 60.0)
    run_before(path, for_both, set_modes(("SA102",), HOLD, "bob"), pin("SA103", 7, "bob"), now=100.0)
    again = restarted(path, 130.0, pins=Pins())
    assert again.loop.modes() == {"SA101": "fixed", "SA102": "hold", "SA103": "policy"}
    assert again.pins.pinned == {"SA103": 7} and again.queue.next_s == 160.0
    assert "SA101 begins in mode fixed, which ann set before this start, until second 160" in caplog.text
    assert "SA103 begins with version 7, which bob pinned before this start" in caplog.text
    # pages and ctl show all commands, those that were replaced too
    assert [(c.number, c.at_s, c.target, c.value, c.author) for c in again.state.commands()] == [
        (1, 100.0, "SA101", "fixed until second 160", "ann"), (2, 100.0, "SA102", "fixed until second 160", "ann"),
        (3, 100.0, "SA102", "hold", "bob"), (4, 100.0, "SA103", "7", "bob"),
    ]  # fmt: skip
    assert [(line["at_s"], line["text"]) for line in again.service.settings()] == [
        (100.0, "SA101: fixed until second 160, by ann"),
        (100.0, "SA102: hold, by bob"),
        (None, "SA103: version 7, by bob"),
    ]


@pytest.mark.parametrize(
    ("begin_s", "now", "mode", "until_s"),
    [
        pytest.param(0.0, 60.0, "policy", math.inf, id="its time is over"),
        pytest.param(5000.0, 10.0, "fixed", 70.0, id="a simulation that begins anew gives it its whole time"),
    ],
)
def test_a_mode_is_restored_for_its_time(path, begin_s, now, mode, until_s):
    run_before(path, set_modes(("SA101",), FIXED, "ann", 60.0), now=begin_s)
    again = restarted(path, now)
    assert again.loop.modes()["SA101"] == mode and again.queue.next_s == until_s


def test_without_an_author_who_waits_commands_and_the_end_of_a_mode_are_saved_and_logged(path):
    operated, log = OperatedRun(path), path.with_suffix(".jsonl")
    fixed = set_modes(("SA101",), FIXED, "ann", 30.0)
    for count, (now, command, modes) in enumerate(
        ((0.0, fixed, ["SA101"]), (1.0, ("pause", "ann"), ["SA101"]), (30.0, None, [])), 1
    ):
        if command is not None:
            with pytest.raises(OperatorError, match="is applied after the step in progress"):
                operated.queue.submit(command_of(operated.queue, command), 0.0)
        operated.loop.now = now
        operated.queue.apply(operated.loop)
        wait_until(lambda count=count: log.exists() and log.read_text().count("\n") == count)
        assert [*json.loads(path.read_text())["modes"]] == modes
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["action"], each["author"]) for each in logged] == [
        ("set-mode", "ann"), ("pause", "ann"), ("set-mode", "ann (time is over)"),
    ]  # fmt: skip


def test_an_author_is_answered_after_the_file_is_written(path):
    operated, may_write = OperatedRun(path), threading.Event()
    write = operated.saved.write
    operated.saved.write = lambda saved: may_write.wait(5) and write(saved)
    with ThreadPoolExecutor(1) as pool:
        command = command_of(operated.queue, set_modes(("SA101",), FIXED, "ann"))
        answered = pool.submit(operated.queue.submit, command, 5)
        operated.queue.wait(5)
        operated.queue.apply(operated.loop)
        with pytest.raises(TimeoutError):
            answered.result(0.1)
        assert not path.exists()
        may_write.set()
        answered.result(5)
    assert path.exists()


def test_commands_for_all_of_ten_thousand_tls_take_linear_time():
    tls = [f"T{k}" for k in range(10_000)]
    operated = OperatedRun(loop=Loop(tls), run_contracts=contracts(tls))
    begin_s = time.process_time()
    submit(operated, set_modes(tls, FIXED, "ann", 30.0), set_modes(tls, HOLD, "ann", 30.0))
    operated.loop.now = 30.0
    operated.queue.apply(operated.loop)
    assert time.process_time() - begin_s < 4
    assert set(operated.loop.modes().values()) == {"policy"} and operated.queue.modes == {}


def test_a_run_without_commands_writes_no_file(path):
    restarted(path)
    assert [each.suffix for each in path.parent.iterdir()] == [".lock"]


LEASED = pin("SA101", 4, "rollout r1 (ann)", 60.0, 3)


def pinned_at(operated, wall_s, *requests):
    """Pinned versions at a wall time, after the requests."""
    operated.wall_s = wall_s
    submit(operated, *requests)
    operated.queue.apply(operated.loop)
    return operated.pins.pinned["SA101"], operated.service.tl_states(["SA101"])[0].pinned_for_s


def test_a_pin_that_nobody_renews_ends_with_the_version_before(caplog):
    operated = OperatedRun(pins=Pins())
    assert pinned_at(operated, 0.0, pin("SA101", 3, "rollout r1 (ann)"), LEASED) == (4, 60.0)
    assert pinned_at(operated, 59.75) == (4, 0.25)
    assert pinned_at(operated, 60.0) == pinned_at(operated, 1e6) == (3, 0.0)
    assert "rollout r1 (ann), who has not renewed it: pin SA101 3" in caplog.text


def test_a_renewed_pin_stays_and_is_no_new_command_until_it_is_pinned_without_an_end():
    operated = OperatedRun(pins=Pins())
    assert pinned_at(operated, 0.0, LEASED) == (4, 60.0)
    assert pinned_at(operated, 50.0, LEASED) == (4, 60.0)
    assert pinned_at(operated, 100.0) == (4, 10.0) and len(operated.state.commands()) == 1
    assert pinned_at(operated, 100.0, pin("SA101", 4, "rollout r1 (ann)")) == pinned_at(operated, 1e6) == (4, 0.0)
    assert pinned_at(operated, 1e6, LEASED, pin("SA101", None, "bob")) == pinned_at(operated, 2e6) == (None, 0.0)


@pytest.mark.parametrize("then", [3, None])
def test_a_restart_begins_with_the_version_after_a_lease(path, then):
    run_before(path, pin("SA101", 4, "ann", 60.0, then), pin("SA102", 2, "ann"))
    kept = {} if then is None else {"SA101": then}
    assert restarted(path, pins=Pins()).pins.pinned == {**kept, "SA102": 2}


def test_tls_that_a_run_does_not_control_keep_their_modes(path):
    run_before(path, set_modes(("SA101",), FIXED, "ann"), pin("SA103", 2, "ann"))
    other = restarted(path, tls=("SA102",))
    submit(other, set_modes(("SA102",), HOLD, "bob"))
    other.saved.close()
    again = restarted(path, pins=Pins())
    assert again.loop.modes() == {"SA101": "fixed", "SA102": "hold", "SA103": "policy"}
    assert again.pins.pinned == {"SA103": 2}


def test_a_pin_that_the_server_refuses_is_left_out_with_a_warning(path, caplog):
    run_before(path, pin("SA101", 2, "ann"))
    pins = Pins()
    pins.refusal = InputError("serves no version 2 of SA101")
    assert restarted(path, pins=pins).queue.pinned == {} and pins.pinned == {}
    assert "SA101: the version that ann pinned before this start is not used: serves no version 2" in caplog.text


DAMAGED = {
    "cut": '{"modes": {"SA1',
    "empty": "",
    "a list": "[]",
    "a mode that is none": '{"modes": {"SA101": {"mode": "off", "author": "a", "at_s": 0, "until_s": null}}, "pins": {}}',
    "a second that is none": '{"modes": {"SA101": {"mode": "hold", "author": "a", "at_s": NaN, "until_s": null}}, "pins": {}}',
    "a version that is none": '{"modes": {}, "pins": {"SA101": {"version": true, "author": "a"}}}',
    "nested": "[" * 100_000,
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_moved_aside_with_one_warning(path, caplog, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    operated = restarted(path)
    assert operated.loop.commands == []
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    (aside,) = path.parent.glob("*.damaged")
    assert str(aside) in warning.getMessage() and "\n" not in warning.getMessage()
    submit(operated, set_modes(("SA101",), FIXED, "ann"))
    assert json.loads(path.read_text())["modes"]["SA101"]["author"] == "ann"
    operated.saved.close()
    path.write_text("damaged again")
    restarted(path)
    assert len([*path.parent.glob("*.damaged")]) == 2


def test_a_reason_is_in_the_event_the_modes_and_the_log_and_survives_a_restart(path):
    operated = OperatedRun(path)
    submit(operated, set_modes(("SA101",), FIXED, "ann", reason=" road\nworks "), set_modes(("SA101",), FIXED, "ann"))
    assert [command.reason for command in operated.loop.commands] == ["road\N{REPLACEMENT CHARACTER}works", ""]
    submit(operated, set_modes(("SA101",), FIXED, "ann", reason="roadworks"))
    operated.saved.close()
    again = restarted(path)
    assert again.loop.commands[0].reason == again.service.tl_states(["SA101"])[0].set_reason == "roadworks"
    assert [command.reason for command in again.state.commands()][1:] == ["", "roadworks"]


def test_a_log_that_cannot_be_read_stops_nothing(path, caplog):
    path.with_suffix(".jsonl").mkdir()
    operated = restarted(path)
    submit(operated, set_modes(("SA101",), FIXED, "ann"))
    assert operated.loop.modes()["SA101"] == "fixed" and operated.state.commands()[0].target == "SA101"
    assert caplog.text.count("the log of earlier commands cannot be read") == 1


def test_two_controllers_of_one_file_do_not_share_it(path, caplog):
    first, second = OperatedRun(path), OperatedRun(path)
    assert "another controller of this city and SUMO uses it" in caplog.text
    submit(first, set_modes(("SA101",), FIXED, "ann"))
    submit(second, set_modes(("SA102",), FIXED, "bob"))
    first.saved.close()
    assert restarted(path).loop.modes() == {"SA101": "fixed", "SA102": "policy", "SA103": "policy"}


def test_files_are_told_apart_by_city_and_sumo(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cities = (tmp_path / "a.toml", tmp_path / "b.toml")
    settings = [(c, s, o) for c in cities for s in (None, ("h", 1), ("h", 2)) for o in (None, 1)]
    paths = {saved_modes.path_of(*each) for each in settings}
    assert len(paths) == len(settings) and {path.parent for path in paths} == {next(iter(paths)).parent}
    assert saved_modes.path_of(tmp_path / "x" / ".." / "a.toml", None, None) == saved_modes.path_of(
        cities[0], None, None
    )


def test_a_full_disk_is_one_warning_and_the_run_goes_on(path, caplog):
    operated = OperatedRun(path)
    path.mkdir()
    submit(operated, set_modes(("SA101",), FIXED, "ann"), set_modes(("SA102",), FIXED, "ann"))
    assert operated.loop.modes() == {"SA101": "fixed", "SA102": "fixed", "SA103": "policy"}
    assert caplog.text.count("a restart forgets the modes") == 1
