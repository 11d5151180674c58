"""Find a TL's checkpoint under model_path, and read settings from its name."""

import functools
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from city.errors import InputError
from city.names import canonical, key, spans, tls_in
from city.printable import printable
from export import checkpoints
from export.checkpoints import regular_files, scopes

MAX_LABELS = 8
"""Checkpoints that an error names."""
MAX_STATE_BYTES = 16 << 20
"""Limit for a `checkpoint` state file."""
UNREAD = {
    ".ckpt": ".ckpt is not read; if it is a PyTorch Lightning file, name it .pt",
    ".pkl": "a pickle may run code; save its weights: numpy.savez(path, **weights_by_name), or torch.save(model."
    "state_dict(), 'actor.pt')",
    ".pb": "a frozen graph is not read; save a SavedModel",
    ".npy": "an array without names is not read; save all with numpy.savez(path, **weights_by_name)",
    ".meta": "a graph alone has no weights; copy the checkpoint's .index and .data files too",
}
"""Suffix of files that are not read -> the remedy."""
_TRIAL = re.compile(r"(?:trial|round)[_-]?(\d+)", re.I)
_MANAGED = re.compile(r"-(\d+)$")
_STEPS = re.compile(r"_(\d+)_steps$")
_HIDDEN_SIZES = re.compile(r"netSz_\((\d[\d, ]*)\)")
_SETTINGS = {
    "state": re.compile(r"_state_([a-z]+)(?=[_-])"),
    "action": re.compile(r"_action_(?!t_\d)([a-z]+)(?=[_-])"),
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
    """True if a `checkpoint` state file names it as the latest."""
    folders: tuple[str, ...] = ()
    """Names of the folders between the folder of checkpoints and the file."""

    @property
    def label(self) -> str:
        """The name in messages; with the folder's if it is a number or the same for every checkpoint."""
        needs_parent = self.path.name.isdigit() or self.path.name.startswith("module_state.")
        name = f"{self.path.parent.name}/{self.path.name}" if needs_parent else self.path.name
        # a file name may contain bytes that neither a terminal nor a contract can
        return printable(name.encode("utf-8", "backslashreplace").decode())

    @property
    def hidden_sizes(self) -> tuple[int, ...] | None:
        """Units of the hidden layers, if the file name has them (netSz)."""
        match = _HIDDEN_SIZES.search(self.path.name)
        return tuple(int(n) for n in re.findall(r"\d+", match[1])) if match else None

    @property
    def settings(self) -> dict[str, str]:
        """Settings of city.toml's [tl.NAME] that the file name contains, as text."""
        matches = {key: pattern.search(self.path.name + "-") for key, pattern in _SETTINGS.items()}
        return {key: match[1] for key, match in matches.items() if match}

    def is_named_after(self, tl: str) -> bool:
        """Tell whether the file name contains the TL's."""
        return _contains_name(self.path.name, tl)

    def has_no_tl(self, known_tls: tuple[str, ...]) -> bool:
        """Tell whether neither the file name nor a folder of the path contains a TL's name."""
        return not any(tls_in(part) or _known_in(part, known_tls) for part in (*self.folders, self.path.name))

    def is_of_another_tl(self, tl: str, longer_names: Sequence[str], known_tls: tuple[str, ...]) -> bool:
        """Tell whether another TL's name is nearer to the actor than this TL's: in the file's name, or an inner
        folder's.

        Args:
            tl: the TL.
            longer_names: TLs' names that contain this TL's; they take precedence.
            known_tls: all TLs.
        """
        folders = {key(folder) for folder in self.folders}
        is_own_folder = key(tl) in folders
        if tl.isdigit() and not is_own_folder and not folders.isdisjoint(map(key, known_tls)):
            return True
        for name in (self.path.name, *reversed(self.folders)):
            if _contains_name(name, tl, longer_names):
                return False
            # a number in the name of a file in a TL's own folder may be a step or a seed
            if tls_in(name) or any(not (is_own_folder and other.isdigit()) for other in _known_in(name, known_tls)):
                return True
        return False


@functools.lru_cache(maxsize=10_000)
def _known_in(text: str, known_tls: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(tl for tl in known_tls if _contains_name(text, tl))


def _contains_name(text: str, tl: str, longer_names: Sequence[str] = ()) -> bool:
    """Tell whether a text contains a TL's name outside a model number and a longer TL's name."""
    # a substring test first: there may be 1,000 TLs for each of 1,000 checkpoints
    if _without_separators(tl) not in _without_separators(text) or not (tl_spans := spans(text, tl)):
        return False
    other_spans = [span for name in longer_names for span in spans(text, name)]
    if match := _number_match(text):
        other_spans.append(match.span())
    return any(not any(begin <= first and last <= end for begin, end in other_spans) for first, last in tl_spans)


@functools.lru_cache(maxsize=100_000)
def _without_separators(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name)


def find_candidates(model_path: Path) -> list[Candidate]:
    """Every checkpoint under model_path, or the one that it names. Raises InputError if there is none."""
    if not model_path.is_dir():
        return [named_candidate(model_path)]
    candidates: list[Candidate] = []
    for root, folders, names in os.walk(model_path):
        folder = Path(root)
        if "saved_model.pb" in names:
            # the files in a SavedModel's folder belong to it, its variables above all
            folders.clear()
            names = ["saved_model.pb"]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        latest = _latest(folder) if "checkpoint" in names else None
        for name in sorted(names):
            if not name.startswith(".") and not _has_no_actor(name) and (candidate := candidate_of(folder / name)):
                parents = candidate.path.parent.relative_to(model_path).parts
                candidates.append(replace(candidate, newest=latest == candidate.path.name, folders=parents))
    return candidates


def named_candidate(path: Path) -> Candidate:
    """The checkpoint of a file or of a TensorFlow prefix. Raises InputError if it is none."""
    file = path if path.is_file() else path.with_name(f"{path.name}.index")
    if not file.is_file():
        raise InputError(
            f"{path}: no such file or folder, and no checkpoint with this prefix; name one, or a folder of them"
        )
    if (candidate := candidate_of(file)) is None:
        raise InputError(f"{path}: is not a checkpoint by its name; docs/reference/checkpoints.md lists the formats")
    return replace(candidate, folders=(file.absolute().parent.name,))


def candidate_of(file: Path) -> Candidate | None:
    """The checkpoint that a file represents, if a source reads it."""
    for source in checkpoints.sources():
        if path := source.checkpoint_of(file):
            number = source.model_number(path)
            if number is None:
                is_number = path.name.isascii() and path.name.isdigit()
                number = int(path.name) if is_number else number_in_name(path.name)
            return Candidate(path, source.format, number)
    return None


@dataclass(frozen=True)
class Search:
    """The checkpoints under a folder, and the names by which they belong to TLs.

    A checkpoint belongs to a TL if its file name or the name of a folder of its path
    contains the TL's. A checkpoint without a TL's name may hold several agents; it is
    used if the TL has no other.
    """

    folder: Path
    candidates: Sequence[Candidate]
    known_tls: Sequence[str] = ()
    """The TLs of the city and of training; their names may have any form."""
    signal_of: Mapping[str, str] = field(default_factory=dict)
    """TL -> signal whose id may name the TL's checkpoints, too."""
    flag: str = "--model-path"
    """Names the folder, in messages."""

    def choose(self, tl: str, number: int | None) -> Candidate:
        """The checkpoint of a TL with a model number; `None` means the newest.

        Raises InputError if there is no such checkpoint, or more than one.
        """
        pool = _without_companions(self._of(tl))
        if not pool:
            raise self._nothing_found(tl)
        if number is None:
            chosen = _newest(pool)
        else:
            chosen = [c for c in pool if c.number == number] or [c for c in pool if c.number is None]
        if not chosen:
            numbers = sorted({candidate.number for candidate in pool if candidate.number is not None})
            available = ", ".join(map(str, numbers)) or "none with a number"
            raise InputError(
                f"no checkpoint of {tl} with model number {number}: {self._searched}; available: {available}"
            )
        if len(chosen) > 1:
            paths = ", ".join(str(candidate.path.relative_to(self.folder)) for candidate in chosen)
            if chosen[0].number is None:
                raise InputError(
                    f"{tl} has several checkpoints without a number: {paths}; pass one of them with {self.flag}"
                )
            raise InputError(
                f"{tl} has several checkpoints with the same number: {paths}; pass one of them with {self.flag}, or "
                "another --model-number"
            )
        return chosen[0]

    @property
    def _searched(self) -> str:
        return f"searched {len(self.candidates)} checkpoints under {self.folder}"

    def _nothing_found(self, tl: str) -> InputError:
        labels = dict.fromkeys(candidate.label for candidate in self.candidates[:MAX_LABELS])
        more = ", ..." if len(self.candidates) > MAX_LABELS else ""
        foreign = [
            c.label for c in self.candidates for f in c.folders if any(_contains_name(f, n) for n in self._names(tl))
        ]
        if foreign:
            return InputError(
                f"no checkpoint for {tl}: {foreign[0]} lies in a folder of {tl}, but a name nearer to it is "
                f"another TL's; put {tl} into its name if it is {tl}'s"
            )
        below = (printable(path.name) for path in self.folder.rglob("*") if not self.candidates and path.is_file())
        if files := list(dict.fromkeys(itertools.islice(below, MAX_LABELS))):
            remedies = [remedy for suffix, remedy in UNREAD.items() if any(file.endswith(suffix) for file in files)]
            return InputError(
                f"no checkpoint for {tl}: {self.folder} has files of kinds that are not read ({', '.join(files)}); "
                f"{remedies[0] if remedies else 'docs/reference/checkpoints.md lists those that are'}"
            )
        return InputError(
            f"no checkpoint for {tl}: {self._searched} ({', '.join(labels) or 'none'}{more}); "
            f"put {' or '.join(self._names(tl))} into the name of the file or of its folder, "
            f"or pass another {self.flag}"
        )

    def is_assigned(self, candidate: Candidate) -> bool:
        """Tell whether a checkpoint was chosen by its name or its folder's, and not because it has no TL's name."""
        return not candidate.has_no_tl(self._known_names)

    @property
    def _known_names(self) -> tuple[str, ...]:
        return (*self.known_tls, *self.signal_of.values())

    def _names(self, tl: str) -> list[str]:
        return [tl, self.signal_of[tl]] if tl in self.signal_of else [tl]

    def _of(self, tl: str) -> Sequence[Candidate]:
        """A TL's checkpoints by file name, else by folder, each by the TL's name or its signal's; else those without
        any name. No clue counts against a stronger one, such as a folder's name against the file's."""
        known_names = self._known_names
        for name in self._names(tl):
            text = _without_separators(name)
            longer = [known for known in known_names if len(known) > len(name) and text in _without_separators(known)]
            for places in (lambda each: [each.path.name], lambda each: each.folders):
                found = [c for c in self.candidates if any(_contains_name(place, name, longer) for place in places(c))]
                if found := [each for each in found if not each.is_of_another_tl(name, longer, known_names)]:
                    return found
        return [candidate for candidate in self.candidates if candidate.has_no_tl(known_names)]


def _without_companions(pool: Sequence[Candidate]) -> list[Candidate]:
    """Leave out target networks and optimizers that lie beside a model of the same number, by their names."""
    companions = [c for c in pool if scopes.is_companion(c.path.name.split(".")[0])]
    models = {(c.path.parent, c.number) for c in pool if c not in companions}
    return [c for c in pool if c not in companions or (c.path.parent, c.number) not in models]


def _newest(pool: Sequence[Candidate]) -> Sequence[Candidate]:
    """The newest checkpoints of the folders with the highest number; the whole pool if none has a number."""
    newest: list[Candidate] = []
    for folder in dict.fromkeys(candidate.path.parent for candidate in pool):
        numbered = [c for c in pool if c.number is not None and c.path.parent == folder]
        # the one in the folder's state file, else that with the highest number
        newest += [c for c in numbered if c.newest] or _with_highest_number(numbered)
    return _with_highest_number(newest) or pool


def _with_highest_number(candidates: Sequence[Candidate]) -> list[Candidate]:
    highest = max((c.number for c in candidates if c.number is not None), default=None)
    return [c for c in candidates if c.number == highest]


def tls_in_names(candidates: Sequence[Candidate]) -> list[str]:
    """The TLs in the names of checkpoints and their folders, for checkpoints without a city."""
    found = (tls_in(candidate.path.name) or tls_in(candidate.path.parent.name) for candidate in candidates)
    return sorted({canonical(tls[0]) for tls in found if tls})


def number_in_name(name: str) -> int | None:
    """The model number in a name: trial_3, round-3, a CheckpointManager's -3, or stable-baselines3's _3000_steps."""
    match = _number_match(name)
    return int(match[1]) if match else None


def _number_match(name: str) -> re.Match[str] | None:
    """The part of a name that is the model number, such as trial_3."""
    stem = re.sub(r"(\.weights)?\.(h5|hdf5|keras|npz|zip|pt|pth|safetensors|onnx|policy)$", "", name)
    return _TRIAL.search(stem) or _MANAGED.search(stem) or _STEPS.search(stem)


def _has_no_actor(name: str) -> bool:
    """Tell whether a file holds only a critic, an optimizer or an old copy, by its name."""
    lower = name.lower()
    words = set(re.findall(r"[a-z]+", lower))
    if re.search(r"(target|old)[_-]?(actor|policy|pi|net)|(actor|policy|pi)[_-](target|old)", lower):
        return True
    return bool(words & {"critic", "value", "vf", "optimizer"}) and not words & {"actor", "policy", "pi"}


def _latest(folder: Path) -> str | None:
    """The latest checkpoint according to the `checkpoint` state file of a folder."""
    path = folder / "checkpoint"
    try:
        regular_files.check(path, MAX_STATE_BYTES)
        text = path.read_text(encoding="utf-8")
    except (InputError, OSError, UnicodeDecodeError):
        return None
    match = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.M)
    return Path(match[1]).name if match else None
