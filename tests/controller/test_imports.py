"""Packages that importing the controller must not load; import-linter checks the directions of imports (`make lint`)."""

import subprocess
import sys


def test_importing_the_controller_leaves_tensorflow_unloaded():
    code = (
        "import sys, controller.__main__, controller.sumo.start, controller.sumo.network; "
        "bad = {'tensorflow', 'keras', 'tensorflow_serving', 'h5py'}.intersection(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
