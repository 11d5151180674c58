"""Where a training on many streets keeps its state, from which --resume continues."""

from pathlib import Path

AGAIN = "remove it and repeat the command, which keeps what else is saved"
"""Remedy for the damaged state of a part of a training."""


def networks_folder(out: Path, number: int) -> Path:
    """The folder of the networks of a policy. It is hidden from an export, which takes their product."""
    return out / f".trial_{number}_networks"


def state_files(out: Path, number: int) -> list[Path]:
    """All files from which a training or a selection of a model number may resume."""
    return [*out.glob(f".trial_{number}.*.npz"), *networks_folder(out, number).glob(".*.npz")]
