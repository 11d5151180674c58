"""The one error of wrong user input."""

import contextlib
import errno
from collections.abc import Iterator


class InputError(Exception):
    """The user's input is wrong: what, where, and how to mend it, in one line.

    Programs print it without a traceback and end with exit code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


_OF_THE_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)


@contextlib.contextmanager
def looking_at_files() -> Iterator[None]:
    """A path that the system does not let us look at (no permission, too long a name) is wrong input: raises InputError."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in _OF_THE_PATH:
            raise
        raise InputError(f"{error.filename}: {error.strerror}; name one that can be used") from None
