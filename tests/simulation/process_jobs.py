"""Jobs of the tests of executors: a process that starts imports this module, and no test module with pytest."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from city.errors import InputError


def square(n):
    return n * n


def fail(n):
    raise InputError(f"{n} is wrong")


def die_once(path):
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def die(n):
    os.kill(os.getpid(), signal.SIGKILL)


def own_process(_):
    return os.getpid()


def wait_until_another_died(path):
    """`first` goes on until the process of `second` was killed and started again."""
    marker, second = Path(path), Path(path).parent.parent / "second"
    if marker.name == "first":
        with marker.open("a") as file:
            file.write("x")
        wait_for(lambda: second.exists() and second.read_text() == "again")
    elif not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        marker.write_text("again")


def fail_while_another_runs(path):
    """`second` fails while `first` runs."""
    first = Path(path).parent / "first"
    if Path(path).name == "second":
        wait_for(first.exists)
        raise InputError("wrong")
    try:
        first.touch()
        time.sleep(600)
    finally:
        first.write_text("ended")


def fail_while_another_ignores_its_end(path):
    while True:
        with contextlib.suppress(SystemExit):
            fail_while_another_runs(path)


def wait_for(condition, reason="in time"):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, reason
        time.sleep(0.02)


def leave_with_a_reason(n):
    with Path(n).open("a") as file:
        file.write("x")
    sys.exit("the reward needs a detector E1")


def clean_up_at_the_end(folder):
    try:
        (Path(folder) / "begun").touch()
        time.sleep(600)
    finally:
        (Path(folder) / "ended").touch()


def has_ended(process_id):
    """True if a process is gone, or waits for its exit code to be read."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
