"""Find a TL's checkpoint under model_path, and read settings from its name."""

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from city.errors import InputError
from city.names import TL_PATTERN, canonical, spans
from export import checkpoints

_TRIAL = re.compile(r"(?:trial|round)[_-]?(\d+)", re.I)
_MANAGED = re.compile(r"-(\d+)$")
_STEPS = re.compile(r"_(\d+)_steps$")
MAX_LABELS = 8
"""Checkpoints that an error names."""
_SIZES = re.compile(r"netSz_\((\d[\d, ]*)\)")
_TEXT_SETTINGS = {"state": re.compile(r"_state_([a-z]+)(?=[_-])"), "action": re.compile(r"_action_(?!t_\d)([a-z]+)(?=[_-])")}
_NUMBER_SETTINGS = {
    "offset_range": re.compile(r"_offset_range_(\d+)(?=[_-])"),
    "control_cycle": re.compile(r"_control_cycle_(\d+)(?=[_-])"),
    "add_time_s": re.compile(r"_add_time_(\d+)(?=[_-])"),
    "actionp": re.compile(r"_actionp_(\d+(?:\.\d+)?)(?=[_-])"),
    "action_t_s": re.compile(r"_action_t_(\d+)(?=[_-])"),
}


@dataclass(frozen=True)
class Candidate:
    """One checkpoint on disk."""

    path: Path
    """A file (HDF5, npz, zip, pt), the prefix of a TensorFlow checkpoint, or the folder of a SavedModel."""
    format: str
    """Name of the source that reads it."""
    number: int | None
    """Model number in the name."""
    newest: bool = False
    """Whether a `checkpoint` state file names it as the latest."""

    @property
    def label(self) -> str:
        """Its name; with its folder's name if it is a number or the same for every checkpoint."""
        needs_parent = self.path.name.isdigit() or self.path.name.startswith("module_state.")
        name = f"{self.path.parent.name}/{self.path.name}" if needs_parent else self.path.name
        # a file name may contain bytes that a terminal or a contract cannot
        return re.sub(r"[\x00-\x1f\x7f]", "?", name.encode("utf-8", "backslashreplace").decode())

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Hidden sizes in the file name (netSz); None: it has none."""
        match = _SIZES.search(self.path.name)
        return tuple(int(n) for n in re.findall(r"\d+", match[1])) if match else None

    @property
    def settings(self) -> dict[str, str]:
        """Settings of city.toml's [tl.NAME] that the file name contains, as text."""
        matches = {
            key: pattern.search(self.path.name + "-") for key, pattern in (*_TEXT_SETTINGS.items(), *_NUMBER_SETTINGS.items())
        }
        return {key: match[1] for key, match in matches.items() if match}

    @cached_property
    def _squeezed(self) -> str:
        return _squeeze(self.path.name)

    def is_named_after(self, tl: str, longer: Sequence[str] = ()) -> bool:
        """Whether its name contains the TL's. `longer`: TLs whose names contain the TL's, and come before it."""
        return _squeeze(tl) in self._squeezed and _names(self.path.name, tl, longer)

    def has_no_tl(self, model_path: Path, known: Sequence[str]) -> bool:
        """Whether neither its name nor a folder of its path contains a TL's name."""
        parts = self.path.relative_to(model_path).parts
        return not any(
            TL_PATTERN.search(part) or any(_squeeze(tl) in _squeeze(part) and _names(part, tl) for tl in known) for part in parts
        )

    def is_in_folder_of(self, tl: str, model_path: Path, longer: Sequence[str] = ()) -> bool:
        """Whether the innermost folder below model_path that has a TL's name has this TL's. `longer`: as in `is_named_after`."""
        short = _squeeze(tl)
        for folder in reversed(self.path.parent.relative_to(model_path).parts):
            if short in _squeeze(folder) and _names(folder, tl, longer):
                return True
            if TL_PATTERN.search(folder):
                return False
        return False


def _names(text: str, tl: str, longer: Sequence[str] = ()) -> bool:
    """Whether a text contains a TL's name that is not part of a model number or of a longer TL's name."""
    own = spans(text, tl)
    others = [span for other in longer for span in spans(text, other)] if own else []
    if own and (match := _number_match(text)):
        others.append(match.span())
    return any(not any(begin <= first and last <= end for begin, end in others) for first, last in own)


@functools.lru_cache(maxsize=100_000)
def _squeeze(name: str) -> str:
    """A name without what may separate its parts: a fast test before `contains_tl`."""
    return re.sub(r"[\s_-]+", "", name)


def find_candidates(model_path: Path) -> list[Candidate]:
    """Every checkpoint under model_path. Raises InputError if there is no such folder."""
    if not model_path.is_dir():
        raise InputError(
            f"{model_path}: no such folder; pass the folder of checkpoints with --model-path or [training] model_path"
        )
    found: list[Candidate] = []
    for here, folders, names in os.walk(model_path):
        folder = Path(here)
        if "saved_model.pb" in names:
            # the files in a SavedModel's folder belong to it, its variables above all
            folders.clear()
            names = ["saved_model.pb"]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        latest = _latest(folder) if "checkpoint" in names else None
        for name in sorted(names):
            if not name.startswith(".") and not _is_training(name) and (candidate := candidate_of(folder / name)):
                found.append(replace(candidate, newest=latest == candidate.path.name))
    return found


