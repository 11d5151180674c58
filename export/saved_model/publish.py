"""Publish a version: write a draft, verify it, then rename it to its number.

TensorFlow Serving loads a new version folder within a second, even a half-copied
one, and ignores folders whose names are not numbers. Therefore a draft is a
hidden folder, and a replaced version is exchanged with its draft in one step.
An exporter locks its draft: the next exporter removes only drafts of killed
exporters, and concurrent exporters of a TL do not interfere.
"""

import contextlib
import ctypes
import errno
import fcntl
import filecmp
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from city import model_folders
from city.errors import InputError, path_errors_as_input_errors

_DRAFT = re.compile(r"\.(\d+)\.(draft|old)-.+")
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)
_UNSUPPORTED_ERRNOS, _RENAME_EXCHANGE, _AT_FDCWD = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP), 2, -100


@path_errors_as_input_errors()
def exists(models_dir: Path, tl: str, number: int) -> bool:
    """Tell whether a TL has a version of this number."""
    return (models_dir / tl / str(number)).is_dir()


@path_errors_as_input_errors()
def check_version_absent(models_dir: Path, tl: str, number: int, overwrite: bool) -> None:
    """Raise InputError if a version exists and may not be replaced."""
    target = models_dir / tl / str(number)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(
            f"{target} is a link or a file, not a version folder; remove it, or pass another --model-number"
        )
    if target.exists() and not overwrite:
        raise InputError(
            f"{target} exists already; pass --overwrite to replace it, or --model-number for another trial"
        )


@contextlib.contextmanager
def new_version(models_dir: Path, tl: str, number: int, overwrite: bool, keep: int | None = None) -> Iterator[Path]:
    """An empty folder to write a version into, published if the block does not raise.

    Args:
        models_dir: the folder of models.
        tl: the TL or fleet.
        number: the version.
        overwrite: whether an existing version may be replaced.
        keep: versions of the TL to keep, the newest and this one; `None` means all.

    Raises:
        InputError: the version exists and may not be overwritten, or the folder cannot be
            written. After an error no draft remains.
    """
    check_version_absent(models_dir, tl, number, overwrite)
    home = models_dir / tl
    target = home / str(number)
    with _draft(home, number) as draft:
        try:
            yield draft
            # a rename may reach the disk before the data
            for path in (*draft.rglob("*"), draft):
                _fsync(path)
            with _folder_lock(home):
                _rename_to_version(draft, target, overwrite)
                _discard(draft)  # after an exchange, the old version
                _fsync(home)
                if keep is not None:
                    _prune(home, keep, number)
        except OSError as error:
            if error.errno in _DISK_ERRNOS:
                raise InputError(f"{target}: cannot be written: {error.strerror}; nothing was published") from None
            raise


def link_equal_variables(draft: Path, published: Path) -> None:
    """Replace a draft's files of variables that equal those of a published version by hard links to them.

    So the weights of a policy that TLs share are on the disk once. The files become read-only: who writes into one
    would change the models of all TLs.
    """
    for path in (draft / "variables").glob("variables.data-*"):
        twin, link = published / "variables" / path.name, path.with_name("link")
        # without hard links, with too many, or if the version was removed meanwhile, the draft keeps its own file
        with contextlib.suppress(OSError):
            if filecmp.cmp(path, twin, shallow=False):
                twin.chmod(twin.stat().st_mode & ~0o222)
                link.hardlink_to(twin)
                link.replace(path)


@contextlib.contextmanager
def _draft(home: Path, number: int) -> Iterator[Path]:
    """A locked, empty, hidden folder. It is removed when the block ends, even if an interrupt arrives.

    Raises InputError if it cannot be created.
    """
    draft = home / _hidden(number, "draft")
    fd = None
    try:
        try:
            home.mkdir(parents=True, exist_ok=True)
            with _folder_lock(home):
                _remove_stale_drafts(home)
                draft.mkdir()
                fd = _lock(draft)
        except OSError as error:
            raise InputError(f"{home}: cannot be written: {error.strerror}; nothing was published") from None
        yield draft
    finally:
        try:
            _discard(draft)
        except BaseException:
            # finish an interrupted clean-up first; rmtree may turn the interrupt into an OSError
            _discard(draft)
            raise
        finally:
            if fd is not None:
                os.close(fd)
            with contextlib.suppress(OSError):
                home.rmdir()  # succeeds only if it is empty


def _rename_to_version(draft: Path, target: Path, overwrite: bool) -> None:
    """Rename the draft to its number. An existing version may be replaced, but is never lost."""
    try:
        draft.rename(target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not overwrite:
            raise InputError(f"{target} was published by another exporter meanwhile; it was not changed") from None
    if _exchange(draft, target):
        return  # the draft's folder now holds the old version
    aside = target.with_name(_hidden(int(target.name), "old"))
    try:
        target.rename(aside)
        draft.rename(target)
    except BaseException:
        # an interrupt after the first rename must not lose the version either
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise
    _discard(aside)


def _hidden(number: int, state: str) -> str:
    """A unique hidden name, which `_DRAFT` matches."""
    return f".{number}.{state}-{os.getpid()}-{secrets.token_hex(3)}"


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step. Returns False if the system or file system does not support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _UNSUPPORTED_ERRNOS:
        return False
    raise OSError(error, os.strerror(error), str(second))


def _prune(home: Path, keep: int, published: int) -> None:
    """Remove all versions except the `keep` newest and the one just published."""
    for number in list(model_folders.versions(home))[:-keep]:
        if number != published:
            aside = home / _hidden(number, "old")
            # a server must see the complete version or none
            (home / str(number)).rename(aside)
            _discard(aside)


def _remove_stale_drafts(home: Path) -> None:
    """Remove drafts of killed exporters; restore a version that was moved aside and not replaced."""
    for path in home.iterdir():
        match = _DRAFT.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            fd = _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # its exporter is running, or has just ended
        try:
            is_complete = (path / "saved_model.pb").is_file() and (path / "variables" / "variables.index").is_file()
            if match[2] == "old" and is_complete and not (home / match[1]).exists():
                path.rename(home / match[1])
            else:
                _discard(path)
        finally:
            os.close(fd)


def _lock(folder: Path) -> int:
    """A descriptor that holds a folder's lock. Raises BlockingIOError if another process holds it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            os.close(fd)
            raise
        # a file system without locks: names with process ids keep exporters of one machine apart
    return fd


@contextlib.contextmanager
def _folder_lock(home: Path) -> Iterator[None]:
    """Hold the lock of a TL's folder, so that one exporter at a time renames in it."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _discard(folder: Path) -> None:
    """Remove a folder. Another process may remove parts of it at the same time."""

    def raise_unless_missing(_function: object, _path: object, info: tuple[type, BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    if folder.exists():
        shutil.rmtree(folder, onerror=raise_unless_missing)
