"""Which files of a record's folder are deleted, and which are not."""

import fcntl
import io
import logging

import pytest

from controller.recording.record_folder import NAME, RecordFolder, file_name
from controller.recording.record_writer import NS, RecordWriter
from protos import record_pb2 as record

BEGIN_NS = 1_790_006_400 * NS


def name(number, run="a1b2c3"):
    return file_name(BEGIN_NS + number * NS, run, 0)


def write(path, size):
    stream = io.BytesIO()
    RecordWriter(stream, record.City(run="a1b2c3"), {}, BEGIN_NS)
    path.write_bytes(stream.getvalue().ljust(size, b"\0"))


def test_names_sort_by_time_and_number():
    names = [file_name(BEGIN_NS, "a1", 0), file_name(BEGIN_NS, "a1", 1), file_name(BEGIN_NS + 3600 * NS, "a1", 2)]
    assert names[0] == "20260921T160000Z-a1-0000.mcap" and names == sorted(names)
    assert all(NAME.fullmatch(each) for each in names)


def kept(folder, limit_bytes, needed_bytes, own=""):
    """The names of the files that are left when there is room."""
    RecordFolder(folder, limit_bytes).make_room(needed_bytes, own)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("needed", "remaining"), [(0, [0, 1, 2, 3]), (1, [1, 2, 3]), (10_000, [1, 2, 3]), (10_001, [2, 3])]
)
def test_oldest_files_are_deleted_until_there_is_room(tmp_path, needed, remaining):
    for number in range(4):
        write(tmp_path / name(number), 10_000)
    assert kept(tmp_path, 40_000, needed) == [name(number) for number in remaining]


def test_files_that_are_no_records_stay_and_do_not_count(tmp_path):
    write(tmp_path / "survey.mcap", 50_000)
    (tmp_path / "20260921T160000Z-notes.mcap.txt").write_bytes(b"\0" * 50_000)
    write(tmp_path / name(1), 10_000)
    assert name(1) in kept(tmp_path, 40_000, 30_000)
    assert kept(tmp_path, 40_000, 40_000) == ["20260921T160000Z-notes.mcap.txt", "survey.mcap"]


def test_files_with_a_records_name_alone_stay(tmp_path):
    (tmp_path / name(0)).write_bytes(b"")
    (tmp_path / name(1)).write_bytes(b"\x89MCAP0\r\n\x01" + b"\x10" + b"\0" * 7 + b"\x04\0\0\0ros2" + b"\0" * 10_000)
    (tmp_path / name(2)).mkdir()
    assert len(kept(tmp_path, 1000, 1000)) == 3


def test_file_that_is_written_stays_until_its_writer_ends(tmp_path):
    stream = RecordFolder(tmp_path, 1000).create(name(0))
    write(tmp_path / name(1), 10_000)
    RecordWriter(stream, record.City(), {}, BEGIN_NS).flush()
    assert kept(tmp_path, 1000, 1000) == [name(0)]
    stream.close()  # also what the kernel does with a killed writer
    assert kept(tmp_path, 1000, 1000) == []


def test_own_file_does_not_count(tmp_path):
    for number in range(2):
        write(tmp_path / name(number), 10_000)
    assert len(kept(tmp_path, 20_000, 10_000, name(1))) == 2


def test_file_that_exists_is_not_overwritten(tmp_path):
    write(tmp_path / name(0), 10_000)
    with pytest.raises(FileExistsError):
        RecordFolder(tmp_path, 1000).create(name(0))


def test_file_that_cannot_be_deleted_is_reported_once(tmp_path, monkeypatch, caplog):
    write(tmp_path / name(0), 10_000)
    write(tmp_path / name(1), 10_000)
    flock = fcntl.flock

    def unsupported(stream, operation):
        if stream.name.endswith(name(0)):
            raise OSError(5, "Input/output error")
        flock(stream, operation)

    monkeypatch.setattr(fcntl, "flock", unsupported)
    folder = RecordFolder(tmp_path, 1000)
    for _ in range(2):
        folder.make_room(1000)
    assert [path.name for path in tmp_path.iterdir()] == [name(0)]
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert name(0) in warning and "Input/output error" in warning
