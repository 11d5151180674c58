"""From a checkpoint's files to an inference-only actor."""

from export.checkpoints import source_of
from export.checkpoints.source import ActorRequest, RebuiltActor
from export.graphs.rebuild import from_builder
from export.locate import Candidate


def rebuild(candidate: Candidate, wanted: ActorRequest) -> RebuiltActor:
    """The actor of a checkpoint. Raises InputError if it holds none, or several without a clear choice."""
    source = source_of(candidate.format)
    spec = wanted.hints.architecture
    if spec is not None and ":" in spec and candidate.format != "saved-model":
        return from_builder(candidate.path, wanted, source, spec)
    return source.rebuild(candidate.path, candidate.label, wanted)
