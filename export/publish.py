"""Publishing a version: written beside, proved, then renamed to its number.

TensorFlow Serving takes a new version folder up within a second, a half-copied
one too; a folder whose name is no number it leaves alone.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError


@contextlib.contextmanager
def version(models_dir: Path, tl: str, number: int, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write a version into; published when the block ends well.

    Raises InputError where the version exists and may not be overwritten, or
    where the folder cannot be written. What goes wrong leaves nothing behind.
    """
    home = models_dir / tl
    target = home / str(number)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; say --overwrite to replace it, or --model-number for another")
    draft = home / f".{number}.draft-{os.getpid()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _discard(draft)
        draft.mkdir()
    except OSError as error:
        raise InputError(f"{home}: cannot be written: {error.strerror}") from None
    try:
        yield draft
        _rename(draft, target, overwrite)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise InputError(f"{target}: cannot be written: {error.strerror}") from None
        raise
    finally:
        _discard(draft)
        with contextlib.suppress(OSError):
            home.rmdir()  # only where it is empty


def _rename(draft: Path, target: Path, overwrite: bool) -> None:
    if not target.exists():
        try:
            draft.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not overwrite:
                raise InputError(f"{target} was published by somebody else meanwhile; nothing of it was touched") from None
    aside = target.with_name(f".{target.name}.old-{os.getpid()}")
    _discard(aside)
    target.rename(aside)
    try:
        draft.rename(target)
    except BaseException:
        # an interrupt between the two renames must not lose the version either
        if not target.exists():
            aside.rename(target)
        raise
    _discard(aside)


def _discard(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
