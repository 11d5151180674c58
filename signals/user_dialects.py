"""Dialects of the user's own: declared by an installed distribution, or named in city.toml as `module:Class`.

An installed distribution declares its dialects as entry points of the group `greenserve.dialects`.
Nothing else is imported: neither a name in a contract nor a file in the city's folder.
"""

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from city import user_code
from city.errors import InputError

GROUP = "greenserve.dialects"
"""Group of the entry points."""


@functools.cache
def installed() -> dict[str, list[EntryPoint]]:
    """By name, the dialects that installed distributions declare; they are not imported."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return points


def load_installed(name: str, where: str, protocol: type) -> Any:
    """The dialect that an installed distribution declares under a name. Raises InputError."""
    values = sorted({point.value for point in installed()[name]})
    if len(values) > 1:
        raise InputError(f"{where} is declared by several distributions, as {' and as '.join(values)}; uninstall one")
    return checked(_imported(installed()[name][0].load, f"{where}, {values[0]},"), where, protocol)


def load(spec: str, where: str, protocol: type) -> Any:
    """The dialect that `module:Class` names. Raises InputError.

    Args:
        spec: text in city.toml.
        where: beginning of an error's text.
        protocol: what the dialect must implement.
    """
    module, _, attribute = spec.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InputError(f"{where} must be module:Class, such as my_package.counts:Counts")
    return checked(_imported(lambda: user_code.named(spec), where), where, protocol)


def _imported(read: Callable[[], Any], where: str) -> Any:
    """The object that `read` imports, or an instance of the class. Raises InputError."""

    def instance() -> Any:
        found = read()
        return found() if isinstance(found, type) else found

    return user_code.imported(instance, f"{where} ")


def checked(dialect: Any, where: str, protocol: type) -> Any:
    """The dialect, if it implements the protocol. Raises InputError that names what is missing."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = [name for name in protocol.__annotations__ if not hasattr(dialect, name)]
    missing += [f"{name}()" for name in methods if not callable(getattr(dialect, name, None))]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}; see the protocol in docs/reference/dialects.md")
    if not isinstance(dialect.name, str) or not dialect.name or ":" in dialect.name:
        raise InputError(f"{where} has the name {dialect.name!r}; it must be text without a colon, such as my-counts")
    return dialect
