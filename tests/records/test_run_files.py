"""A folder of a run's files, read as one record."""

import re

import pytest

from city.errors import InputError
from records.run_files import open_files
from tests.records import mcap_bytes

ENDS = (10, 20, 30)
"""Steps at which a file of the run ends."""


def write_run(recorded_city, folder, numbers=(0, 1, 2), **kwargs):
    """The files of a run with these numbers; their names have another order."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        begin = ENDS[number - 1] if number else 0
        recorded_city.write(folder / f"{'cab'[number]}.mcap", begin, ENDS[number], number, **kwargs)
    return folder


def read(reader):
    return [recorded.step.number for recorded in reader.steps()], reader.missing


def test_files_of_a_run_are_read_in_their_order(recorded_city, tmp_path):
    assert read(open_files([write_run(recorded_city, tmp_path)])) == (list(range(30)), [])


def test_missing_file_and_its_steps_are_named(recorded_city, tmp_path):
    numbers, missing = read(open_files([write_run(recorded_city, tmp_path, (0, 2))]))
    assert numbers == [*range(10), *range(20, 30)]
    assert missing == ["file 1 is missing before b.mcap", "between c.mcap and b.mcap: steps 10 to 19 are missing"]


def test_files_that_were_deleted_at_the_beginning_are_named(recorded_city, tmp_path):
    numbers, missing = read(open_files([write_run(recorded_city, tmp_path, (2,))]))
    assert numbers == list(range(20, 30)) and missing == ["files 0 to 1 are missing before b.mcap"]


def test_last_file_alone_is_whole(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path, (2,))
    assert read(open_files([tmp_path / "b.mcap"])) == (list(range(20, 30)), [])


def test_hole_at_the_end_of_a_file_that_was_cut_off_is_named(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path, (1,))
    path = recorded_city.write(tmp_path / "c.mcap", 0, 10, is_finished=False)
    data = path.read_bytes()
    last = mcap_bytes.chunks(data)[-1]
    path.write_bytes(data[: last.end - 1])
    assert read(open_files([tmp_path])) == (
        [*range(5), *range(10, 20)],
        [f"c.mcap: cut off after byte {last.begin:,}", "between c.mcap and a.mcap: steps 5 to 9 are missing"],
    )


def test_repaired_file_is_read_in_the_place_of_the_damaged_one(recorded_city, tmp_path):
    recorded_city.write(tmp_path / "c.mcap", 0, 3, is_finished=False)
    recorded_city.write(tmp_path / "c.repaired.mcap", 0, 3)
    assert read(open_files([tmp_path])) == ([0, 1, 2], [])


def test_file_that_cannot_be_read_is_named_beside_those_that_can(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path, (0,))
    (tmp_path / "z.mcap").write_bytes(b"")
    _, missing = read(open_files([tmp_path]))
    assert len(missing) == 1 and missing[0].startswith(f"{tmp_path / 'z.mcap'}: cannot be read as a record")


def test_drafts_and_other_files_of_the_folder_are_not_read(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path, (0,))
    (tmp_path / ".c.mcap.17.draft.mcap").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    assert read(open_files([tmp_path])) == (list(range(10)), [])


def test_folder_with_several_runs_asks_which(recorded_city, tmp_path):
    recorded_city.write(tmp_path / "x.mcap", 0, 3, run="aa1")
    recorded_city.write(tmp_path / "y.mcap", 0, 4, run="ab2")
    begun = r"\(begun 20\d\d-\d\d-\d\dT[\d:.]+Z\)"
    both = rf"aa1 {begun}, ab2 {begun}"
    with pytest.raises(InputError, match=rf"has files of the runs {both}; pass --run with one of them"):
        open_files([tmp_path])
    with pytest.raises(
        InputError, match=rf"has files of the runs {both}; several of them begin with a: pass more of the id"
    ):
        open_files([tmp_path], "a")
    with pytest.raises(InputError, match=rf"has files of the runs {both}; none of them begins with c"):
        open_files([tmp_path], "c")
    assert open_files([tmp_path], "ab").city.run == "ab2"


def test_two_files_with_the_same_place_in_a_run_are_refused(recorded_city, tmp_path):
    for name in ("x", "y"):
        recorded_city.write(tmp_path / f"{name}.mcap", 0, 3)
    with pytest.raises(
        InputError, match=re.escape("x.mcap and y.mcap are both file 0 of run 5f2c9a; move one of them away")
    ):
        open_files([tmp_path])


def test_folder_without_records_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"has no files \*\.mcap"):
        open_files([tmp_path])
    (tmp_path / "x.mcap").write_bytes(b"no record")
    with pytest.raises(InputError, match=r"x\.mcap: cannot be read as a record"):
        open_files([tmp_path])


def test_run_that_a_file_is_not_of_is_an_input_error(recorded_city, tmp_path):
    path = recorded_city.write(tmp_path / "x.mcap", 0, 3)
    with pytest.raises(InputError, match="is a file of run 5f2c9a, not 77; leave --run out"):
        open_files([path], "77")


def test_named_files_are_one_run_in_any_order_without_its_first_file(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path)
    reader = open_files([tmp_path / "b.mcap", tmp_path / "a.mcap"])
    assert read(reader) == (list(range(10, 30)), ["file 0 is missing before a.mcap"])
    assert read(open_files([tmp_path, tmp_path / "a.mcap"])) == (list(range(30)), [])
    assert read(open_files([tmp_path / "b.mcap"])) == (list(range(20, 30)), [])


def test_named_files_of_two_runs_or_with_the_same_place_are_refused(recorded_city, tmp_path):
    one = recorded_city.write(tmp_path / "one.mcap", 0, 3)
    same = recorded_city.write(tmp_path / "same.mcap", 0, 3)
    other = recorded_city.write(tmp_path / "other.mcap", 0, 3, run="77")
    with pytest.raises(InputError, match=r"is file 0 of its run, and so is .*; name one of them"):
        open_files([one, same])
    with pytest.raises(InputError, match="are files of different runs; name the files of one run"):
        open_files([one, other])
