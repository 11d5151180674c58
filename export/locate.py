"""Where a TL's checkpoint is: what lies under model_path, and what its names say."""

import re
from dataclasses import dataclass
from pathlib import Path

from city.errors import InputError
from city.names import canonical

_TRIAL = re.compile(r"trial[_-]?(\d+)", re.I)
_MANAGED = re.compile(r"-(\d+)$")
_SIZES = re.compile(r"netSz_\(([\d, ]+)\)")
_SETTING = {"state": re.compile(r"_state_([a-z]+)_"), "action": re.compile(r"_action_([a-z]+?)(?:_|-)")}


@dataclass(frozen=True)
class Candidate:
    """One checkpoint on disk."""

    path: Path
    """A file (HDF5) or the prefix of a TensorFlow checkpoint."""
    format: str
    """tensorflow | keras-h5"""
    number: int | None
    """Model number, as the name tells it."""
    newest: bool
    """Whether a `checkpoint` state file names it as the latest."""

    @property
    def label(self) -> str:
        return self.path.name

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Hidden sizes that the file name tells (netSz); None: it tells none."""
        match = _SIZES.search(self.path.name)
        return tuple(int(n) for n in re.findall(r"\d+", match[1])) if match else None

    def said(self, setting: str) -> str | None:
        """What the file name says of `state` or `action`; None: nothing."""
        match = _SETTING[setting].search(self.path.name + "-")
        return match[1] if match else None


def candidates(model_path: Path) -> list[Candidate]:
    """Every checkpoint under model_path. Raises InputError where there is no such folder."""
    if not model_path.is_dir():
        raise InputError(f"{model_path}: no such folder; name the checkpoints' folder with --model-path or [training] model_path")
    found = []
    latest: dict[Path, str | None] = {}
    for path in sorted(model_path.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(model_path).parts):
            continue
        if path.suffix == ".index" and path.is_file():
            prefix = path.with_suffix("")
            if prefix.parent not in latest:
                latest[prefix.parent] = _latest(prefix.parent)
            found.append(Candidate(prefix, "tensorflow", _number(prefix.name), latest[prefix.parent] == prefix.name))
        elif path.suffix in (".h5", ".hdf5", ".keras") and path.is_file() and "critic" not in path.name.lower():
            found.append(Candidate(path, "keras-h5", _number(path.name), False))
    return found


def choose(tl: str, model_path: Path, number: int | None, scope: str | None) -> Candidate:
    """The checkpoint of a TL: of the number asked for, else the newest.

    A checkpoint is a TL's where its name, or the folder that holds it, carries
    the TL's; one without any TL's name may hold several agents, and counts
    where no other does. Raises InputError with the places looked at.
    """
    everything = candidates(model_path)
    mine = [c for c in everything if _carries(c.path.name, tl)] or [
        c for c in everything if c.path.parent != model_path and _carries(c.path.parent.name, tl)
    ]
    shared = [c for c in everything if c.format == "tensorflow" and not _TL_LIKE.search(c.path.name)]
    pool = mine or shared
    where = f"looked at {len(everything)} checkpoints under {model_path}"
    if not pool:
        seen = ", ".join(dict.fromkeys(c.label for c in everything[:8])) or "none"
        raise InputError(f"no checkpoint for {tl}: {where} ({seen}{', ...' if len(everything) > 8 else ''})")
    numbers = sorted({c.number for c in pool if c.number is not None})
    if number is not None:
        pool = [c for c in pool if c.number == number]
        if not pool:
            raise InputError(f"no checkpoint of {tl} with model number {number}: {where}; there are {_some(numbers)}")
    elif numbers:
        best = [c for c in pool if c.newest] or [c for c in pool if c.number == numbers[-1]]
        pool = best
    if len(pool) > 1:
        told = ", ".join(str(c.path.relative_to(model_path)) for c in pool)
        raise InputError(f"{tl} has several checkpoints of one number: {told}; narrow --model-path or say --model-number")
    return pool[0]


def tls_named(model_path: Path) -> list[str]:
    """The TLs that checkpoint names speak of, for a folder without a city."""
    found: dict[str, None] = {}
    for candidate in candidates(model_path):
        for text in (candidate.path.name, candidate.path.parent.name):
            match = _TL_LIKE.search(text)
            if match:
                found[canonical(match[0].strip("_- "))] = None
                break
    return sorted(found)


_TL_LIKE = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2,3}[ _]?\d{2,4}(?![A-Za-z0-9])")


def _carries(text: str, tl: str) -> bool:
    """Whether a name carries the TL's, spaces and underscores within it aside."""
    return re.search(r"(?<![A-Za-z0-9])" + r"[\s_]*".join(map(re.escape, tl)) + r"(?![A-Za-z0-9])", text) is not None


def _number(name: str) -> int | None:
    match = _TRIAL.search(name) or _MANAGED.search(name)
    return int(match[1]) if match else None


def _latest(folder: Path) -> str | None:
    """What the `checkpoint` state file of a folder calls the latest."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.M)
    return Path(match[1]).name if match else None


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none with a number"
