"""The export manifest, `assets.extra/export.json`: the origin of the weights, and the verification's results.

The same input gives the same manifest, apart from the time.
"""

import datetime
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from city.version import VERSION
from export.actors import Actor
from export.checkpoints import scopes
from export.checkpoints.source import RebuiltActor
from export.saved_model.verify import Verification
from protos import policy_pb2 as pb
from serving.contract import FLEET

FILE_NAME = "export.json"


def origin(source_format: str, file_name: str, sha256s: Iterable[str], model_number: int) -> pb.Origin:
    """The origin of an export made now; its digest is that of the sources' hex digests in order."""
    return pb.Origin(
        source_format=source_format,
        file_name=file_name,
        sha256=hashlib.sha256(b"".join(map(bytes.fromhex, sha256s))).hexdigest(),
        model_number=model_number,
        exporter_version=VERSION,
        tensorflow_version=tf.__version__,
        exported_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def write(
    folder: Path, rebuilt: RebuiltActor, contract: pb.PolicyContract, files: Sequence[Path], verification: Verification
) -> None:
    """Write the manifest of a verified model.

    Args:
        folder: the SavedModel.
        rebuilt: the actor and its scope in the checkpoint.
        contract: the model's contract, with its origin.
        files: the checkpoint's files.
        verification: the results to record.
    """
    actor = rebuilt.actor
    summary: dict[str, Any] = {"architecture": actor.architecture, "inputs": actor.inputs, "outputs": actor.outputs}
    if isinstance(actor, Actor):
        summary["steps"] = [step.to_json() for step in actor.steps]
    else:
        summary |= {"output_tensor": actor.output, "output_kind": actor.output_kind}
    content = {
        "source": {
            "format": contract.origin.source_format,
            "name": contract.origin.file_name,
            "files": [{"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)} for path in files],
        },
        "scope": rebuilt.scope,
        "actor": summary,
        "variables": [
            {
                "name": weight.name,
                "from": weight.stored_as,
                "shape": list(weight.values.shape),
                "sha256": hashlib.sha256(np.ascontiguousarray(weight.values).tobytes()).hexdigest(),
            }
            for weight in actor.weights
        ],
        "left_unread": scopes.group_unread(actor.unread, rebuilt.scope),
    }
    _write(folder, contract, content, verification)


def write_fleet(
    folder: Path,
    contract: pb.PolicyContract,
    single_models: Mapping[str, Path],
    groups: Sequence[Mapping[str, Any]],
    verification: Verification,
) -> None:
    """Write the manifest of a verified fleet.

    Args:
        folder: the fleet's SavedModel.
        contract: the fleet's contract.
        single_models: version folder of every TL's own model.
        groups: the TLs of every group, its layer sizes, and whether it is stacked.
        verification: the results to record.
    """
    models = {}
    for tl, version in single_models.items():
        paths = [version / "saved_model.pb", *sorted((version / "variables").glob("variables.data-*"))]
        models[tl] = {"version": int(version.name), "sha256": {path.name: sha256(path) for path in paths}}
    content = {"source": {"format": FLEET, "models": models}, "groups": list(groups)}
    _write(folder, contract, content, verification)


def _write(folder: Path, contract: pb.PolicyContract, content: Mapping[str, Any], verification: Verification) -> None:
    origin = contract.origin
    manifest = {
        "tl": contract.tl,
        "model_number": origin.model_number,
        **content,
        "parity": {
            "observations": verification.observations,
            "largest_absolute_difference": verification.difference,
            "largest_permitted_difference": verification.permitted,
            "reference": verification.reference,
            "loaded_by": "TF1-style session, tag serve",
            **({"only_action": verification.only_action} if verification.only_action else {}),
        },
        "operations": verification.operations,
        "versions": {
            "exporter": origin.exporter_version,
            "tensorflow": origin.tensorflow_version,
            "numpy": np.__version__,
        },
        "exported_at": origin.exported_at,
    }
    (folder / "assets.extra" / FILE_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file; cached, because one file may hold the actors of many TLs."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _mtime_ns: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
