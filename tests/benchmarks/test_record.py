"""The cases of the record's benchmark record what they are called after."""

import pytest

from benchmarks.record import CASES, PLAIN, Command, steps_bytes, take_turns
from tests.conftest import GRID

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("transport", ["traci", "libsumo"])
def test_recorded_cases_write_whole_files_and_the_other_none(tmp_path, transport):
    commands = {}
    for case in CASES:
        (tmp_path / case).mkdir()
        arguments = (str(GRID / "grid.sumocfg"), "20", case, transport, str(tmp_path / case))
        commands[case] = Command(("-m", "benchmarks.record", "--case", *arguments))
    times = take_turns(commands, [10, 20])
    assert all(len(each) == 2 for each in times.values())
    for case in CASES:
        sizes = [steps_bytes(path) for path in (tmp_path / case).iterdir()]
        assert len(sizes) == (case != PLAIN) and all(size > 5000 for size in sizes)
