"""Names of TLs. Spaces and underscores do not count: `SA 101`, `SA_101` and `SA101` are the same TL."""

import re
from collections.abc import Iterable, Sequence

from city.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBERED = re.compile(r"([A-Za-z]+)[\s_]*(\d+)")
TL_PATTERN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2,3}[ _]?\d{2,6}(?![A-Za-z0-9])")
"""TL names in file and scope names of training, such as `SA 101`."""


def canonical(name: str) -> str:
    """The name that is shown: `SA 101` is `SA101`, other names keep their underscores.

    Raises InputError if it cannot be the name of a folder.
    """
    numbered = _NUMBERED.fullmatch(name.strip())
    shown = "".join(numbered.groups()) if numbered else re.sub(r"\s+", "_", name.strip())
    if not _NAME.fullmatch(shown):
        raise InputError(f"{name!r} is not a valid TL name: use letters, digits, '.', '-' and '_', such as SA101")
    return shown


def key(name: str) -> str:
    """What two names of the same TL have in common."""
    return re.sub(r"[\s_]+", "", name)


def by_key(known: Iterable[str]) -> dict[str, str]:
    """The known TLs by their key."""
    return {key(tl): tl for tl in known}


def find(name: str, known: Iterable[str]) -> str | None:
    """The one of the known TLs that a name means; None if there is none."""
    return by_key(known).get(key(name))


def select(values: Iterable[str], known: Sequence[str], flag: str) -> list[str]:
    """The TLs that a flag selects, in order, without duplicates. Raises InputError for an unknown TL.

    Args:
        values: the flag's values; each may list several TLs with commas, and `all` means every known TL.
        known: the city's TLs.
        flag: for the error message.
    """
    tls = by_key(known)
    selected: dict[str, None] = {}
    for value in values:
        for word in filter(None, (part.strip() for part in value.split(","))):
            if word == "all":
                selected.update(dict.fromkeys(known))
                continue
            name = tls.get(key(word))
            if name is None:
                raise InputError(f"{flag}: {canonical(word)} is not one of the TLs {', '.join(known) or 'none'}")
            selected[name] = None
    if not selected:
        raise InputError(f"{flag} selects no TL; the TLs are {', '.join(known) or 'none'}")
    return list(selected)


def contains_tl(text: str, tl: str) -> bool:
    """Whether a text contains the TL's name as a word."""
    return bool(spans(text, tl))


def spans(text: str, tl: str) -> list[tuple[int, int]]:
    """(begin, end) of the places in a text that are the TL's name; a hyphen in the name may be a space or underscore there."""
    name = r"[\s_]*".join(r"[-\s_]" if letter == "-" else re.escape(letter) for letter in key(tl))
    return [match.span() for match in re.finditer(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", text)]
