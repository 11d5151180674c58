"""Signatures of files by an ECDSA key (P-256, SHA-256): a signature is the text of its DER bytes in base64."""

import base64
from pathlib import Path
from typing import Any

from city.errors import InputError

SUFFIX = ".sig"
"""Suffix of a signature's file; the signed file stands beside it, without the suffix."""
_KEY_HINT = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem writes one"
_PUBLIC_KEY_HINT = "openssl ec -in key.pem -pubout -out public.pem writes one"


def sign(content: bytes, key_file: Path) -> str:
    """The signature of a content. `key_file`: a private key without password, in PEM. Raises InputError."""
    serialization, algorithm = _cryptography()
    key = _read(key_file, lambda pem: serialization.load_pem_private_key(pem, None), "private", _KEY_HINT)
    return base64.b64encode(key.sign(content, algorithm)).decode()


def verify(content: bytes, signature: str, public_key_file: Path) -> bool:
    """True if a content has this signature by the key's owner. `public_key_file`: in PEM. Raises InputError."""
    from cryptography.exceptions import InvalidSignature

    serialization, algorithm = _cryptography()
    key = _read(public_key_file, serialization.load_pem_public_key, "public", _PUBLIC_KEY_HINT)
    try:
        key.verify(base64.b64decode(signature, validate=True), content, algorithm)
    except (InvalidSignature, ValueError):
        return False
    return True


def _cryptography() -> tuple[Any, Any]:
    """The package's serialization, and the algorithm. Raises InputError if it is not installed."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise InputError("signatures need the package cryptography; install greenserve[signing]") from None
    return serialization, ec.ECDSA(hashes.SHA256())


def _read(path: Path, load: Any, kind: str, hint: str) -> Any:
    """A key of the curve P-256. Raises InputError."""
    try:
        key = load(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a {kind} key, {hint}") from None
    except (ValueError, TypeError):  # TypeError: it has a password
        raise InputError(f"{path}: is not a {kind} key in PEM without a password; {hint}") from None
    if getattr(getattr(key, "curve", None), "name", "") != "secp256r1":
        raise InputError(f"{path}: is not a key of the curve P-256; {hint}")
    return key
