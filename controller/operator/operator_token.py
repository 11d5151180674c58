"""The token of this user's operators: a program that has it may command each controller of this user on this machine.

Every local user reaches a loopback port; the file of the token is readable by the controller's user alone. A restart
keeps it, so that an open page stays in command.
"""

import hmac
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from controller.guard import files

HEADER = "authorization"
"""Header of a page's command, and metadata of a call to the control API."""
TOKEN_BYTES = 18
_FILE = f"{files.OPERATOR_PREFIX}token"


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


class OperatorToken(NamedTuple):
    """A token, and the file that keeps it; None: it ends with this process."""

    value: str
    file: Path | None


def kept() -> OperatorToken:
    """The token of this user, made at its first use.

    Raises InputError if another user owns the folder of its file, OSError if the file cannot be used.
    """
    file = files.folder() / _FILE
    with files.locked(file):
        token = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
        if re.fullmatch(r"[\w-]{24}", token, re.ASCII) is None:
            token = new_token()
            file.unlink(missing_ok=True)
            file.touch(mode=0o600)
            file.write_text(token, encoding="ascii")
    return OperatorToken(token, file)


def credentials(token: str) -> str:
    """The header's value."""
    return f"Bearer {token}"


def is_permitted(value: str, token: str) -> bool:
    """Tell if a header's value carries the token."""
    scheme, _, sent = value.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(sent.encode(), token.encode())
