"""PEM files: certificates and keys."""

from pathlib import Path

from city.errors import InputError


def read(path: Path) -> bytes:
    """The content of a PEM file. Raises InputError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in content or not content.isascii():
        raise InputError(f"{path}: is not PEM; it must begin with a line such as -----BEGIN CERTIFICATE-----")
    return content
