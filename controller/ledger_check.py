"""Compare what a model server serves, or the folder of the models holds, with the city's ledger."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from city.errors import InputError
from city.ledger import Model, TlState
from city.ledger_file import LedgerFile
from controller.policies.served_contracts import ContractSource

STABLE = "stable"
"""Label of the versions that a rollout has promoted."""
REMEDY = "publish the ledger's number again, or take this one into the ledger (greenserve rollout adopt)"


def differences(
    ledger: LedgerFile, tls: Iterable[str], served: ContractSource | None, models_dir: Path
) -> dict[str, str]:
    """By TL of the ledger, why it is not as the ledger says.

    `served`: the models with label STABLE; None: the folder is compared.
    """
    known = {tl: ledger.state.tls[tl] for tl in tls if tl in ledger.state.tls}
    found = {
        tl: _folder(models_dir / tl, state) if served is None else _served(served, tl, state)
        for tl, state in known.items()
    }
    return {tl: f"{reason}; {REMEDY}" for tl, reason in found.items() if reason}


def _served(served: ContractSource, tl: str, state: TlState) -> str:
    try:
        number = served.contract(tl).origin.model_number
    except InputError as error:
        return f"the ledger says {state.stable.number}: {error}"
    if number == state.stable.number:
        return ""
    return f"{number} is served as {STABLE}, the ledger says {state.stable.number}"


def _folder(folder: Path, state: TlState) -> str:
    version = folder / str(state.stable.number)
    if not version.is_dir():
        return f"{version} is missing"
    return "" if model_of(version) == state.stable else f"{version} has other files than in the ledger"


def model_of(version: Path) -> Model:
    """The model of a version's folder: its number, and the digest of the paths and digests of all its files."""
    files = {}
    for path in version.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                files[str(path.relative_to(version))] = hashlib.file_digest(stream, "sha256").hexdigest()
    return Model(int(version.name), hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest())
