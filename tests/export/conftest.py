"""Set-up of the exporter's tests."""

import pytest
import tensorflow as tf


@pytest.fixture
def checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def session():
    """A TF1 session on a graph of its own, both the default ones."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield session
