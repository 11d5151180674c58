"""`python -m export inspect CHECKPOINT`: a checkpoint's variables, and what an export would take as what."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints import StoredVariable, keras_h5, tensorflow_files


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m export inspect", description="List a checkpoint's variables.")
    parser.add_argument("checkpoint", type=Path, help="an HDF5 file, or a TensorFlow checkpoint's prefix (or its .index)")
    parser.add_argument("--tl", default="", help="the TL whose actor is looked for, where there are several")
    parser.add_argument("--scope", help="the actor's scope")
    args = parser.parse_args(argv)
    print("\n".join(lines(args.checkpoint, args.tl, args.scope)))
    return 0


def lines(path: Path, tl: str, scope: str | None) -> Iterable[str]:
    """A line for each variable: name, shape, dtype, and what an export takes it as. Raises InputError."""
    stored: list[StoredVariable]
    if path.suffix in (".h5", ".hdf5", ".keras"):
        stored = keras_h5.stored(path)
        read = lambda: keras_h5.read(path)  # noqa: E731
    else:
        prefix = path.with_suffix("") if path.suffix == ".index" else path
        stored = tensorflow_files.stored(prefix)
        read = lambda: tensorflow_files.read(prefix, tl, scope)  # noqa: E731
    try:
        taken, note = _taken(read()), ""
    except InputError as error:
        taken, note = {}, f"nothing would be exported: {error}"
    width = max((len(variable.name) for variable in stored), default=0)
    for variable in stored:
        yield f"{variable.name:<{width}}  {variable.shape!s:<14} {variable.dtype:<8} {taken.get(variable.name, '-')}"
    if note:
        yield note


def _taken(layers: Layers) -> dict[str, str]:
    names = {}
    for word, found in (("dense", layers.dense), ("batch norm", layers.norms)):
        for k, layer in enumerate(found):
            for part, name in layer.stored_as.items():
                names[name] = f"{word} {k} {part}"
    return names
