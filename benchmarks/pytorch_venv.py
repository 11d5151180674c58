"""A virtual environment with PyTorch libraries on top of this environment, which does not have them."""

import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.turns import ROOT

TORCH = "torch==2.13.0"
SB3, SB3_CONTRIB, SUPERSUIT = "stable-baselines3>=2.7,<3", "sb3-contrib>=2.7,<3", "supersuit>=3.10,<4"
RLLIB = ("dm-tree", "lz4", "ormsgpack", "pydantic>=2", "pyyaml", "scipy")
"""Packages that RLlib needs of the extra ray[rllib] beside Ray and Gymnasium, whose versions are this environment's."""
LIBRARIES = (TORCH, SB3, SB3_CONTRIB, SUPERSUIT, *RLLIB)
TIMEOUT_S = 1500


class CannotInstall(Exception):
    """The packages cannot be installed here; the message is the reason in one line."""


def create(folder: Path, packages: Sequence[str]) -> Path:
    """Make a virtual environment with packages, unless it is there; return its Python. Raises CannotInstall.

    Wheels only. Packages of this environment and the project itself are found from it too; their versions are kept.
    """
    python = folder / "bin" / "python"
    if python.is_file():
        return python
    _run([sys.executable, "-m", "venv", str(folder)])
    (packages_folder,) = folder.glob("lib/python*/site-packages")
    (packages_folder / "greenserve.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2"]
    _run([*pip, "--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt"), *packages])
    return python


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise CannotInstall(lines[-1] if lines else f"{command[0]} ended with exit code {result.returncode}")
