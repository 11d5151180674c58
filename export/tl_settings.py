"""A TL's settings from city.toml and the checkpoint's file name."""

from dataclasses import replace
from typing import Any

from city.config import TL, City
from city.errors import InputError, errors_about
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
    with errors_about(f"{name}: {candidate.label}"):
        from_file_name: dict[str, Any] = {}
        for key, text in candidate.settings.items():
            if key not in dialect.file_name_settings:
                raise InputError(
                    f"has {key} {text}, which is not a setting of dialect {tl.dialect} in {city.path}; "
                    "fix the one that is wrong"
                )
            from_file_name[key] = _value(key, text)
        if candidate.hidden_sizes is not None:
            from_file_name["hidden_sizes"] = candidate.hidden_sizes
        for key, value in from_file_name.items():
            in_city = getattr(tl, key)
            if in_city is not None and in_city != value:
                texts = [", ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in (value, in_city)]
                raise InputError(f"has {key} {texts[0]}, but {city.path} has {texts[1]}; fix the one that is wrong")
        settings = replace(tl, **from_file_name)
        dialect.check_settings(settings)
    return settings


def _value(key: str, text: str) -> str | float:
    if key in ("state", "action"):
        return text
    value = float(text) if key == "actionp" else int(text)
    low, high = _BOUNDS.get(key, (1, MAX_FILE_NAME_SETTING))
    if not low <= value <= high:
        raise InputError(f"has {key} {text}; it must lie between {low} and {high}")
    return value
