"""PredictionService's RPCs that no policy uses: answered UNIMPLEMENTED with a reference to TensorFlow Serving."""

from collections.abc import Callable
from typing import Any, NoReturn

from serving.embedded.status import StatusError, unimplemented

RPCS = ("Classify", "Regress", "MultiInference")


def not_implemented(name: str) -> StatusError:
    """The error of an RPC that this server does not implement."""
    return unimplemented(f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it")


def unimplemented_rpc(name: str) -> Callable[[Any], NoReturn]:
    """The function of an RPC that this server does not implement."""

    def function(_request: Any) -> NoReturn:
        raise not_implemented(name)

    return function
