"""Publishing with full and read-only disks, killed exporters and concurrent exporters: no version is lost."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from city.errors import InputError
from export import single_model
from export.__main__ import main
from export.saved_model import publish
from tests.conftest import GRID, ROOT
from tests.error_lines import assert_refused as refused

WRITER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from export.saved_model import publish
home, word, rounds, wait = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
for k in range(rounds):
    with publish.new_version(home, "SA101", 3, True) as draft:
        (draft / "saved_model.pb").write_text(word)
        print("drafted", flush=True)
        time.sleep(wait)
        (draft / "variables").mkdir()
        (draft / "variables" / "variables.index").write_text(word)
"""


def writer(home, word, rounds=1, wait=0.0):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(home), word, str(rounds), str(wait)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def put(home, number, content="x", **options):
    with publish.new_version(home, "SA101", number, False, **options) as draft:
        whole(draft, content)


def whole(folder, content):
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text(content)
    (folder / "variables" / "variables.index").write_text(content)


def content(home, number=3):
    return (home / "SA101" / str(number) / "saved_model.pb").read_text()


def names(home):
    return sorted(path.name for path in (home / "SA101").iterdir())


def test_concurrent_exporters_always_leave_a_complete_version(tmp_path):
    put(tmp_path, 3, "first")
    at_work = [writer(tmp_path, word, rounds=40) for word in ("one", "two", "three")]
    seen = set()
    while any(process.poll() is None for process in at_work):
        folder = os.open(tmp_path / "SA101" / "3", os.O_RDONLY)  # never missing
        with contextlib.suppress(FileNotFoundError):  # an old version that has just been exchanged is being removed
            model = os.open("saved_model.pb", os.O_RDONLY, dir_fd=folder)
            seen.add(os.read(model, 99).decode())
            os.close(model)
        os.close(folder)
    for process in at_work:
        process.communicate()
        assert process.returncode == 0
    assert names(tmp_path) == ["3"], "no draft is left"
    assert len(seen) >= 2
    index = tmp_path / "SA101" / "3" / "variables" / "variables.index"
    assert content(tmp_path) == index.read_text(), "both files are one exporter's"


def test_the_second_exporter_of_a_new_version_is_refused(tmp_path):
    with (
        pytest.raises(InputError, match="published by another exporter meanwhile"),
        publish.new_version(tmp_path, "SA101", 3, False) as draft,
    ):
        (draft / "saved_model.pb").write_text("mine")
        put(tmp_path, 3, "theirs")
    assert names(tmp_path) == ["3"] and content(tmp_path) == "theirs"


def test_only_drafts_of_killed_exporters_are_removed(tmp_path):
    killed, living = writer(tmp_path, "killed", wait=60), writer(tmp_path, "living", wait=60)
    try:
        for process in (killed, living):
            assert process.stdout.readline() == "drafted\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(names(tmp_path)) == 2
        put(tmp_path, 4)
        assert [name.split("-")[0] for name in names(tmp_path)] == [".3.draft", "4"]
        assert f"-{living.pid}-" in names(tmp_path)[0]
    finally:
        living.kill()
        for process in (killed, living):
            process.communicate()


def test_a_version_moved_aside_by_a_killed_exporter_is_restored(tmp_path):
    put(tmp_path, 3, "old")
    (tmp_path / "SA101" / "3").rename(tmp_path / "SA101" / ".3.old-99999-abc")
    put(tmp_path, 4)
    assert names(tmp_path) == ["3", "4"] and content(tmp_path) == "old"


def disable_exchange(monkeypatch):
    """A system without renameat2, which exchanges two folders in one step."""
    monkeypatch.setattr(publish.ctypes, "CDLL", lambda *_, **__: SimpleNamespace())


@pytest.mark.parametrize("exchange", [True, False])
def test_an_overwrite_replaces_the_whole_version(tmp_path, exchange, monkeypatch):
    """Also if the file system cannot exchange two folders."""
    if not exchange:
        disable_exchange(monkeypatch)
    put(tmp_path, 3, "old")
    (tmp_path / "SA101" / "3" / "extra").write_text("of the old one")
    with publish.new_version(tmp_path, "SA101", 3, True) as draft:
        (draft / "saved_model.pb").write_text("new")
    assert names(tmp_path) == ["3"] and sorted(p.name for p in (tmp_path / "SA101" / "3").iterdir()) == [
        "saved_model.pb"
    ]


def test_keep_removes_old_versions_but_not_the_published_one(tmp_path):
    for number in (9, 10, 2, 11):
        put(tmp_path, number)
    (tmp_path / "SA101" / "notes").mkdir()
    put(tmp_path, 12, keep=3)
    assert names(tmp_path) == ["10", "11", "12", "notes"]
    put(tmp_path, 1, keep=1)
    assert names(tmp_path) == ["1", "12", "notes"], "older than the newest, but asked for"


