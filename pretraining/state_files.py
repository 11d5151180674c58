"""Where a training on many streets keeps its state, from which --resume continues."""

from pathlib import Path

from training.saved_state import state_file

AGAIN = "remove it and repeat the command, which keeps what else is saved"
"""Remedy for the damaged state of a part of a training."""


def networks_folder(out: Path, number: int) -> Path:
    """The folder of the networks of a policy. It is hidden from an export, which takes their product."""
    return out / f".trial_{number}_networks"


def network_state_file(out: Path, number: int, seed: int) -> Path:
    """The state file of one of the networks that are trained for the policy of a model number."""
    return state_file(networks_folder(out, number), seed)


def shared_state_file(out: Path, number: int) -> Path:
    """The state after the updates that the networks of the policy of a model number share."""
    return networks_folder(out, number) / ".shared.progress.npz"


def gate_state_file(out: Path, number: int) -> Path:
    """The file of the gate's results so far, for the policy of a model number."""
    return out / f".trial_{number}.gate.npz"


def network_seeds(seed: int, networks: int, shared_updates: int) -> range:
    """The seeds of the networks of a policy. `seed`: --seed, which the shared updates have if there are any."""
    # no network continues with --seed itself, so each leaves the shared updates with new random numbers
    first = seed + (1 if shared_updates else 0)
    return range(first, first + networks)


def state_files(out: Path, number: int) -> list[Path]:
    """All files from which a training or a selection of a model number may resume."""
    return [*out.glob(f".trial_{number}.*.npz"), *networks_folder(out, number).glob(".*.npz")]
