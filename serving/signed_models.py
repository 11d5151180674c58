"""Verify the signature of a model, `models/<TL>/<number>/model.sig`, which OpenSSF model-signing writes.

The file is a sigstore bundle: a DSSE envelope, signed by an ECDSA key (P-256), around an in-toto statement with the
SHA-256 of every file. Beyond model-signing's own verification, the contract that is signed with the files must name the
TL and number, certificates must be valid now, and no file is left out, so that a version cannot be renamed or extended.
Only the package `cryptography` is needed.
"""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from city import names
from city.errors import InputError, errors_about
from city.signatures import Signers
from serving.contract import ContractError, from_saved_model

FILE_NAME = "model.sig"
MAX_SIGNATURE_BYTES = 1 << 20
"""A signature of a model's seven files has 2 kB."""
MAX_NAMED_FILES = 5
"""Files that an error names."""
_COPY_BYTES = 1 << 20
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPES = ("https://in-toto.io/Statement/v1", "https://model_signing/signature/v1.0")
"""(type, predicate type) of the statement."""
_REMEDY = "export it again (greenserve export --sign KEY)"


def verify(version: Path, tl: str, number: int, signers: Signers, copy_to: Path | None = None) -> None:
    """Raise InputError unless a version is signed as this TL's and number, and its files are those that were signed.

    Args:
        version: the folder.
        tl: the TL or fleet that it is used for.
        number: the model number that it is used for.
        signers: whose signatures are accepted.
        copy_to: an empty folder for a copy of the verified bytes, which nobody can change before they are loaded.
    """
    with errors_about(version):
        try:
            signed = _signed_digests((version / FILE_NAME), signers)
            _compare_files(version, signed, copy_to)
        except OSError as error:
            raise InputError(f"cannot be verified: {error.filename}: {error.strerror}; fix its permissions") from None
        try:
            contract = from_saved_model(copy_to or version)
        except ContractError as error:
            raise InputError(f"{error}; {_REMEDY}") from None
        if (contract.tl, contract.origin.model_number) != (tl, number):
            raise InputError(
                f"is signed as model {contract.origin.model_number} of {contract.tl}, not {number} of {tl}; export it "
                "for this TL and number"
            )


def _signed_digests(file: Path, signers: Signers) -> dict[str, str]:
    """By path in the version, the SHA-256 that was signed. Raises InputError, OSError."""
    try:
        with file.open("rb") as opened:
            bundle = json.loads(opened.read(MAX_SIGNATURE_BYTES))
        envelope, material = bundle["dsseEnvelope"], bundle["verificationMaterial"]
        certificates = material.get("x509CertificateChain", {}).get("certificates", [])
        chain = [base64.b64decode(each["rawBytes"]) for each in certificates]
        payload = base64.b64decode(envelope["payload"])
        signature = base64.b64decode(envelope["signatures"][0]["sig"])
        # DSSE's pre-authentication encoding
        content = f"DSSEv1 {len(_PAYLOAD_TYPE)} {_PAYLOAD_TYPE} {len(payload)} ".encode() + payload
        signers.check(content, signature, chain)
        return _digests_of(json.loads(payload))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"is not signed: {FILE_NAME} is missing; {_REMEDY}, or copy the whole version") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{FILE_NAME} is not a signature of model-signing's format 1.0; {_REMEDY}") from None


def _digests_of(statement: Any) -> dict[str, str]:
    """The digests of a signed statement. Raises LookupError, TypeError or ValueError."""
    predicate = statement["predicate"]
    resources = predicate["resources"]
    if (
        (statement["_type"], statement["predicateType"]) != _STATEMENT_TYPES
        or predicate["serialization"]["method"] != "files"
        or any(each["algorithm"] != "sha256" for each in resources)
    ):
        raise ValueError
    return {each["name"]: each["digest"] for each in resources}


def _compare_files(version: Path, signed: Mapping[str, str], copy_to: Path | None) -> None:
    """Compare, and copy, the files of a version. Raises InputError if they are not those signed, OSError."""
    found = {}
    for path in version.rglob("*"):
        name, mode = path.relative_to(version).as_posix(), path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise InputError(f"{name} is not a regular file; put the file itself there")
        if stat.S_ISREG(mode) and name != FILE_NAME:
            found[name] = path
    for change, changed in (
        ("added after it was signed", found.keys() - signed.keys()),
        ("missing: the version is half copied, or they were removed", signed.keys() - found.keys()),
    ):
        if changed:
            raise InputError(f"{names.listed(sorted(changed), MAX_NAMED_FILES)} {change}; {_REMEDY}, or copy it again")
    for name, path in sorted(found.items()):
        if _copy(path, copy_to / name if copy_to else Path(os.devnull)) != signed[name]:
            raise InputError(f"{name} was changed after it was signed; {_REMEDY}, or copy it again")


def _copy(source: Path, target: Path) -> str:
    """Copy a file and return the SHA-256 of what was written, as hex."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file, target.open("wb") as copy:
        while data := file.read(_COPY_BYTES):
            digest.update(data)
            copy.write(data)
    return digest.hexdigest()