def candidate_of(file: Path) -> Candidate | None:
    """The checkpoint that a file stands for; None: no source reads it."""
    for source in checkpoints.sources():
        if path := source.checkpoint_of(file):
            is_number = path.name.isascii() and path.name.isdigit()
            own = source.model_number(path)
            return Candidate(path, source.format, own if own is not None else int(path.name) if is_number else number(path.name))
    return None


def choose_candidate(
    tl: str, candidates: Sequence[Candidate], model_path: Path, wanted: int | None, known: Sequence[str] = ()
) -> Candidate:
    """The checkpoint of a TL: the one with the wanted number, else the newest.

    A checkpoint belongs to a TL if its name or the name of a folder of its path contains the
    TL's. A checkpoint without a TL's name may hold several agents, and is used
    if the TL has no other.

    Args:
        tl: the TL.
        candidates: every checkpoint under model_path.
        model_path: the folder of checkpoints.
        wanted: the model number; None: the newest.
        known: the city's TLs, whose names may have any form.

    Raises:
        InputError: there is no such checkpoint, or more than one.
    """
    pool = _named(tl, candidates, model_path, known)
    where = f"searched {len(candidates)} checkpoints under {model_path}"
    if not pool:
        labels = list(dict.fromkeys(candidate.label for candidate in candidates[: MAX_LABELS + 1]))
        more = ", ..." if len(candidates) > MAX_LABELS else ""
        raise InputError(
            f"no checkpoint for {tl}: {where} ({', '.join(labels[:MAX_LABELS]) or 'none'}{more}); "
            f"put {tl} into the name of the file or of its folder, or pass another --model-path"
        )
    chosen = _newest_of_all(pool) if wanted is None else _numbered(pool, wanted)
    if not chosen:
        numbers = sorted({candidate.number for candidate in pool if candidate.number is not None})
        available = ", ".join(map(str, numbers)) or "none with a number"
        raise InputError(f"no checkpoint of {tl} with model number {wanted}: {where}; available: {available}")
    if len(chosen) > 1:
        paths = ", ".join(str(candidate.path.relative_to(model_path)) for candidate in chosen)
        if chosen[0].number is None:
            raise InputError(f"{tl} has several checkpoints without a number: {paths}; narrow --model-path")
        raise InputError(
            f"{tl} has several checkpoints with the same number: {paths}; narrow --model-path or pass --model-number"
        )
    return chosen[0]


def _named(tl: str, candidates: Sequence[Candidate], model_path: Path, known: Sequence[str]) -> list[Candidate]:
    """A TL's checkpoints by file name; else by folder; else those without any TL's name."""
    short = _squeeze(tl)
    longer = [other for other in known if len(other) > len(tl) and other != tl and short in _squeeze(other)]
    return (
        [candidate for candidate in candidates if candidate.is_named_after(tl, longer)]
        or [candidate for candidate in candidates if candidate.is_in_folder_of(tl, model_path, longer)]
        or [candidate for candidate in candidates if candidate.has_no_tl(model_path, known)]
    )


def _numbered(pool: Sequence[Candidate], wanted: int) -> list[Candidate]:
    """The checkpoints with a number; else those without any, which take it."""
    return [c for c in pool if c.number == wanted] or [c for c in pool if c.number is None]


def _newest_of_all(pool: Sequence[Candidate]) -> Sequence[Candidate]:
    """The newest checkpoints of the folders with the greatest number; all of them if none has a number."""
    folders = {candidate.path.parent for candidate in pool}
    newest = [c for folder in folders for c in _newest([c for c in pool if c.path.parent == folder])]
    greatest = max((c.number for c in newest if c.number is not None), default=None)
    return pool if greatest is None else [c for c in newest if c.number == greatest]


def _newest(pool: Sequence[Candidate]) -> list[Candidate]:
    """The newest checkpoint of a folder: the one in its state file, else the highest number."""
    numbers = [c.number for c in pool if c.number is not None]
    return [c for c in pool if c.newest and c.number is not None] or [c for c in pool if numbers and c.number == max(numbers)]


def tls_named(candidates: Sequence[Candidate]) -> list[str]:
    """The TLs in the names of checkpoints, for a folder without a city."""
    tls: dict[str, None] = {}
    for candidate in candidates:
        for text in (candidate.path.name, candidate.path.parent.name):
            match = TL_PATTERN.search(text)
            if match:
                tls[canonical(match[0].strip("_- "))] = None
                break
    return sorted(tls)


def number(name: str) -> int | None:
    """The model number in a name: trial_3, round-3, a CheckpointManager's -3, or stable-baselines3's _3000_steps."""
    match = _number_match(name)
    return int(match[1]) if match else None


def _number_match(name: str) -> re.Match[str] | None:
    """The part of a name that is the model number, such as trial_3."""
    stem = re.sub(r"(\.weights)?\.(h5|hdf5|keras|npz|zip|pt|pth|safetensors|onnx)$", "", name)
    return _TRIAL.search(stem) or _MANAGED.search(stem) or _STEPS.search(stem)


def _is_training(name: str) -> bool:
    """Whether a file only holds a critic, an optimizer or an old copy, by the words of its name."""
    lower = name.lower()
    words = set(re.findall(r"[a-z]+", lower))
    if re.search(r"(target|old)[_-]?(actor|policy|pi|net)|(actor|policy|pi)[_-](target|old)", lower):
        return True
    return bool(words & {"critic", "value", "vf", "optimizer"}) and not words & {"actor", "policy", "pi"}


def _latest(folder: Path) -> str | None:
    """The latest checkpoint according to the `checkpoint` state file of a folder."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.M)
    return Path(match[1]).name if match else None
