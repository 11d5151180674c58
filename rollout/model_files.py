"""A whole model's version in the folder of models."""

from pathlib import Path

from city.errors import InputError
from city.ledger import Model
from controller.ledger_check import model_of
from serving.contract import ContractError, from_saved_model

REMEDY = "export it again (greenserve export), or copy it under another name and rename it"
NEEDED = ("saved_model.pb", "variables/variables.index", "assets.extra/policy.json", "assets.extra/export.json")
"""Files without which a version is half copied."""


def of_version(models_dir: Path, tl: str, number: int) -> Model:
    """The model of `models/<TL>/<number>`. Raises InputError if it is missing, half copied, or renamed."""
    folder = models_dir / tl / str(number)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model; export it (greenserve export --tl {tl} --model-number {number})")
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise InputError(f"{folder}: lacks {', '.join(missing)}: it is half copied; {REMEDY}")
    if not [*(folder / "variables").glob("variables.data-*")]:
        raise InputError(f"{folder}: lacks its variables' data: it is half copied; {REMEDY}")
    try:
        contract = from_saved_model(folder)
    except ContractError as error:
        raise InputError(f"{folder}: {error}; {REMEDY}") from None
    if (contract.tl, contract.origin.model_number) != (tl, number):
        raise InputError(
            f"{folder}: is model {contract.origin.model_number} of {contract.tl}, not {number} of {tl}; a model cannot "
            "be renamed: export it for this TL and number"
        )
    return model_of(folder)
