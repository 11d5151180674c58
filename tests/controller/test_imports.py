"""The direction of imports, and what importing the controller must not load."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT


def test_importing_the_controller_leaves_tensorflow_unloaded():
    code = (
        "import sys, controller.__main__, controller.sumo.start, controller.sumo.network; "
        "bad = {'tensorflow', 'keras', 'tensorflow_serving', 'h5py'}.intersection(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_import_rules_hold():
    pytest.importorskip("importlinter.cli")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
