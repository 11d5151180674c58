"""Whole files, folders of models, tables, PEM files."""

import datetime
import errno
import os
from pathlib import Path

import pytest

from city import model_folders, pem, text_table, whole_files
from city.errors import InputError
from tests.serving.certificates import pair


def test_failed_write_keeps_the_older_file_and_no_draft(tmp_path):
    path = tmp_path / "a.json"
    whole_files.write(path, "old")
    with pytest.raises(RuntimeError), whole_files.replacing(path) as draft:
        draft.write_text("half")
        raise RuntimeError("killed")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match=r"a\.json: cannot be written: No such file or directory; pass another --out"):
        whole_files.write(tmp_path / "none" / "a.json", "x")
    with (
        pytest.raises(InputError, match=r"a\.json: cannot be written: .*; make room there, or pass another --out"),
        whole_files.replacing(path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    whole_files.write(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()) or fsync(fd))
    whole_files.write(tmp_path / "a.json", "x")
    draft, folder = synced
    assert draft.parent == folder == tmp_path and draft.suffix == ".draft"


def test_versions_are_folders_with_numbers_that_tensorflow_serving_reads(tmp_path):
    for name in ("10", "2", "0x1", "-1", "٣", ".3", "1.5", str(1 << 63), str((1 << 63) - 1)):
        (tmp_path / name).mkdir()
    (tmp_path / "7").write_text("a file")
    assert model_folders.versions(tmp_path) == {n: tmp_path / str(n) for n in (2, 10, (1 << 63) - 1)}
    assert list(model_folders.versions(tmp_path)) == [2, 10, (1 << 63) - 1]
    assert model_folders.versions(tmp_path / "none") == {}


def test_columns_are_as_wide_as_their_widest_cell():
    assert text_table.render(("TL", "STATE", ""), [("SA101", "END", "a long text"), ("A", "AVAILABLE", "")]) == (
        "TL     STATE\nSA101  END        a long text\nA      AVAILABLE"
    )


@pytest.mark.parametrize("name", ["SA101", "cluster_1098574052_1098574061_247379905_357187_359543_1673612"])
def test_last_column_is_wrapped_to_the_terminal_and_no_word_is_divided(name):
    reason = f"signal {name} differs from training: " + "8 lanes in training, 7 in street.net.xml; " * 4
    table = text_table.render(("TL", "VERSION", "CONTRACT"), [(name, "1", reason), (name, "2", "matches")], 80)
    lines = table.splitlines()
    assert all(len(line) <= 80 for line in lines) and lines[-1].endswith("matches")
    assert " ".join(" ".join(lines[1:-1]).split()) == f"{name} 1 {reason.strip()}"


@pytest.mark.parametrize("content", [b"", b"key", b"-----BEGIN KEY-----\n\xff"])
def test_file_that_is_not_pem_is_refused(tmp_path, content):
    (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(InputError, match=r"key\.pem: is not PEM"):
        pem.read(tmp_path / "key.pem")


@pytest.mark.parametrize("days", [-1, 10, 365 * 40])
def test_expiry_is_the_earliest_of_all_certificates(days):
    certificates = [pair("a", valid=datetime.timedelta(days=each)) for each in (days, days + 5)]
    content = b"".join(certificate[1] for certificate in certificates)
    assert pem.earliest_expiry_s(content) == certificates[0][3].not_valid_after_utc.timestamp()
    broken = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    assert pem.earliest_expiry_s(certificates[0][0]) is None and pem.earliest_expiry_s(broken) is None