@pytest.mark.parametrize("case", ["equal", "different", "no hard links", "removed meanwhile"])
def test_equal_variables_are_linked_where_it_is_possible(tmp_path, case, monkeypatch):
    draft, published = tmp_path / "draft", tmp_path / "1"
    for folder in (draft, published):
        whole(folder, "x")
        (folder / "variables" / "variables.data-00000-of-00001").write_text("x")
    own = draft / "variables" / "variables.data-00000-of-00001"
    if case == "different":
        own.write_text("y")
    elif case == "no hard links":
        monkeypatch.setattr(Path, "hardlink_to", mock.Mock(side_effect=OSError(errno.EPERM, "not permitted")))
    elif case == "removed meanwhile":
        shutil.rmtree(published)
    publish.link_equal_variables(draft, published)
    assert own.read_text() == ("y" if case == "different" else "x")
    assert own.stat().st_nlink == (2 if case == "equal" else 1)
    assert sorted(path.name for path in own.parent.iterdir()) == [own.name, "variables.index"]


def mounted(options, tmp_path, *flags):
    """The exporter on a small disk of its own: (exit code, stderr, the files it left)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    export = (
        f"'{sys.executable}' -m export --city '{GRID / 'city.toml'}' --models-dir '{disk}/models' {' '.join(flags)}"
    )
    script = (
        f"mount -t tmpfs {options} tmpfs '{disk}' || exit 77; {export}; code=$?; cd '{disk}' && find . -type f; exit "
        "$code"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no disk of one's own can be mounted here: {done.stderr.strip()[:100]}")
    return done.returncode, done.stderr, [line for line in done.stdout.splitlines() if line.startswith("./")]


@pytest.mark.slow
def test_a_full_disk_leaves_complete_versions_only(tmp_path):
    code, err, remaining = mounted("-o size=300k", tmp_path, "--tl", "all")
    assert code == 2 and "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert errors and all("cannot be written" in line and "nothing was published" in line for line in errors), err
    assert "TLs exported" in err.splitlines()[-1]
    published = {Path(path).parts[1] for path in remaining}
    assert published and all("draft" not in path for path in remaining)
    for tl in published:
        files = {path.split("/", 4)[-1] for path in remaining if f"/{tl}/" in path}
        assert {"saved_model.pb", "variables/variables.index", "assets.extra/export.json"} <= files


@pytest.mark.slow
def test_a_read_only_disk_is_refused(tmp_path):
    code, err, remaining = mounted("-o ro", tmp_path, "--tl", "SA101")
    assert code == 2 and remaining == []
    assert "cannot be written: Read-only file system" in err and "Traceback" not in err


def test_an_interrupt_that_became_another_error_ends_the_run(tmp_path, monkeypatch, capsys):
    """A library may swallow the interrupt and fail with an error of its own."""

    def export(job, tl):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        except KeyboardInterrupt:
            raise InputError("unreadable") from None

    monkeypatch.setattr(single_model, "export", export)
    assert main(["--city", str(GRID / "city.toml"), "--tl", "all", "--models-dir", str(tmp_path)]) == 1
    refused(capsys, "interrupted; versions published before are complete, and no draft remains")


@pytest.mark.parametrize(
    ("number", "exchange", "step"),
    [(3, True, 2), (3, False, 3), (4, True, 3)],
    ids=["replacing", "replacing in two renames", "a new version"],
)
def test_an_interrupt_at_any_call_loses_no_version(tmp_path, number, exchange, step, monkeypatch):
    """Raise KeyboardInterrupt once at each `step`-th call or return, where Python handles signals."""
    monkeypatch.setattr(publish.os, "fsync", lambda fd: None)  # of hundreds of publications
    if not exchange:
        disable_exchange(monkeypatch)
    moment, interrupted = 0, True
    while interrupted:
        moment += step
        home = tmp_path / str(moment)
        whole(home / "SA101" / "3", "old")
        interrupted = _interrupted(home, number, moment)
        # what was moved aside is removed by the next exporter, if its removal was interrupted
        remaining = {name for name in names(home) if exchange or not name.startswith(".3.old-")}
        assert remaining <= {"3", str(number)}, f"interrupted at call {moment}"
        assert content(home) in (("old", "new") if number == 3 else ("old",))
        assert (home / "SA101" / "3" / "variables" / "variables.index").is_file()
        shutil.rmtree(home)
    assert moment > 100, "the calls of a whole publication"


def _interrupted(home, number, moment):
    """Whether publishing was broken off at this call, or was over before."""
    calls = 0

    def look(_frame, event, _arg):
        nonlocal calls
        if event in ("call", "c_return"):
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        with publish.new_version(home, "SA101", number, True) as draft:
            whole(draft, "new")
    except KeyboardInterrupt:
        return True
    except OSError as error:
        assert error.errno == errno.EBADF, (
            "shutil.rmtree closes twice where it is interrupted between a close and its note"
        )
        return True
    finally:
        sys.setprofile(None)
    return False
