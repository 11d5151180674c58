"""A helper process that opens TensorFlow checkpoints and runs graphs of training.

They may crash TensorFlow, loop endlessly or allocate any amount of memory. The exporter's own process runs nothing of a
checkpoint's graph. It sends a function with its arguments, such as the one
that rebuilds an actor, and receives plain values. One helper serves all checkpoints of a run, because importing
TensorFlow takes seconds. The helper is killed at the time limit, and the next checkpoint starts another one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from city.errors import InputError, ProgramFailed
from export.checkpoints.helper_process import Helper

T = TypeVar("T")

TIMEOUT_S = 60
"""Limit for each function. Rebuilding an actor normally takes less than a second, and importing Keras some seconds."""


def run(function: Callable[..., T], *arguments: Any) -> T:
    """Call a module's function in the helper; its result is one of `plain_answers`.

    Raises:
        InputError: the function raised it, or the helper crashed or reached a limit.
        ProgramFailed, OSError: the function raised it.
    """
    result: T
    result, error = _HELPER.call(function, arguments, limit_s=TIMEOUT_S)
    if error is not None:
        raise error
    return result


def run_here(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in this process, for exported models, which their verification loads here too."""
    return function(*arguments)


def contents(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """(the function's result, None) or (None, its error); called in the helper process."""
    try:
        return function(*arguments), None
    except (InputError, ProgramFailed, OSError) as error:
        return None, error


_HELPER = Helper(
    contents,
    "a graph of training",
    libraries=["export.single_model"],
    advice="it may loop endlessly: save the actor alone, as a function of the observation",
)
