"""Code of the user's own, named `module:name`: rewards, dialects, architectures. Nothing else of theirs is imported."""

import importlib
from collections.abc import Callable
from typing import Any

from city.errors import InputError, first_line


def named(spec: str) -> Any:
    """The object that `module:name` names; may raise anything, as the module does."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)


def imported(read: Callable[[], Any], where: str) -> Any:
    """The object that `read` imports. Raises InputError for any error of the user's module.

    `where`: beginning of the error's text, with a space at its end.
    """
    try:
        return read()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        raise InputError(
            f"{where}cannot be imported: {type(error).__name__}: {first_line(error)}; install its distribution, "
            "or set PYTHONPATH to the folder of its module"
        ) from None
