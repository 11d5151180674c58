"""Temporary folders: removed after their block, or by a later process if theirs was killed."""

import os
import subprocess
import sys

from simulation import scratch_folder
from tests.conftest import ROOT

SCRIPT = """
import time
from simulation.scratch_folder import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_folder_of_a_killed_process_is_removed_by_the_next_and_others_are_kept(tmp_path, monkeypatch):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=variables)
        for _ in range(2)
    ]
    killed, living = (tmp_path / process.stdout.readline().strip() for process in processes)
    processes[0].kill()
    processes[0].wait()
    (killed / "0.rou.xml").write_text("")
    (of_others := tmp_path / "greenserve-other").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder.scratch_folder():
        assert killed.is_dir(), "it may be one that is not locked yet"
    monkeypatch.setattr(scratch_folder, "MIN_AGE_S", 0.0)
    with scratch_folder.scratch_folder() as folder:
        assert not killed.exists() and living.is_dir() and folder.is_dir()
    processes[1].kill()
    processes[1].wait()
    assert sorted(tmp_path.iterdir()) == sorted([of_others, living])
