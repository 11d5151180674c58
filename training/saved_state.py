"""The state from which an interrupted training resumes: one file, written atomically."""

import json
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import program, run_lock, whole_files
from city.arguments import Parser
from city.errors import InputError, first_line
from city.version import VERSION

ANEW = "pass another --model-number, or remove this training's files and start without --resume"
"""Remedy for the damaged state of a training."""
Values = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


def state_file(out: Path, number: int) -> Path:
    """The file of the state of a model number in a training's folder."""
    return out / f".trial_{number}.progress.npz"


def locked(out: Path, number: int) -> AbstractContextManager[None]:
    """Lock a model number in a folder while it is trained there. Raises InputError if another training has it."""
    return run_lock.held(
        out / f".trial_{number}.lock",
        f"{out}: another training of model number {number} runs in this folder; wait for its end, or pass another "
        "--model-number or --out",
    )


class TrainingState:
    """The saved state of a training or a gate; a resumed one gives the same results."""

    def __init__(self, path: Path, identity: Mapping[str, Any], remedy: str = ANEW, kind: str = "training") -> None:
        """`identity`: what must be the same on resuming, by the flag that changes it. `remedy`: what to do if the file
        is damaged. `kind`: what is saved."""
        self.path, self._remedy, self._kind = path, remedy, kind
        self._identity = as_json({**identity, "greenserve": VERSION})

    def save(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write JSON values and arrays. Raises InputError."""
        text = json.dumps({"identity": self._identity, **values})
        with whole_files.replacing(self.path) as draft, draft.open("wb") as file:
            np.savez(file, **{"values": np.array(text), **arrays})  # type: ignore[arg-type]

    def restore(self, set_state: Callable[[Values, Arrays], None]) -> None:
        """Call a function with the saved values and arrays.

        Raises InputError if there are none, they are damaged, or they are of a training with another identity.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{self.path}: no such file, so no {self._kind} to resume; leave out --resume") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}; fix its path or permissions") from None
        try:
            with file:
                if not zipfile.is_zipfile(file):
                    raise ValueError("it is damaged, or not a .npz file")
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
            values = json.loads(str(arrays.pop("values")))
            names = differing(values["identity"], self._identity)
            if any(not name.startswith(("--", "[")) for name in names):
                raise InputError(
                    f"{self.path}: the {self._kind} to resume was begun by another version of greenserve or SUMO; "
                    f"{self._remedy}"
                )
            if names:
                raise InputError(
                    f"{self.path}: the {self._kind} to resume had another {', '.join(names)}; pass the same flags and "
                    "files, or another --model-number without --resume"
                )
            set_state(values, arrays)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - zipfile, zlib and NumPy raise several exceptions for a corrupt file
            raise InputError(
                f"{self.path}: is not the state of this {self._kind} ({first_line(error)}); {self._remedy}"
            ) from None

    def check(self) -> None:
        """Raise InputError as `restore`."""
        self.restore(lambda values, arrays: None)


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are after they were written as JSON and read."""
    return dict(json.loads(json.dumps(values)))


def differing(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of both has."""
    return [name for name in {**own, **saved} if saved.get(name) != own.get(name)]


def run_resumable(
    parser: Parser, argv: list[str] | None, work: Callable[[Namespace], int], states: Callable[[Namespace], list[Path]]
) -> int:
    """Run a command, whose message says on an interrupt if it can be resumed; return its exit code.

    Args:
        parser: of the command.
        argv: its arguments; None: those of this process.
        work: does what the parsed arguments say, and returns the exit code.
        states: files from which --resume continues.
    """
    parsed: list[Namespace] = []

    def run() -> int:
        parsed.append(parser.parse_args(sys.argv[1:] if argv is None else argv))
        return work(parsed[0])

    def interrupted() -> str:
        is_saved = any(path.exists() for args in parsed for path in states(args))
        return f"interrupted; {'--resume continues' if is_saved else 'nothing was saved yet'}"

    return program.run(run, interrupted)
