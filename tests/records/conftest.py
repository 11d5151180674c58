import pytest

from tests.records.recorded_city import RecordedCity, record_city


@pytest.fixture(scope="session")
def recorded_city() -> RecordedCity:
    """A run of the sample city, by messages."""
    return record_city()
