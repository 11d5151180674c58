"""The state of a decision loop as the messages of protos/loop_state.proto have it: field by field, by its name.

Two states are in other places: those of a policy's sequencers, which have a field for each kind, and a TL's control
mode, which is in the TL's own message.
"""

from collections.abc import Set
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import Message

from signals.cycle_plans import PlansState
from signals.dialects.sappo import KeepChangeState
from signals.fallback.control_mode import ControlMode
from signals.green_phases import GreenPhasesState
from signals.intersection import StateSource
from signals.safety.conflicts import OverrideReason

SEQUENCERS: dict[type, str] = {
    GreenPhasesState: "green_phases", KeepChangeState: "keep_change", PlansState: "plans",
}  # fmt: skip
"""By class of a sequencer's state, its field in SequencerState."""
MODE = "mode_state"
"""Field of a TL's state whose values are fields of the TL's message."""
ENUMS: dict[str, type[Enum]] = {"ControlMode": ControlMode, "OverrideReason": OverrideReason, "Source": StateSource}
"""By their names in the record."""
T = TypeVar("T", bound=Any)


def values(state: Any) -> Any:
    """The values of a state, as the constructor of its message takes them."""
    if is_dataclass(state):
        by_name = {field.name: values(getattr(state, field.name)) for field in fields(state)}
        by_name |= by_name.pop(MODE, {})
        return {SEQUENCERS[type(state)]: by_name} if type(state) in SEQUENCERS else by_name
    if isinstance(state, Set):
        return sorted(values(each) for each in state)
    if isinstance(state, list | tuple):
        return [values(each) for each in state]
    return state.name if isinstance(state, Enum) else state


def restore(state: T, message: Message) -> T:
    """Put saved values into a state and into those in it; return it, or a new one in the place of an immutable one.

    Raises ValueError if they are those of another TL, and KeyError for an unknown value of an enum.
    """
    if type(state) in SEQUENCERS:
        message = getattr(message, SEQUENCERS[type(state)])
    restored = {field.name: _restored(getattr(state, field.name), message, field.name) for field in fields(state)}
    if state.__dataclass_params__.frozen:
        return replace(state, **restored)
    for name, value in restored.items():
        setattr(state, name, value)
    return state


def _restored(value: Any, message: Message, name: str) -> Any:
    """The saved value in the place of the one that the state has now."""
    if name == MODE:
        return restore(value, message)
    field, saved = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if is_dataclass(value):
        return restore(value, saved)
    if isinstance(value, dict):
        return dict(saved)
    if isinstance(value, list) and len(saved) != len(value):
        raise ValueError(f"its state has {len(saved)} values of {name}, not {len(value)}")
    if isinstance(value, list) and field.message_type is not None:
        return [restore(each, part) for each, part in zip(value, saved, strict=True)]
    if isinstance(value, list | tuple | Set):
        return type(value)(_decoded(field, each) for each in saved)  # type: ignore[call-arg]
    if field.has_presence and (field.message_type is not None or not message.HasField(name)):
        return None  # a TL without this part, or without a value
    return _decoded(field, saved)


def _decoded(field: Any, value: Any) -> Any:
    """A single value; of an enum, None for a name that the field has and the state does not."""
    if field.enum_type is None:
        return value
    return ENUMS[field.enum_type.name].__members__.get(field.enum_type.values_by_number[value].name)
