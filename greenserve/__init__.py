"""The installed command `greenserve`: every program of the project under one name. As a library, its environments."""

from typing import TYPE_CHECKING, Any

from city.errors import InputError

if TYPE_CHECKING:
    from environment import env, parallel_env

__all__ = ["InputError", "env", "parallel_env"]


def __getattr__(name: str) -> Any:
    """Import an environment when it is first used: the command must start fast, and needs no Gymnasium."""
    if name not in ("env", "parallel_env"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import environment
    except ImportError as error:
        raise ImportError(
            f"greenserve.{name} needs the extra environment ({error}): pip install 'greenserve[environment]'"
        ) from None
    return getattr(environment, name)
