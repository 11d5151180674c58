"""Training outputs of tf.distribute on two replicas are exported as they were trained."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.export.exporting import export, run, same, version
from tests.export.writers import X

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, str(Path(__file__).with_name("write_distributed.py")), str(folder)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("what", ["checkpoint", "weights_tf", "weights_h5", "saved_model", "whole", "tf1"])
def test_models_trained_on_two_replicas_are_exported(what, distributed, tmp_path):
    shutil.copytree(distributed / what, tmp_path / "checkpoints")
    # the input of its graph is an iterator
    assert export(tmp_path / "checkpoints", *(("--actor", "mlp") if what == "tf1" else ()), tl="all") == 0
    expected = np.load(distributed / "expected.npz")
    exported_tls = [path.name for path in (tmp_path / "models").iterdir()]
    assert exported_tls
    for tl in exported_tls:
        same(run(version(tmp_path / "checkpoints", tl), "serving_default", observation=X)["action"], expected[tl])
