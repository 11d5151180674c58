"""Names of TLs: `SA 101`, `SA_101` and `SA101` are the same TL."""

import re
from collections.abc import Iterable, Sequence

from city.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


def canonical(name: str) -> str:
    """`SA 101` -> `SA101`. Raises InputError for what cannot name a folder."""
    short = re.sub(r"[\s_]+", "", name)
    if not _NAME.fullmatch(short):
        raise InputError(f"{name!r} is no name for a TL: use letters, digits, '.' and '-', such as SA101")
    return short


def select(asked: Iterable[str], known: Sequence[str], flag: str) -> list[str]:
    """The TLs that a flag asks for, in the order asked, without repeats.

    `asked` holds the flag's values; each may list several TLs with commas, and
    `all` means every known one. Raises InputError for a TL that is not known.
    """
    chosen: dict[str, None] = {}
    for value in asked:
        for word in filter(None, (part.strip() for part in value.split(","))):
            if word == "all":
                chosen.update(dict.fromkeys(known))
                continue
            name = canonical(word)
            if name not in known:
                raise InputError(f"{flag}: there is no TL {name} in the city; there are {', '.join(known) or 'none'}")
            chosen[name] = None
    if not chosen:
        raise InputError(f"{flag} names no TL; there are {', '.join(known) or 'none'}")
    return list(chosen)
