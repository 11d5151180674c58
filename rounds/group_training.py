"""The training of one group of TLs: the same task in a local process and on a node of a Ray cluster."""

import contextlib
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from simulation import model_files
from simulation.model_files import Versions
from simulation.model_server import model_server
from training.episode import TrainingTask
from training.ppo import NotFinite
from training.trainer import Settings, Trainer


@dataclass(frozen=True)
class GroupTraining:
    """What a group is trained with."""

    name: str
    """For messages."""
    task: TrainingTask
    """Without a server: the training starts its own."""
    settings: Settings
    """Its `out` is not used: results are returned."""
    models: Versions | bytes
    """Of the infer TLs, as folders or packed."""


@dataclass(frozen=True)
class TrainedGroup:
    """The result of a group's training."""

    held_out_delay_s: float
    """inf: it was never evaluated."""
    files: bytes
    """Checkpoints and learning curve, packed; without checkpoints if it was never evaluated."""
    reason: str = ""
    """Why the training ended early; "": it did not."""


def train_group(group: GroupTraining) -> TrainedGroup:
    """Train a group to the end, or until a number is not finite. Raises InputError, SimulationFailed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="greenserve-")))
        models = group.models
        if isinstance(models, bytes):
            models = model_files.unpack_versions(models, folder / "models")
        server = stack.enter_context(model_server(models))
        trainer = Trainer(replace(group.task, server=server), replace(group.settings, out=folder / "checkpoints"))
        reason = ""
        try:
            trainer.run(lambda line: print(f"{group.name}: {line}", file=sys.stderr, flush=True), shows_bar=False)
        except NotFinite as error:
            reason = str(error)
        files = {path.name: path for path in (folder / "checkpoints").iterdir() if not path.name.startswith(".")}
        return TrainedGroup(trainer.best_delay_s, model_files.pack(files), reason)
