"""The state of a decision loop in the messages of protos/loop_state.proto, field by field, by its name.

A state inside another one is in the message of its field. If there is no such field, it is a part of the same message,
and if that message has a field for each of several kinds of states, as those of sequencers, it is in the one that has
its class's name.
"""

from collections.abc import Set
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import Message

from signals.fallback.control_mode import ControlMode
from signals.intersection import StateSource
from signals.safety.conflicts import OverrideReason

ENUMS: dict[str, type[Enum]] = {"ControlMode": ControlMode, "OverrideReason": OverrideReason, "Source": StateSource}
"""By their names in the record."""
T = TypeVar("T", bound=Any)


def save(state: Any, message: Message) -> None:
    """Write the values of a state into its message."""
    for name in _names(state):
        value = getattr(state, name)
        if is_dataclass(value):
            save(value, _part(message, name, value))
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        elif isinstance(value, list) and value and is_dataclass(value[0]):
            for each in value:
                save(each, getattr(message, name).add())
        elif isinstance(value, list | tuple | Set):
            numbers = [_encoded(message, name, each) for each in value]
            getattr(message, name).extend(sorted(numbers) if isinstance(value, Set) else numbers)
        elif value is not None:
            setattr(message, name, _encoded(message, name, value))


def restore(state: T, message: Message) -> T:
    """Put saved values into a state and into those in it; return it, or a new one in the place of an immutable one.

    Raises ValueError if they are those of another TL, and KeyError for an unknown value of an enum.
    """
    values = {name: _restored(getattr(state, name), message, name) for name in _names(state)}
    if state.__dataclass_params__.frozen:
        return replace(state, **values)
    for name, value in values.items():
        setattr(state, name, value)
    return state


def _restored(value: Any, message: Message, name: str) -> Any:
    """The saved value in the place of the one that the state has now."""
    if is_dataclass(value):
        return restore(value, _part(message, name, value))
    field, saved = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if isinstance(value, dict):
        return dict(saved)
    if isinstance(value, list):
        if len(saved) != len(value):
            raise ValueError(f"its state has {len(saved)} values of {name}, not {len(value)}")
        if field.message_type is not None:
            return [restore(each, part) for each, part in zip(value, saved, strict=True)]
    if isinstance(value, list | tuple | Set):
        return type(value)(_decoded(field, each) for each in saved)  # type: ignore[call-arg]
    if field.has_presence and (field.message_type is not None or not message.HasField(name)):
        return None  # a TL without this part, or without a value
    return _decoded(field, saved)


def _names(state: Any) -> list[str]:
    return [field.name for field in fields(state)]


def _part(message: Message, name: str, state: Any) -> Message:
    """The message of a state that is a field of another one."""
    if name not in message.DESCRIPTOR.fields_by_name:
        return message
    part: Message = getattr(message, name)
    kinds = {field.message_type.name: field.name for field in part.DESCRIPTOR.fields if field.message_type is not None}
    kind = kinds.get(type(state).__name__)
    return part if kind is None else getattr(part, kind)


def _encoded(message: Message, name: str, value: Any) -> Any:
    if not isinstance(value, Enum):
        return value
    kind = message.DESCRIPTOR.fields_by_name[name].enum_type
    assert kind is not None, f"{name} is an enum in the record too"
    return kind.values_by_name[value.name].number


def _decoded(field: Any, value: Any) -> Any:
    """The value of a field; of an enum, None for a name that the field has and the state does not."""
    if field.enum_type is None:
        return value
    name = field.enum_type.values_by_number[value].name
    return ENUMS[field.enum_type.name].__members__.get(name)
