"""SavedModels that training wrote: `model.save`, `tf.saved_model.save`, `model.export`."""

from pathlib import Path

from export.checkpoints import regular_files, tensorflow_files
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.source import ActorRequest, Graph, Source

MANIFEST = Path("assets.extra") / "export.json"
"""A SavedModel with this file was exported by us; it is not training output."""


class TrainedSavedModel(Source):
    """A SavedModel; its path is the folder."""

    format = "saved-model"

    def checkpoint_of(self, file: Path) -> Path | None:
        is_trained = file.name == "saved_model.pb" and not (file.parent / MANIFEST).is_file()
        return file.parent if is_trained else None

    def files(self, path: Path) -> list[Path]:
        return sorted(file for file in path.rglob("*") if file.is_file())

    def open(self, path: Path) -> Checkpoint:
        # TensorFlow opens them by their names
        regular_files.check_folder(path, tensorflow_files.MAX_BYTES)
        return tensorflow_files.open_checkpoint(path / "variables" / "variables")

    def graph(self, path: Path, request: ActorRequest) -> Graph:
        # TensorFlow opens them by their names
        regular_files.check_folder(path, tensorflow_files.MAX_BYTES)
        return "saved function"


SOURCE = TrainedSavedModel()
