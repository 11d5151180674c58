"""Each library's page trains with its code blocks, and its export command publishes what they saved."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import GRID, ROOT

PAGES = sorted((ROOT / "docs" / "libraries").glob("*.md"))
SMALLER = {
    "20_000": "256", "n_steps=512": "n_steps=128", "frames_per_batch=512": "frames_per_batch=128",
    "range(30)": "range(1)", "train_batch_size_per_learner=720": "train_batch_size_per_learner=240",
}  # fmt: skip
"""Sizes of the pages -> those of the test."""


@pytest.fixture
def ray_folder():
    """Ray's folder after a cluster that was killed; sockets in it need a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        (Path(name) / "ray").mkdir()
        (Path(name) / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
        yield name


def train_and_export(python, page, models, folder, ray_folder):
    """Run a page's blocks in the sample city, then its export command; return the export's output."""
    for path in GRID.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    shutil.copytree(models, folder / "models")
    (folder / "checkpoints").mkdir()
    text = page.read_text()
    script = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert any(size in script for size in SMALLER) or page.stem == "cleanrl"
    for size, smaller in SMALLER.items():
        script = script.replace(size, smaller)
    (folder / "train.py").write_text(script)
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": ray_folder
    }  # fmt: skip

    def run(*command):
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run(python, "train.py")
    flags = re.search(r"`greenserve export(.*?)`", text, re.S)
    flags = flags[1].split() if flags else ["--tl", "SA101"]
    return run(python, "-m", "greenserve", "export", *flags, "--model-path", "checkpoints", "--overwrite")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_trains_and_exports(page, pytorch, grid_models, tmp_path, ray_folder):
    output = train_and_export(pytorch, page, grid_models, tmp_path, ray_folder)
    assert re.search(r"(\d) of \1 TLs exported|SA101: .*trial_[23]", output), output
    assert len(page.read_text().splitlines()) <= 60, "a screen"
