"""The installed command `greenserve`: every program of the project under one name.

As a library: the environments, and the client of the model servers."""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from city.errors import InputError
    from environment import env, parallel_env
    from serving.client import Client

__all__ = ["Client", "InputError", "env", "parallel_env"]

_MODULES = {
    "Client": ("serving.client", "controller"),
    "InputError": ("city.errors", "controller"),
    "env": ("environment", "environment"),
    "parallel_env": ("environment", "environment"),
}
"""The module that each name is imported from when it is first used, and the extra that it needs: the command starts fast."""
_PACKAGES = ("city", "protos", "signals", "serving", "controller", "export", "simulation", "environment")
"""The packages that they need."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_packages()
    path, extra = _MODULES[name]
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ImportError(f"greenserve.{name} needs the extra {extra} ({error}): pip install 'greenserve[{extra}]'") from None
    return getattr(module, name)


def _check_packages() -> None:
    """Raise ImportError if a module of the user's own has the name of one of our packages: a script's folder comes first."""
    home = Path(__file__).resolve().parent.parent
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent.parent != home:
            raise ImportError(f"{spec.origin} hides greenserve's package {package}; rename it, or run in another folder")
