"""Publishing a version: written beside, proved, then renamed to its number.

TensorFlow Serving takes a new version folder up within a second, a half-copied
one too; a folder whose name is no number it leaves alone. So a draft is a hidden
folder, and a version that is replaced is exchanged with its draft in one step.
Each draft is locked by who writes it: what a killed exporter left is swept up by
the next one, and two at once on one TL do not meet.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError, path_errors_as_input_errors

_DRAFT = re.compile(r"\.(\d+)\.(draft|old)-.+")
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)
_NOTHING_SPECIAL, _RENAME_EXCHANGE, _AT_FDCWD = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP), 2, -100


@path_errors_as_input_errors()
def check_free(models_dir: Path, tl: str, number: int, overwrite: bool) -> None:
    """Raise InputError where a version exists and may not be replaced."""
    target = models_dir / tl / str(number)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target} is a link or a file, no folder of a version; remove it, or say another --model-number")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; say --overwrite to replace it, or --model-number for another trial")


@contextlib.contextmanager
def version(models_dir: Path, tl: str, number: int, overwrite: bool, keep: int | None = None) -> Iterator[Path]:
    """An empty folder to write a version into; published when the block ends well.

    `keep`: versions of the TL to keep, the newest and this one; None: all.
    Raises InputError where the version exists and may not be overwritten, or
    where the folder cannot be written. What goes wrong leaves nothing behind.
    """
    check_free(models_dir, tl, number, overwrite)
    home = models_dir / tl
    target = home / str(number)
    with _draft(home, number) as draft:
        try:
            yield draft
            _flush(draft)
            with _alone(home):
                _put(draft, target, overwrite)
                _discard(draft)  # where it was exchanged, the old version
                _flush_folder(home)
                if keep is not None:
                    _prune(home, keep, number)
        except OSError as error:
            if error.errno in _OF_THE_DISK:
                raise InputError(f"{target}: cannot be written: {error.strerror}; nothing was published") from None
            raise


@contextlib.contextmanager
def _draft(home: Path, number: int) -> Iterator[Path]:
    """An empty hidden folder, locked; gone when the block ends, at whatever moment an interrupt comes.

    Raises InputError where it cannot be made.
    """
    draft = home / _hidden(number, "draft")
    held = None
    try:
        try:
            home.mkdir(parents=True, exist_ok=True)
            with _alone(home):
                _sweep(home)
                draft.mkdir()
                held = _lock(draft)
        except OSError as error:
            raise InputError(f"{home}: cannot be written: {error.strerror}; nothing was published") from None
        yield draft
    finally:
        try:
            _discard(draft)
        except BaseException:
            # an end asked for while we clean up comes after it; rmtree may make an OSError of it
            _discard(draft)
            raise
        finally:
            if held is not None:
                os.close(held)
            with contextlib.suppress(OSError):
                home.rmdir()  # only where it is empty


def versions(home: Path) -> list[int]:
    """The versions of a TL, oldest first."""
    found = (path for path in home.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir())
    return sorted(int(path.name) for path in found)


def _put(draft: Path, target: Path, overwrite: bool) -> None:
    """Give the draft its number; a version that has it may be replaced, never lost."""
    try:
        draft.rename(target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not overwrite:
            raise InputError(f"{target} was published by another exporter meanwhile; it was not changed") from None
    if _exchange(draft, target):
        return  # the draft's folder holds the old version now
    aside = target.with_name(_hidden(int(target.name), "old"))
    target.rename(aside)
    try:
        draft.rename(target)
    except BaseException:
        # an interrupt between the two renames must not lose the version either
        if not target.exists():
            aside.rename(target)
        raise
    _discard(aside)


def _hidden(number: int, what: str) -> str:
    """A name of nobody else's, of another exporter's least of all."""
    return f".{number}.{what}-{os.getpid()}-{secrets.token_hex(3)}"


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where system or file system has no such call."""
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is None:
        return False
    if exchange(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOTHING_SPECIAL:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _prune(home: Path, keep: int, published: int) -> None:
    """Remove versions but the `keep` newest; the one just published stays whatever its number."""
    for number in versions(home)[:-keep]:
        if number != published:
            aside = home / _hidden(number, "old")
            # a server must see the version whole, or not at all
            (home / str(number)).rename(aside)
            _discard(aside)


def _sweep(home: Path) -> None:
    """Remove what killed exporters left; a version that one had put aside, and not replaced, comes back."""
    for path in home.iterdir():
        match = _DRAFT.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            held = _lock(path)
        except BlockingIOError:
            continue  # its exporter is at work
        except FileNotFoundError:
            continue  # its exporter has just ended
        try:
            if match[2] == "old" and not (home / match[1]).exists() and _is_whole(path):
                path.rename(home / match[1])
            else:
                _discard(path)
        finally:
            os.close(held)


def _is_whole(folder: Path) -> bool:
    return (folder / "saved_model.pb").is_file() and (folder / "variables" / "variables.index").is_file()


def _lock(folder: Path) -> int:
    """A descriptor that holds a folder's lock. Raises BlockingIOError where another process holds it."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            os.close(held)
            raise
        # a file system without locks: names with process ids keep exporters of one machine apart
    return held


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One exporter at a time renames within a TL's folder; it takes a moment, so others wait."""
    held = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _flush(folder: Path) -> None:
    """What is published must survive a power cut: a rename may reach the disk before the data does."""
    for path in folder.rglob("*"):
        _flush_folder(path)
    _flush_folder(folder)


def _flush_folder(path: Path) -> None:
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _discard(folder: Path) -> None:
    """Remove a folder; what somebody else removes meanwhile is removed as well."""

    def failed(_function: object, _path: object, told: tuple[type, BaseException, object]) -> None:
        if not isinstance(told[1], FileNotFoundError):
            raise told[1]

    if folder.exists():
        shutil.rmtree(folder, onerror=failed)
