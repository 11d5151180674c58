"""Which version of a model to load or to drop: a snapshot in, at most one action out."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Fingerprint = tuple[tuple[str, int, int], ...]


class Verb(Enum):
    LOAD = "load"
    DROP = "drop"


@dataclass(frozen=True)
class Action:
    verb: Verb
    version: int


@dataclass(frozen=True)
class VersionPolicy:
    """Which of the versions on disk are wanted, as TensorFlow Serving's model_version_policy."""

    latest: int | None = 1
    """The newest so many; None: all, or the specific ones."""
    specific: tuple[int, ...] | None = None

    def aspired(self, on_disk: Mapping[int, object]) -> set[int]:
        """The versions wanted of those there are."""
        if self.specific is not None:
            return set(self.specific) & set(on_disk)
        return set(sorted(on_disk, reverse=True)[: self.latest])


NEWEST = VersionPolicy()


def next_action(
    on_disk: Mapping[int, Fingerprint],
    loaded: Mapping[int, Fingerprint],
    failed: Mapping[int, Fingerprint],
    policy: VersionPolicy = NEWEST,
) -> Action | None:
    """The next step towards serving the versions that the policy wants.

    Versions come with the fingerprint of their files. What is wanted is loaded,
    the newest first, before anything else is dropped, and again once its files
    have changed. A version that failed is tried again then too: it may have been
    half copied. While one fails, what is loaded keeps answering.
    """
    if not on_disk:
        # a model whose folder is gone is dropped, as TensorFlow Serving does
        return Action(Verb.DROP, min(loaded)) if loaded else None
    wanted = policy.aspired(on_disk)
    due = [v for v in wanted if loaded.get(v) != on_disk[v] and failed.get(v) != on_disk[v]]
    if due:
        return Action(Verb.LOAD, max(due))
    failing = [v for v in wanted if loaded.get(v) != on_disk[v]]
    if failing and not loaded and policy.specific is None:
        # an older version is better than none
        older = [v for v in on_disk if v not in wanted and failed.get(v) != on_disk[v]]
        return Action(Verb.LOAD, max(older)) if older else None
    if failing:
        return None
    stale = [v for v in loaded if v not in wanted]
    return Action(Verb.DROP, min(stale)) if stale else None
