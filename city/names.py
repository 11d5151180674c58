"""Names of TLs: `SA 101`, `SA_101` and `SA101` are the same TL."""

import re
from collections.abc import Iterable, Sequence

from city.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
TL_PATTERN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2,3}[ _]?\d{2,6}(?![A-Za-z0-9])")
"""TL names in file and scope names of training, such as `SA 101`."""


def canonical(name: str) -> str:
    """Normalise a TL name: `SA 101` -> `SA101`. Raises InputError if the result cannot name a folder."""
    short = re.sub(r"[\s_]+", "", name)
    if not _NAME.fullmatch(short):
        raise InputError(f"{name!r} is not a valid TL name: use letters, digits, '.' and '-', such as SA101")
    return short


def select(values: Iterable[str], known: Sequence[str], flag: str) -> list[str]:
    """The TLs that a flag selects, in order, without duplicates. Raises InputError for an unknown TL.

    Args:
        values: the flag's values; each may list several TLs with commas, and `all` means every known TL.
        known: the city's TLs.
        flag: for the error message.
    """
    selected: dict[str, None] = {}
    for value in values:
        for word in filter(None, (part.strip() for part in value.split(","))):
            if word == "all":
                selected.update(dict.fromkeys(known))
                continue
            name = canonical(word)
            if name not in known:
                raise InputError(f"{flag}: {name} is not one of the TLs {', '.join(known) or 'none'}")
            selected[name] = None
    if not selected:
        raise InputError(f"{flag} selects no TL; the TLs are {', '.join(known) or 'none'}")
    return list(selected)


def contains_tl(text: str, tl: str) -> bool:
    """Whether a text contains the TL's name as a word.

    Spaces and underscores within the name do not count, and a hyphen in the name may be one of them: a signal
    `GS_cluster_3` is TL `GS-cluster-3`.
    """
    name = r"[\s_]*".join(r"[-\s_]" if letter == "-" else re.escape(letter) for letter in tl)
    return re.search(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", text) is not None
