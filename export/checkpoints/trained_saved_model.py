"""SavedModels that training wrote: `model.save`, `tf.saved_model.save`, `model.export`."""

from pathlib import Path

from city.errors import InputError
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.layers import read_layers
from export.checkpoints.source import ActorRequest, RebuiltActor, Source

MANIFEST = Path("assets.extra") / "export.json"
"""A SavedModel with this file is one that we exported, not training output."""


class TrainedSavedModel(Source):
    """`path` is the SavedModel's folder."""

    format = "saved-model"

    def checkpoint_of(self, file: Path) -> Path | None:
        is_trained = file.name == "saved_model.pb" and not (file.parent / MANIFEST).is_file()
        return file.parent if is_trained else None

    def files(self, path: Path) -> list[Path]:
        return sorted(file for file in path.rglob("*") if file.is_file())

    def open(self, path: Path) -> Checkpoint:
        from export.graphs import trained_function  # imports TensorFlow, which takes seconds

        return trained_function.of_saved_model(path, None, False).checkpoint

    def rebuild(self, path: Path, label: str, wanted: ActorRequest) -> RebuiltActor:
        from export.graphs import trained_function
        from export.graphs.rebuild import from_function

        if wanted.hints.architecture is not None and ":" in wanted.hints.architecture:
            raise InputError(f"{wanted.tl}: {label} comes with its graph; leave --actor {wanted.hints.architecture} out")
        trained = trained_function.of_saved_model(path, wanted.output_tensor, wanted.categorical)
        return from_function(path, label, wanted, trained, lambda: read_layers(trained.checkpoint, ""))


SOURCE = TrainedSavedModel()
