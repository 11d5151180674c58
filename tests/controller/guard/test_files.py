"""The folder of guards' files, and what a controller says of a guard that runs already."""

import os
import threading
import time
from dataclasses import replace

import pytest

from controller.guard import files, start
from controller.guard.listener import TraciListener, record_of, settings
from controller.sumo.access import SumoAccess

SUMO = SumoAccess(arguments=["-c", "a"], clients=2)


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_files_of_a_guard_that_ended_long_ago_are_removed_and_what_operators_have_set_is_kept(tmp_path):
    for name, seconds in (
        ("old", 2 * files.MAX_AGE_S),
        ("new", 60),
        (f"{files.OPERATOR_PREFIX}0", 10 * files.MAX_AGE_S),
    ):
        for suffix in ("json", "lock", "log"):
            (tmp_path / f"{name}.{suffix}").write_text("")
            age(tmp_path / f"{name}.{suffix}", seconds)
    files.remove_old(tmp_path)
    kept = {path.name for path in tmp_path.iterdir()}
    assert {name for name in kept if name.startswith("new")} == {"new.json", "new.lock", "new.log"}
    assert f"{files.OPERATOR_PREFIX}0.json" in kept and not [name for name in kept if name.startswith("old")]


def test_files_of_a_running_guard_are_kept_whatever_their_age(tmp_path):
    (tmp_path / "running.log").write_text("")
    with files.locked(tmp_path / "starting.json"):
        listener = TraciListener(0, tmp_path / "running.json")
        for path in tmp_path.iterdir():
            age(path, 2 * files.MAX_AGE_S)
        files.remove_old(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["running.json", "running.log", "starting.lock"]
        listener.close()


def test_log_of_a_guard_without_a_pid_file_is_kept_until_it_ends(tmp_path):
    log = tmp_path / f"{os.getpid()}.log"
    guard = start._spawn(["--sumo", "127.0.0.1:1"], log)
    try:
        age(log, 2 * files.MAX_AGE_S)
        files.remove_old(tmp_path)
        assert log.exists()
    finally:
        guard.kill()
        guard.communicate()
    age(log, 2 * files.MAX_AGE_S)
    files.remove_old(tmp_path)
    assert not log.exists()


def test_lock_that_was_removed_while_waited_for_is_taken_anew(tmp_path):
    pid_file, taken = tmp_path / "guard.json", threading.Event()

    def wait():
        with files.locked(pid_file) as lock:
            assert os.path.samestat(os.fstat(lock.fileno()), pid_file.with_suffix(".lock").stat())
            taken.set()

    with files.locked(pid_file):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)  # it may also start later, which is as well
        pid_file.with_suffix(".lock").unlink()
    thread.join(5)
    assert taken.is_set()


@pytest.mark.parametrize(
    ("requested", "parts"),
    [
        (settings(SUMO, 5.0, 300.0), ()),
        (
            settings(replace(SUMO, clients=3), 9.0, None),
            ("watchdog_s 5 (not 9)", "--end 300 (not unset)", "--clients 2 (not 3)"),
        ),
        (settings(replace(SUMO, arguments=["-c", "b"]), 5.0, 300.0), ("other arguments of SUMO",)),
    ],
)
def test_settings_that_a_running_guard_keeps_are_named(tmp_path, requested, parts):
    listener = TraciListener(0, tmp_path / "guard.json", settings(SUMO, 5.0, 300.0))
    line = start._describe_kept_settings(record_of(tmp_path / "guard.json"), requested)
    listener.close()
    assert bool(line) == bool(parts)
    for part in (*parts, *((f"kill {os.getpid()}",) if parts else ())):
        assert part in line
