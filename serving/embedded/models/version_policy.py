"""Which version of a model to load or unload next: a snapshot in, at most one action out.

The invariants, for every policy:
- Availability: a version is unloaded only after every wanted version is loaded
  (TensorFlow Serving's AvailabilityPreservingPolicy), or if the folder is empty.
- Fallback: if the wanted versions fail to load and none is loaded, the newest
  older version that loads is served, until a wanted version loads. A policy that
  names specific versions has no fallback.
- A version that failed is tried again after its files have changed; the caller
  leaves it out of `failed` for a timed retry.
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
    """Which of the versions on disk are wanted, as TensorFlow Serving's model_version_policy."""

    latest: int | None = 1
    """Number of newest versions; None: all of them, or the specific ones."""
    specific: tuple[int, ...] | None = None

    def aspired(self, on_disk: Mapping[int, object]) -> set[int]:
        """The wanted versions among those on disk."""
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
    """The next step towards serving the versions that the policy wants; None: nothing to do.

    Args:
        on_disk: version -> fingerprint of its files.
        loaded: the same for loaded versions, as of their load.
        failed: the same for versions that failed to load and are not due for a retry.
        policy: which versions are wanted.
    """
    if not on_disk:
        # a model whose folder is gone is unloaded, as in TensorFlow Serving
        return ServableAction(Operation.UNLOAD, min(loaded)) if loaded else None
    wanted = policy.aspired(on_disk)
    not_loaded = [version for version in wanted if loaded.get(version) != on_disk[version]]
    untried = [version for version in not_loaded if failed.get(version) != on_disk[version]]
    if untried:
        return ServableAction(Operation.LOAD, max(untried))
    if not_loaded and not loaded and policy.specific is None:
        older = [version for version in on_disk if version not in wanted and failed.get(version) != on_disk[version]]
        return ServableAction(Operation.LOAD, max(older)) if older else None
    if not_loaded:
        return None
    unwanted = [version for version in loaded if version not in wanted]
    return ServableAction(Operation.UNLOAD, min(unwanted)) if unwanted else None
