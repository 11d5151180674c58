import pytest

from records.command import main
from tests.records.recorded_city import RecordedCity, record_city


@pytest.fixture(scope="session")
def recorded_city() -> RecordedCity:
    return record_city()


@pytest.fixture(scope="session")
def whole(recorded_city, tmp_path_factory):
    """The run's record in one file, in a folder of its own."""
    return recorded_city.write(tmp_path_factory.mktemp("record") / "whole.mcap")


@pytest.fixture
def run(capsys):
    """Runs `greenserve record`; returns its output, or the one line of its error."""

    def run(*argv, code=0):
        assert main([str(each) for each in argv], "greenserve record") == code
        captured = capsys.readouterr()
        if code:
            assert captured.out == ""
            (line,) = captured.err.splitlines()
            return line
        return captured.out

    return run
