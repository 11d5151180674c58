"""The certificate of an export: where every number came from, and what was proved.

`assets.extra/export.json` of each model. Same input, same certificate, apart
from the time.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from export.actors import Activation, Actor, BatchNorm, Branch, Dense
from export.saved_model import PARTS
from protos import policy_pb2 as pb

NAME = "export.json"
# fmt: off
INFERENCE_OPS = frozenset({
    "Add", "AddV2", "ArgMax", "AssignVariableOp", "BatchMatMulV2", "BiasAdd", "Cast", "ConcatV2", "Const", "Elu", "Erf",
    "Erfc", "Exp", "ExpandDims", "Expm1", "Fill", "GatherV2", "Identity", "LeakyRelu", "MatMul", "Maximum", "Minimum",
    "Mul", "Neg", "NoOp", "Pack", "Placeholder", "PlaceholderWithDefault", "Pow", "ReadVariableOp", "RealDiv", "Relu",
    "Reshape", "RestoreV2", "Rsqrt", "Selu", "Shape", "Sigmoid", "Slice", "Softmax", "Softplus", "Split", "SplitV",
    "Sqrt", "Square", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Tanh", "Transpose", "VarHandleOp",
})
# fmt: on


class NotInference(Exception):
    """The graph holds operations that no inference needs."""


def census(folder: Path) -> dict[str, int]:
    """Operations of a written SavedModel, counted. Raises NotInference."""
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    ops = Counter(node.op for node in graph.node)
    ops.update(node.op for function in graph.library.function for node in function.node_def)
    foreign = sorted(set(ops) - INFERENCE_OPS)
    if foreign:
        raise NotInference(f"its graph holds {', '.join(foreign)}, which no inference needs")
    return dict(sorted(ops.items()))


def steps(actor: Actor) -> list[dict[str, Any]]:
    """The actor's steps, each with the names of its layer; weights aside."""
    told: list[dict[str, Any]] = []
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


def write(folder: Path, actor: Actor, policy: pb.Policy, files: Sequence[Path], observations: int, difference: float) -> None:
    """Write the certificate of a proved model. Raises NotInference."""
    origin = policy.origin
    certificate = {
        "tl": policy.tl,
        "model_number": origin.model_number,
        "source": {"format": origin.source_format, "name": origin.file_name, "files": [_file(path) for path in files]},
        "actor": {"architecture": actor.architecture, "inputs": actor.inputs, "outputs": actor.outputs, "steps": steps(actor)},
        "variables": [
            {
                "name": f"actor/{k:03d}_{part}",
                "from": step.stored_as.get(part, f"{step.name}/{part}"),
                "shape": list(values.shape),
                "sha256": _digest(values),
            }
            for k, step in enumerate(actor.steps)
            if isinstance(step, Dense | BatchNorm)
            for part in PARTS
            if (values := getattr(step, part, None)) is not None
        ],
        "left_unread": list(actor.unread),
        "parity": {
            "observations": observations,
            "largest_absolute_difference": difference,
            "reference": "NumPy float64 evaluation of the checkpoint's variables",
            "loaded_by": "TF1-style session, tag serve",
        },
        "operations": census(folder),
        "versions": {"exporter": origin.exporter_version, "tensorflow": origin.tensorflow_version, "numpy": np.__version__},
        "exported_at": origin.exported_at,
    }
    (folder / "assets.extra" / NAME).write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")


def _file(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"name": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()
