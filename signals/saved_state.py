"""The base of states that a record keeps: what later decisions depend on, beside contracts, settings and network."""

from dataclasses import dataclass


@dataclass
class SavedState:
    """Plain values and other saved states, in fields that are named like those of protos/loop_state.proto.

    A list has an element for each link, green or signal, so its length never changes; a tuple or set may have any size.
    A dialect of the user's own need not have one: a TL without it is not replayed from the middle of a run.
    """
