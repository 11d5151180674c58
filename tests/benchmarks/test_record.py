"""The cases of the record's benchmark record what they are called after."""

import pytest

from benchmarks.record import CASES, PLAIN, Command, steps_bytes, take_turns
from tests.conftest import GRID

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.mark.parametrize("transport", ["traci", "libsumo"])
def test_recorded_cases_write_whole_files_and_the_other_none(tmp_path, transport):
    commands = {}
    # SUMO takes a list of files, so their names are without a comma
    folders = {case: tmp_path / str(k) for k, case in enumerate(CASES)}
    for case, folder in folders.items():
        folder.mkdir()
        arguments = (str(GRID / "grid.sumocfg"), "20", case, transport, str(folder))
        commands[case] = Command(("-m", "benchmarks.record", "--case", *arguments))
    times = take_turns(commands, [10, 20])
    assert all(len(each) == 2 for each in times.values())
    for case, folder in folders.items():
        sizes = [steps_bytes(path) for path in folder.iterdir()]
        assert len(sizes) == (case != PLAIN) and all(size > 5000 for size in sizes)
