"""A loaded version of a model, as the RPCs, the manager and the warm-up use it: no TensorFlow here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from protos import predict_pb2 as wire


class LoadError(Exception):
    """A version cannot be loaded; the text is the reason."""


@dataclass(frozen=True)
class Signature:
    """A SignatureDef as plain Python, in the order of its keys."""

    method_name: str
    inputs: Mapping[str, int]
    """Key -> dtype."""
    outputs: Mapping[str, int]
    defaults: Mapping[str, NDArray[Any]]
    """Inputs that a request may leave out."""


class Servable(Protocol):
    """One version of a model, ready to run. Thread-safe."""

    @property
    def definitions(self) -> wire.SignatureDefMap:
        """The signatures as the SavedModel has them."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The same by name, as plain Python."""

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run a signature and return the named outputs, in order. Raises StatusError."""


class ServableFinder(Protocol):
    """Source of loaded versions: the model manager, or a stand-in with one version."""

    def find(self, spec: wire.ModelSpec) -> tuple[int, Servable]:
        """(version, servable) of a model spec. Raises StatusError."""
