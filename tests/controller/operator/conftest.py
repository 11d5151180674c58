import pytest

from tests.controller.operator.operated_runs import OperatedRun


@pytest.fixture
def operated():
    """A run whose commands a test applies."""
    return OperatedRun()


@pytest.fixture
def client(operated):
    with operated.client() as client:
        yield client
