"""A TL's settings from city.toml and the checkpoint's file name."""

from dataclasses import replace
from typing import Any

from city.config import TL, City
from city.errors import InputError
from export.locate import Candidate
from signals import dialects

MAX_FILE_NAME_SETTING = 1000
_BOUNDS = {"actionp": (0, 1), "add_time_s": (0, MAX_FILE_NAME_SETTING)}
"""Bounds of numbers in file names; others lie between 1 and MAX_FILE_NAME_SETTING."""


def settings_of(city: City | None, name: str, candidate: Candidate) -> TL | None:
    """A TL's settings in city.toml, completed by the checkpoint's file name, or `None` without a city.

    Raises InputError if the two contradict each other.
    """
    if city is None or name not in city.tls:
        return None
    tl = city.tls[name]
    dialect = dialects.find(tl.dialect, f"{city.path}: [tl.{name}]")
    from_file_name: dict[str, Any] = {}
    for key, text in candidate.settings.items():
        if key not in dialect.file_name_settings:
            raise InputError(
                f"{name}: {candidate.label} has {key} {text}, which is not a setting of dialect {tl.dialect} in "
                f"{city.path}; fix the one that is wrong"
            )
        value: Any = text if key in ("state", "action") else float(text) if key == "actionp" else int(text)
        low, high = _BOUNDS.get(key, (1, MAX_FILE_NAME_SETTING))
        if not isinstance(value, str) and not low <= value <= high:
            raise InputError(f"{name}: {candidate.label} has {key} {text}; it must lie between {low} and {high}")
        from_file_name[key] = agree_or_raise(city, name, candidate, key, getattr(tl, key), value)
    settings = replace(tl, **from_file_name)
    try:
        dialect.check_settings(settings)
    except InputError as error:
        raise InputError(f"{name}: {candidate.label}: {error}") from None
    return settings


def agree_or_raise(
    city: City | None, name: str, candidate: Candidate, key: str, in_city: Any, in_file_name: Any
) -> Any:
    """The value of a setting that city.toml, the file name or both have. Raises InputError if they differ."""
    if in_city is not None and in_file_name is not None and in_city != in_file_name:
        file_value, city_value = (
            ", ".join(map(str, v)) if isinstance(v, tuple) else v for v in (in_file_name, in_city)
        )
        path = city.path if city else "city.toml"
        raise InputError(
            f"{name}: {candidate.label} has {key} {file_value}, but {path} has {city_value}; fix the one that is wrong"
        )
    return in_file_name if in_city is None else in_city
