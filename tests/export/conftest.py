"""Set-up of the exporter's tests."""

import pytest


@pytest.fixture
def checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder
