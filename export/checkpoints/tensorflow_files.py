"""TensorFlow checkpoints: TF1 Saver files (by name) and tf.train.Checkpoint (by object)."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from city.errors import InputError
from export.actors import Weights
from export.actors.architectures import Layers
from export.checkpoints import PARTS, Found, StoredVariable, check_numbers, is_training_only, layers, natural

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def files(prefix: Path) -> list[Path]:
    """The files of a checkpoint prefix, data shards and index."""
    return sorted(
        path
        for path in prefix.parent.iterdir()
        if path.name == f"{prefix.name}.index" or re.fullmatch(re.escape(prefix.name) + r"\.data-\d{5}-of-\d{5}", path.name)
    )


def scopes(prefix: Path) -> list[str]:
    """The scopes of a checkpoint that can hold an actor, in natural order."""
    reader = _open(prefix)
    found = {
        name.rsplit("/", 2)[0] for name in _names(reader, prefix) if name.rsplit("/", 1)[-1] in PARTS and name.count("/") > 1
    }
    return sorted((scope for scope in found if "critic" not in scope.lower() and not _is_optimizer(scope)), key=natural)


def read(prefix: Path, tl: str, scope: str | None) -> Layers:
    """The actor's layers of one TL. Raises InputError: corrupt, no such scope, or missing variables."""
    reader = _open(prefix)
    names = _names(reader, prefix)
    chosen = scope or _guess_scope(prefix, tl, names)
    inside = [name for name in names if name.startswith(chosen + "/") and not is_training_only(name)]
    if not inside:
        raise InputError(f"{prefix}: has no scope {chosen}; there are {', '.join(scopes(prefix)) or 'none'}")
    found: Found = {}
    taken = set()
    for name in inside:
        layer, _, part = name.rpartition("/")
        if part in PARTS:
            found.setdefault(layer, {})[PARTS[part]] = name, _value(reader, prefix, names[name])
            taken.add(name)
    order = list(found) if _is_object_based(reader) else sorted(found, key=natural)
    check_numbers(prefix, [name for name in order if "kernel" in found[name]])
    return layers(prefix, found, order, tuple(sorted(set(names) - taken)))


def stored(prefix: Path) -> list[StoredVariable]:
    """Every variable of a checkpoint, in natural order. Raises InputError."""
    reader = _open(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return [
        StoredVariable(name, tuple(shapes[key]), dtypes[key].name)
        for name, key in sorted(_names(reader, prefix).items(), key=lambda item: natural(item[0]))
    ]


def _is_object_based(reader: Any) -> bool:
    return bool(reader.has_tensor(_OBJECT_GRAPH))


def _open(prefix: Path) -> Any:
    try:
        return tf.train.load_checkpoint(str(prefix))
    except Exception as error:  # noqa: BLE001 - TensorFlow raises several kinds for one cause: the file
        raise InputError(f"{prefix}: cannot be read as a TensorFlow checkpoint: {_first_line(error)}") from None


def _names(reader: Any, prefix: Path) -> dict[str, str]:
    """Readable name -> key in the checkpoint."""
    if not _is_object_based(reader):
        return {key: key for key in reader.get_variable_to_shape_map()}
    try:
        return _object_names(_stored(reader, prefix, _OBJECT_GRAPH))
    except (DecodeError, IndexError) as error:
        raise InputError(f"{prefix}: its object graph cannot be read: {_first_line(error)}") from None


def _object_names(graph: bytes) -> dict[str, str]:
    """Names of an object-based checkpoint's variables, walked from each object it was made of.

    Keys alone mislead: a variable that optimizer and actor share is stored once,
    under whichever name came first, often the optimizer's. Depth first, so that
    the layers of a model come in the order in which it was put together.
    """
    nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(graph).nodes
    names: dict[str, str] = {}
    for top in nodes[0].children:
        seen = {0}
        stack = [(top.local_name, top.node_id)]
        while stack:
            path, node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for attribute in nodes[node].attributes:
                if attribute.checkpoint_key:
                    names.setdefault(path, attribute.checkpoint_key)
            children = sorted(nodes[node].children, key=lambda child: _not_a_number(child.local_name))
            stack += [(f"{path}/{child.local_name}", child.node_id) for child in reversed(children)]
    return names


def _not_a_number(name: str) -> tuple[bool, int]:
    """Sort key: numbered children (list items) in their order, others as they come."""
    return (False, int(name)) if name.isdigit() else (True, 0)


def _value(reader: Any, prefix: Path, key: str) -> Weights:
    return np.asarray(_stored(reader, prefix, key), np.float32)


def _stored(reader: Any, prefix: Path, key: str) -> Any:
    try:
        return reader.get_tensor(key)
    except Exception as error:  # noqa: BLE001 - TensorFlow raises several kinds for one cause: the file
        raise InputError(f"{prefix}: {key.removesuffix(_VALUE)} cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _is_optimizer(name: str) -> bool:
    return any(part.lower().startswith(("optimizer", "optim")) for part in name.split("/"))


def _guess_scope(prefix: Path, tl: str, names: dict[str, str]) -> str:
    """The scope of a TL's actor: one that carries its name, or the only actor there is."""
    tops = {name.split("/", 1)[0] for name in names if "/" in name}
    named = [top for top in tops if tl and tl in re.sub(r"[\s_]+", "", top) and "critic" not in top.lower()]
    actors = named or [top for top in tops if "actor" in top.lower() or top.lower() in ("pi", "policy")]
    if len(actors) == 1:
        nested = {
            "/".join(name.split("/")[:2])
            for name in names
            if name.startswith(actors[0] + "/") and "actor" in name.split("/")[1].lower()
        }
        return nested.pop() if len(nested) == 1 else actors[0]
    if not actors:
        raise InputError(f"{prefix}: none of its scopes is an actor's; name it with --scope. Top scopes: {_list(tops)}")
    raise InputError(f"{prefix}: holds the actors {_list(actors)}; say with --scope which one is {tl}'s")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=natural)) or "none"
