"""Config files in protobuf's text format, with TensorFlow Serving's message names in errors."""

from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from city.errors import InputError

_Message = TypeVar("_Message", bound=Message)
NO_REQUEST_LOG = (
    "this server logs no requests; leave logging_config out (greenserve control --record keeps what was asked)"
)
"""Error about a model's logging_config."""


def read(path: Path, message: _Message) -> _Message:
    """Parse a file into this message and return it. Raises InputError."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), message)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; check its name and permissions") from None
    except text_format.ParseError as error:
        # our messages are TensorFlow Serving's, in a package of their own
        name = message.DESCRIPTOR.name
        text = str(error).replace(f"{message.DESCRIPTOR.file.package}.", "tensorflow.serving.")
        remedy = NO_REQUEST_LOG if '"logging_config"' in text else "correct the file"
        raise InputError(f"{path}: not a tensorflow.serving.{name}: {text}; {remedy}") from None
