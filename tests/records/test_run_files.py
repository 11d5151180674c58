"""A folder of a run's files, read as one record."""

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


def test_named_files_are_one_run_in_any_order_without_its_first_file(recorded_city, tmp_path):
    write_run(recorded_city, tmp_path)
    reader = open_files([tmp_path / "b.mcap", tmp_path / "a.mcap"])
    assert read(reader) == (list(range(10, 30)), ["file 0 is missing before a.mcap"])
    assert read(open_files([tmp_path, tmp_path / "a.mcap"])) == (list(range(30)), [])
    assert read(open_files([tmp_path / "b.mcap"])) == (list(range(20, 30)), [])


BOTH_RUNS = r"has files of the runs aa1 \(begun 20\d\d-\d\d-\d\dT[\d:.]+Z\), ab2 \(begun 20\S+\); pass --run with the begin of one id alone"


@pytest.mark.parametrize(
    ("runs", "paths", "run", "message"),
    [
        *((("aa1", "ab2"), ["."], run, BOTH_RUNS) for run in (None, "a", "c")),
        (("aa1", "aa1"), ["."], None, "0.mcap and 1.mcap are both file 0 of run aa1; move one of them away"),
        ((), ["."], None, r"has no files \*\.mcap"),
        ((None,), ["."], None, r"0\.mcap: cannot be read as a record"),
        (("aa1",), ["0.mcap"], "77", "is a file of run aa1, not 77; leave --run out"),
        (("aa1", "aa1"), ["0.mcap", "1.mcap"], None, "is file 0 of its run, and so is .*; name one of them"),
        (("aa1", "77"), ["0.mcap", "1.mcap"], None, "are files of different runs; name the files of one run"),
    ],
)
def test_files_that_are_not_one_run_are_refused(recorded_city, tmp_path, runs, paths, run, message):
    """`runs`: of the files in a folder, by their ids; None: no record."""
    for k, each in enumerate(runs):
        path = tmp_path / f"{k}.mcap"
        if each is None:
            path.write_bytes(b"no record")
        else:
            recorded_city.write(path, 0, 3, run=each)
    with pytest.raises(InputError, match=message):
        open_files([tmp_path / name for name in paths], run)


def test_run_of_a_folder_is_chosen_by_the_begin_of_its_id(recorded_city, tmp_path):
    for run in ("aa1", "ab2"):
        recorded_city.write(tmp_path / f"{run}.mcap", 0, 3, run=run)
    assert open_files([tmp_path], "ab").city.run == "ab2"
