"""Names of TLs. Spaces and underscores do not count: `SA 101`, `SA_101` and `SA101` are the same TL."""

import re
from collections.abc import Iterable, Mapping, Sequence

from city.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBERED = re.compile(r"([A-Za-z]+)[\s_]*(\d+)")
_TL_IN_TEXT = re.compile(r"(?<![A-Za-z0-9])([A-Z]{2,3})[ _]?\d{2,6}(?![A-Za-z0-9])")
_ABBREVIATIONS = {
    *("PPO", "DQN", "SAC", "TQC", "PG", "AC", "RL", "DRL", "NN", "MLP", "HL", "LR", "BS", "EP", "EPS", "ID", "RUN"),
    *("EXP", "VER", "GPU", "CPU", "SB"),
}
"""Capitals before a number that is no TL's: algorithms, settings and counters of training."""


MAX_SIGNAL_NAME = 24
"""Maximum length of a signal's id that `city init` takes as the TL's name. Of a longer one the TL gets a short name, so
its checkpoint may be named after the signal."""


def canonical(name: str) -> str:
    """The form in which a name is shown: `SA101` for `SA 101`; other names keep their underscores.

    Raises InputError if it cannot be the name of a folder.
    """
    numbered = _NUMBERED.fullmatch(name.strip())
    result = "".join(numbered.groups()) if numbered else re.sub(r"\s+", "_", name.strip())
    if not _NAME.fullmatch(result):
        raise InputError(f"{name!r} is not a valid TL name: use letters, digits, '.', '-' and '_', such as SA101")
    return result


def key(name: str) -> str:
    """A name without spaces and underscores: equal for all spellings of a TL's name."""
    return re.sub(r"[\s_]+", "", name)


class Index:
    """TLs by their names, for any spelling of them."""

    def __init__(self, tls: Iterable[str]) -> None:
        self.tls = list(tls)
        self._by_key = {key(tl): tl for tl in self.tls}

    def find(self, name: str) -> str | None:
        """The TL that a name denotes, or None."""
        return self._by_key.get(key(name))


def select(
    values: Iterable[str], tls: Sequence[str] | Index, flag: str, tl_of_signal: Mapping[str, str] | None = None
) -> list[str]:
    """The TLs that a flag selects, in order, without duplicates. Raises InputError for an unknown TL.

    Args:
        values: the flag's values; each may list several TLs separated by commas, and `all` selects every TL.
        tls: the TLs to select from.
        flag: the flag's name, for error messages.
        tl_of_signal: signal -> its TL, which an error names if a value is the signal's id.
    """
    index = tls if isinstance(tls, Index) else Index(tls)
    selected: dict[str, None] = {}
    for value in values:
        for word in filter(None, (part.strip() for part in value.split(","))):
            if word == "all":
                selected.update(dict.fromkeys(index.tls))
                continue
            name = index.find(word)
            if name is None and tl_of_signal and word in tl_of_signal:
                raise InputError(
                    f"{flag}: {word} is a signal, which belongs to TL {tl_of_signal[word]}; pass {tl_of_signal[word]}"
                )
            if name is None:
                raise InputError(f"{flag}: {canonical(word)} is not one of the TLs {', '.join(index.tls) or 'none'}")
            selected[name] = None
    if not selected:
        raise InputError(f"{flag} selects no TL; the TLs are {', '.join(index.tls) or 'none'}")
    return list(selected)


def listed(names: Sequence[str], limit: int) -> str:
    """Names for a line of text: the first ones, and the number of further ones, such as "SA101, SA102 and 3 more"."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def tls_in(text: str) -> list[str]:
    """The TL names of training in a file's or a scope's name, as they are written there, such as `SA 101`."""
    return [match[0] for match in _TL_IN_TEXT.finditer(text) if match[1] not in _ABBREVIATIONS]


def contains_tl(text: str, tl: str) -> bool:
    """True if a text contains the TL's name as a word."""
    return bool(spans(text, tl))


def spans(text: str, tl: str) -> list[tuple[int, int]]:
    """(begin, end) of each occurrence of a TL's name in a text, also with a space or underscore for a hyphen."""
    name = r"[\s_]*".join(r"[-\s_]" if letter == "-" else re.escape(letter) for letter in key(tl))
    return [match.span() for match in re.finditer(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", text)]
