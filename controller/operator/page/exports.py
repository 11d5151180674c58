"""Where the model that answers for a TL comes from: the origin in its contract, and its export manifest if that can be
read.

The controller talks to the model server alone, which serves the contract and not the manifest. The manifest is a file
in the version's folder, which this machine has if the models were exported here or lie on a shared disk. It is shown
only if it is of the same export as the served contract.
"""

import json
import math
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from city.printable import printable
from controller.policies.served_policies import ServedPolicies
from protos import policy_pb2 as pb

MANIFEST = Path("assets.extra") / "export.json"
"""In a version's folder."""
MAX_BYTES = 20_000_000
"""Limit of a manifest, which has some 200 bytes for each variable."""
MAX_CHARS, MAX_FILES = 300, 20
"""Limits of a text, and of the source's files, that are shown."""
RETRY_S = 10.0
"""Wall time after which a manifest that could not be shown is looked for again."""


class Exports:
    """Looks up the models of one run. Used by one thread."""

    def __init__(
        self, policies: ServedPolicies | None, models_dir: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare a look-up.

        Args:
            policies: know the contracts of models that have answered; None: no model is asked.
            models_dir: folder of the models as this machine would have it.
            clock: wall time in s.
        """
        self._policies = policies
        self._models_dir = models_dir
        self._clock = clock
        self._found: dict[str, tuple[tuple[str, int], float, dict[str, Any]]] = {}
        """By TL: (model, version), the wall time from which it is looked up again, and what was found."""

    def of(self, tl: str, model: str, version: int) -> dict[str, Any]:
        """origin, of the contract, and manifest, or in its place why there is none; {} before the first answer."""
        if self._policies is None or not model:
            return {}
        known = self._found.get(tl)
        if known is not None and known[0] == (model, version) and self._clock() < known[1]:
            return known[2]
        contract = self._policies.contract_of(tl, model, version)
        if contract is None:
            return {"origin": {}, "manifest": None, "why": "the contract of this version is not known yet"}
        folder = self._models_dir / tl / str(version)
        manifest, why = _manifest(folder, contract, f"{self._models_dir.name}/{tl}/{version}/{MANIFEST}")
        found = {
            "origin": MessageToDict(contract.origin, preserving_proto_field_name=True),
            "manifest": manifest,
            "why": why,
        }
        # a contract may be replaced under its number, too
        self._found[tl] = (model, version), self._clock() + RETRY_S, found
        return found


def _manifest(folder: Path, contract: pb.PolicyContract, shown_as: str) -> tuple[dict[str, Any] | None, str]:
    """A manifest as the page shows it, or None and why. `shown_as`: its path from the city's folder."""
    path = folder / MANIFEST
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return None, f"{shown_as} is not a regular file"  # a FIFO would block the page
        if status.st_size > MAX_BYTES:
            return None, f"{shown_as} has more than {MAX_BYTES} bytes"
        content = json.loads(path.read_text(encoding="utf-8"))
        origin, source = contract.origin, content["source"]
        exported = (content["tl"], content["model_number"], content["exported_at"], source["format"], source["name"])
        if exported != (contract.tl, origin.model_number, origin.exported_at, origin.source_format, origin.file_name):
            return None, f"{shown_as} is of another export than the model that is served"
        return _shown(shown_as, content), ""
    except FileNotFoundError:
        return None, f"the model server does not serve it, and this machine has no {shown_as}"
    except OSError as error:
        return None, f"{shown_as} cannot be read ({error.strerror})"
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError):
        return None, f"{shown_as} is damaged"


def _shown(path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError, LookupError, TypeError or AttributeError if the content is not a manifest."""
    parity, actor = content["parity"], content["actor"]
    return {
        "path": path,
        "files": [_shown_text(file["name"]) for file in content["source"]["files"][:MAX_FILES]],
        "scope": _shown_text(content["scope"]),
        "architecture": _shown_text(actor["architecture"]),
        "variables": len(content["variables"]),
        "parity": {
            "observations": int(parity["observations"]),
            "difference": _finite(parity["largest_absolute_difference"]),
            "permitted": _finite(parity["largest_permitted_difference"]),
            "reference": _shown_text(parity["reference"]),
        },
        "versions": {_shown_text(name): _shown_text(version) for name, version in content["versions"].items()},
    }


def _shown_text(value: Any) -> str:
    return printable(str(value), MAX_CHARS)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number
