"""Which version of a model to load or unload next: a snapshot in, at most one action out.

The invariants, for every policy:
- Availability: a version is unloaded only after all aspired versions are loaded
  (TensorFlow Serving's AvailabilityPreservingPolicy), or if the folder is empty.
- Fallback: if the aspired versions fail to load and none is loaded, the newest
  older version that loads is served until an aspired version loads. A policy that
  names specific versions has no fallback.
- A version that failed is retried after its files have changed; for a timed retry
  the caller omits it from `failed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from serving.embedded.models.version_files import Fingerprint


class Operation(Enum):
    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True)
class ServableAction:
    operation: Operation
    version: int


@dataclass(frozen=True)
class VersionPolicy:
    """Which of the versions on disk to serve, as TensorFlow Serving's model_version_policy."""

    latest: int | None = 1
    """Number of newest versions; None: all, or the specific ones."""
    specific: tuple[int, ...] | None = None

    def aspired(self, on_disk: Mapping[int, object]) -> set[int]:
        """The aspired versions: those on disk that are to be served."""
        if self.specific is not None:
            return set(self.specific) & set(on_disk)
        return set(sorted(on_disk, reverse=True)[: self.latest])


NEWEST = VersionPolicy()


def next_servable_action(
    on_disk: Mapping[int, Fingerprint],
    loaded: Mapping[int, Fingerprint],
    failed: Mapping[int, Fingerprint],
    policy: VersionPolicy = NEWEST,
) -> ServableAction | None:
    """The next step towards serving the aspired versions; None if there is nothing to do.

    Args:
        on_disk: version -> fingerprint of its files.
        loaded: loaded version -> fingerprint at its load.
        failed: version that failed to load and is not due for a retry -> fingerprint at its last try.
        policy: selects the aspired versions.
    """
    if not on_disk:
        # a model whose folder is gone is unloaded, as in TensorFlow Serving
        return ServableAction(Operation.UNLOAD, min(loaded)) if loaded else None
    aspired = policy.aspired(on_disk)
    not_loaded = [version for version in aspired if loaded.get(version) != on_disk[version]]
    untried = [version for version in not_loaded if failed.get(version) != on_disk[version]]
    if untried:
        return ServableAction(Operation.LOAD, max(untried))
    if not_loaded and not loaded and policy.specific is None:
        older = [version for version in on_disk if version not in aspired and failed.get(version) != on_disk[version]]
        return ServableAction(Operation.LOAD, max(older)) if older else None
    if not_loaded:
        return None
    obsolete = [version for version in loaded if version not in aspired]
    return ServableAction(Operation.UNLOAD, min(obsolete)) if obsolete else None
