"""The task that trains one group of TLs, in a local process or on a node of a Ray cluster."""

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from city.program import print_line
from simulation import model_files
from simulation.model_files import Versions
from simulation.model_server import model_server
from training.episode import TrainingTask
from training.settings import Settings
from training.statistics import NotFinite
from training.trainer import Trainer


@dataclass(frozen=True)
class GroupTraining:
    """Arguments of `train_group`."""

    name: str
    """The group's name in messages."""
    task: TrainingTask
    """Has no server, because `train_group` starts its own."""
    settings: Settings
    """`out` is not used, because results are returned."""
    models: Versions | bytes
    """The infer TLs' models, as folders or packed."""


@dataclass(frozen=True)
class TrainedGroup:
    """The result of a group's training."""

    validation_delay_s: float
    """Least mean delay on validation demand; inf if the training ended before its first evaluation."""
    files: bytes
    """Learning curve and checkpoints, packed; there are no checkpoints before the first evaluation."""
    reason: str = ""
    """Reason of an early end; empty if the training was completed."""


def train_group(group: GroupTraining) -> TrainedGroup:
    """Train a group until its last episode or a value that is not finite. Raises InputError, SimulationFailed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="greenserve-")))
        models = group.models
        if isinstance(models, bytes):
            models = model_files.unpack_versions(models, folder / "models")
        server = stack.enter_context(model_server(models))
        trainer = Trainer(
            replace(group.task, server=server),
            replace(group.settings, out=folder / "checkpoints"),
            report=lambda line: print_line(f"{group.name}: {line}"),
            shows_bar=False,
        )
        reason = ""
        try:
            trainer.run(fresh_demands=0)  # the round evaluates all models together
        except NotFinite as error:
            reason = str(error)
        files = {path.name: path for path in (folder / "checkpoints").iterdir() if not path.name.startswith(".")}
        return TrainedGroup(trainer.best_delay_s, model_files.pack(files), reason)
