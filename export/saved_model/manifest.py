"""The manifest of an export: where every number came from, and what was proved.

`assets.extra/export.json` of each model. Same input, same manifest, apart
from the time.
"""

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from export.actors import Activation, Actor, BatchNorm, Branch, Dense
from export.checkpoints import scopes
from export.checkpoints.source import Rebuilt
from export.graphs.graph_actor import GraphActor
from protos import policy_pb2 as pb

FILE_NAME = "export.json"
STATE = frozenset({"VarHandleOp", "ReadVariableOp", "AssignVariableOp", "RestoreV2"})
"""The only operations with a state that inference needs: variables, and the one that restores them."""
_TRAINING = re.compile(r"Grad|Random|Multinomial|Shuffle|Summary|Save|Print|PyFunc")


class NotInferenceOnly(Exception):
    """The graph holds operations that no inference needs."""


def is_inference(op: str) -> bool:
    """Whether an operation may stand in an inference-only graph: known, without state, nothing random or of training."""
    known = op_def_registry.get(op)
    return known is not None and (op in STATE or not (known.is_stateful or _TRAINING.search(op)))


def census(folder: Path) -> dict[str, int]:
    """Operations of a written SavedModel, counted. Raises NotInferenceOnly."""
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    ops = Counter(node.op for node in graph.node)
    ops.update(node.op for function in graph.library.function for node in function.node_def)
    foreign = sorted(op for op in ops if not is_inference(op))
    if foreign:
        raise NotInferenceOnly(f"its graph holds {', '.join(foreign)}, which no inference needs")
    return dict(sorted(ops.items()))


def steps(actor: Actor | GraphActor) -> list[dict[str, Any]]:
    """The actor's steps, each with the names of its layer; weights aside."""
    told: list[dict[str, Any]] = []
    if isinstance(actor, GraphActor):
        return [{"graph": actor.output, "gives": actor.output_kind}]
    for step in actor.steps:
        match step:
            case Dense():
                told.append({"dense": step.name, "shape": list(step.kernel.shape), "bias": step.bias is not None})
            case BatchNorm():
                told.append({"batch_norm": step.name, "units": step.mean.shape[0], "epsilon": step.epsilon})
            case Activation():
                told.append({"activation": step.kind})
            case _:
                told.append({"branch" if isinstance(step, Branch) else "join": ""})
    return told


def write(
    folder: Path, rebuilt: Rebuilt, policy: pb.PolicyContract, files: Sequence[Path], observations: int, difference: float
) -> None:
    """Write the manifest of a proved model. Raises NotInferenceOnly."""
    origin, actor = policy.origin, rebuilt.actor
    reference = "NumPy float64 evaluation of the checkpoint's variables"
    manifest = {
        "tl": policy.tl,
        "model_number": origin.model_number,
        "source": {"format": origin.source_format, "name": origin.file_name, "files": [_file(path) for path in files]},
        "scope": rebuilt.scope,
        "actor": {"architecture": actor.architecture, "inputs": actor.inputs, "outputs": actor.outputs, "steps": steps(actor)},
        "variables": [
            {
                "name": weight.name,
                "from": weight.stored_as,
                "shape": list(weight.values.shape),
                "sha256": hashlib.sha256(np.ascontiguousarray(weight.values).tobytes()).hexdigest(),
            }
            for weight in actor.weights
        ],
        "left_unread": scopes.left_unread(actor.unread, rebuilt.scope),
        "parity": {
            "observations": observations,
            "largest_absolute_difference": difference,
            "reference": rebuilt.reference_model.description if rebuilt.reference_model else reference,
            "loaded_by": "TF1-style session, tag serve",
        },
        "operations": census(folder),
        "versions": {"exporter": origin.exporter_version, "tensorflow": origin.tensorflow_version, "numpy": np.__version__},
        "exported_at": origin.exported_at,
    }
    (folder / "assets.extra" / FILE_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file; read once for all TLs whose actors it holds."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _mtime_ns: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
