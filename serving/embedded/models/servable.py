"""The interface of a loaded version, for the RPCs, the manager and the warm-up; without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from protos import predict_pb2 as wire


class LoadError(Exception):
    """A version cannot be loaded."""


@dataclass(frozen=True)
class Signature:
    """A SignatureDef as plain Python; keys are sorted."""

    inputs: Mapping[str, int]
    """Key -> dtype."""
    outputs: Mapping[str, int]
    defaults: Mapping[str, NDArray[Any]]
    """Values of inputs that a request may omit."""


class Servable(Protocol):
    """One version of a model, ready to run. Thread-safe."""

    definitions: wire.SignatureDefMap
    """The signatures as the SavedModel has them."""
    signatures: Mapping[str, Signature]
    """Name -> signature as plain Python."""

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run a signature and return the named outputs, in order. Raises StatusError."""
