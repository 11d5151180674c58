"""The errors that programs report in one line."""

import contextlib
import errno
from collections.abc import Iterator

from city.printable import printable


class InputError(Exception):
    """The user's input is wrong. The message says what is wrong, where, and how to fix it, in one line.

    Programs print it without a traceback and exit with code 2.
    """

    subject = ""
    """The file or TL that the message begins with, if `errors_about` added it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def refuse(*cases: tuple[object, str]) -> None:
    """Raise InputError with the message of the first case, (condition, message), whose condition is true."""
    for is_wrong, message in cases:
        if is_wrong:
            raise InputError(message)


class ProgramFailed(Exception):
    """The work failed on valid input. The message says what failed, and where to look.

    Programs print it in one line and exit with code 1.
    """


@contextlib.contextmanager
def errors_about(subject: object) -> Iterator[None]:
    """Begin the message of an InputError with its file or TL, unless an inner block did.

    The functions that read a file raise the reason and the remedy alone; whoever opens the file names it.
    """
    try:
        yield
    except InputError as error:
        if not error.subject:
            error.subject = str(subject)
            error.args = InputError(f"{subject}: {error}").args
        raise


_PATH_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
)


@contextlib.contextmanager
def path_errors_as_input_errors() -> Iterator[None]:
    """Turn OSErrors about a path (no permission, name too long, a file in the place of a folder) into InputError."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in _PATH_ERRORS:
            raise
        raise InputError(f"{error.filename}: {error.strerror}; name another path") from None


@contextlib.contextmanager
def os_errors(message: str, remedy: str) -> Iterator[None]:
    """Turn OSErrors into an InputError: what cannot be done, the system's reason, and the remedy."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{message}: {error.strerror or error}; {remedy}") from None


@contextlib.contextmanager
def library_errors(
    message: str, kinds: type[Exception] | tuple[type[Exception], ...] = Exception, remedy: str = ""
) -> Iterator[None]:
    """Turn a library's errors about a damaged file into an InputError, which other InputErrors pass.

    Args:
        message: what cannot be done; the first line of the library's error follows it.
        kinds: the errors (default: any, because libraries raise many kinds for damaged files).
        remedy: end of the message.
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{message}: {first_line(error)}{remedy}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters; its class name if it has no text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
