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


def next_action(
    on_disk: Mapping[int, Fingerprint], loaded: Mapping[int, Fingerprint], failed: Mapping[int, Fingerprint]
) -> Action | None:
    """The next step towards serving the newest version on disk.

    Versions come with the fingerprint of their files. The newest is loaded before
    an older one is dropped, and again once its files have changed. A version that
    failed is tried again then too: it may have been half copied. While it fails,
    what is loaded keeps answering.
    """
    if not on_disk:
        # a model whose folder is gone is dropped, as TensorFlow Serving does
        return Action(Verb.DROP, min(loaded)) if loaded else None
    newest = max(on_disk)
    if loaded.get(newest) != on_disk[newest]:
        if failed.get(newest) != on_disk[newest]:
            return Action(Verb.LOAD, newest)
        if loaded:
            return None
        older = [version for version in on_disk if version < newest and failed.get(version) != on_disk[version]]
        return Action(Verb.LOAD, max(older)) if older else None
    stale = [version for version in loaded if version != newest]
    return Action(Verb.DROP, min(stale)) if stale else None
