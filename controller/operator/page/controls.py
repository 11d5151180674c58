"""The page's commands: JSON objects as requests of the operator API."""

from typing import Any

from controller.operator.control_messages import METHODS, OperatorError, Status

ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "set-mode": ("SetMode", {"tls": "tls", "mode": "mode", "for_s": "for_seconds", "reason": "reason"}),
    "pause": ("Pause", {}),
    "resume": ("Resume", {}),
    "step": ("Step", {"until_s": "until_s"}),
    "speed": ("SetSpeed", {"speed": "factor"}),
    "acknowledge": ("AcknowledgeAlarm", {"alarm": "id"}),
}
"""By action: the method that it calls, and by key of the command the request's field."""
OPTIONAL = ("for_s", "reason", "author")


def parse_command(command: Any) -> tuple[str, Any]:
    """The method of a command, and its request. Raises OperatorError."""
    if not isinstance(command, dict):
        raise _invalid("a command must be a JSON object with an action")
    name = command.get("action")
    if not isinstance(name, str) or name not in ACTIONS:
        raise _invalid(f"action must be one of {', '.join(ACTIONS)}")
    method, keys = ACTIONS[name]
    request_type, _ = METHODS[method]
    values = {}
    for key, field in {**keys, "author": "author"}.items():
        if key in command or key not in OPTIONAL:
            # a missing number is not 0: a run without a speed would be as fast as it can
            values[field] = _checked(key, command.get(key), request_type.DESCRIPTOR.fields_by_name[field])
    try:
        return method, request_type(**values)
    except (ValueError, OverflowError):  # half of a surrogate pair, a number of hundreds of digits
        raise _invalid("a text or number of the command is malformed") from None


def _checked(key: str, value: Any, field: Any) -> Any:
    """A value that fits into a request's field. protobuf would take a text for a list, and true for a number."""
    if field.is_repeated:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _invalid(f"{key} must be a list of TLs")
    elif field.type == field.TYPE_STRING:
        if not isinstance(value, str):
            raise _invalid(f"{key} must be a text")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"{key} must be a number")
    return value


def _invalid(text: str) -> OperatorError:
    return OperatorError(Status.INVALID_ARGUMENT, text)
