"""The installed command `greenserve`: every program of the project under one name.

As a library: the environments, and the client of the model servers."""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from city.errors import InputError
    from environment import SumoEnvironment, env, parallel_env
    from serving.client import Client

__all__ = ["Client", "InputError", "SumoEnvironment", "env", "parallel_env"]

_PACKAGES = ("city", "protos", "signals", "serving", "controller", "export", "simulation", "environment")
_MODULES = {
    "Client": ("serving.client", "controller", ("protos", "serving")),
    "InputError": ("city.errors", "controller", ("city",)),
    "SumoEnvironment": ("environment", "environment", _PACKAGES),
    "env": ("environment", "environment", _PACKAGES),
    "parallel_env": ("environment", "environment", _PACKAGES),
}
"""Name -> (module, the extra and our packages that it needs). Imported when first used: the command starts fast."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path, extra, packages = _MODULES[name]
    # a script's folder comes first, and a module of the user's own there may have the name of one of our packages
    home = Path(__file__).resolve().parent.parent
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent.parent != home:
            raise ImportError(
                f"{spec.origin} hides greenserve's package {package}; rename it, or run in another folder"
            )
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ImportError(
            f"greenserve.{name} needs the extra {extra} ({error}): pip install 'greenserve[{extra}]'"
        ) from None
    return getattr(module, name)
