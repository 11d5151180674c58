"""A Python with PyTorch and the libraries that train with it, which the project does not install."""

import pytest

from benchmarks import pytorch_venv


@pytest.fixture(scope="session")
def pytorch(tmp_path_factory):
    """The Python of a virtual environment; tests of it are skipped, with the reason, if it cannot be made."""
    packages = [*pytorch_venv.LIBRARIES, "torchrl", "pytest", "pytest-timeout"]
    try:
        return pytorch_venv.create(tmp_path_factory.mktemp("pytorch"), packages)
    except pytorch_venv.CannotInstall as error:
        pytest.skip(f"PyTorch and its libraries cannot be installed: {error}")
