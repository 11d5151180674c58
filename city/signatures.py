"""Signatures by an ECDSA key (P-256, SHA-256), and whose are accepted."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from city import pem
from city.errors import InputError, first_line

SUFFIX = ".sig"
"""Suffix of a signature's file; the signed file stands beside it, without the suffix."""
_KEY_HINT = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem writes one"
_PUBLIC_KEY_HINT = "openssl ec -in key.pem -pubout -out public.pem writes one"
_BLOCK = re.compile(rb"-----BEGIN (PUBLIC KEY|CERTIFICATE)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Signers:
    """Whose signatures are accepted: owners of keys, and of certificates that are listed or issued by a listed one."""

    source: Path
    keys: tuple[Any, ...] = ()
    """Public keys (P-256)."""
    certificates: tuple[Any, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Signers":
        """Read the public keys and certificates of a PEM file. Raises InputError."""
        serialization, _ = _cryptography()
        from cryptography import x509

        content, keys, certificates = pem.read(path), [], []
        try:
            for match in _BLOCK.finditer(content):
                if match[1] == b"CERTIFICATE":
                    certificates.append(x509.load_pem_x509_certificate(match[0]))
                else:
                    keys.append(_of_p256(path, serialization.load_pem_public_key(match[0]), _PUBLIC_KEY_HINT))
        except ValueError as error:
            raise InputError(f"{path}: has a key or certificate that cannot be read: {first_line(error)}") from None
        if not keys and not certificates:
            raise InputError(f"{path}: holds no public key and no certificate; {_PUBLIC_KEY_HINT}")
        return cls(path, tuple(keys), tuple(certificates))

    @classmethod
    def of_key(cls, key_file: Path) -> "Signers":
        """The owner of a private key. Raises InputError."""
        return cls(key_file, keys=(_private_key(key_file).public_key(),))

    def check(self, content: bytes, signature: bytes, chain: Sequence[bytes] = ()) -> None:
        """Raise InputError unless one of them has signed a content.

        Args:
            content: the signed bytes.
            signature: in DER.
            chain: the signer's certificate, then those that issued it, in DER; empty if the signer has none.
        """
        if not chain and not self.keys:
            raise InputError(
                f"is signed without a certificate, and {self.source} has no public key; add the signer's, or export "
                "with --certificate"
            )
        keys = (self.certified_key(chain),) if chain and self.certificates else self.keys
        if not any(_has_signed(key, content, signature) for key in keys):
            raise InputError(f"is not signed by {self.source}: it was changed, or another key has signed it")

    def certified_key(self, chain: Sequence[bytes]) -> Any:
        """The key of the first certificate of a chain (DER). Raises InputError unless all are valid now."""
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.x509 import oid, verification

        def check_usage(_policy: object, _certificate: object, usage: Any) -> None:
            if not usage.digital_signature:
                raise ValueError("its keyUsage lacks digitalSignature")

        def check_issuer(_policy: object, _certificate: object, usage: Any) -> None:
            if usage is not None and not usage.key_cert_sign:
                raise ValueError("its keyUsage lacks keyCertSign")

        def check_purpose(_policy: object, _certificate: object, purposes: Any) -> None:
            # an authority's certificates for TLS servers do not sign models
            if purposes is not None and oid.ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
                raise ValueError("its extendedKeyUsage lacks codeSigning")

        optional = verification.Criticality.AGNOSTIC
        signer = (
            verification.ExtensionPolicy.permit_all()
            .require_present(x509.KeyUsage, optional, check_usage)
            .may_be_present(x509.ExtendedKeyUsage, optional, check_purpose)
        )
        # openssl req -x509 writes authorities without keyUsage
        issuer = verification.ExtensionPolicy.webpki_defaults_ca().may_be_present(x509.KeyUsage, optional, check_issuer)
        builder = verification.PolicyBuilder().store(verification.Store(list(self.certificates)))
        verifier = builder.extension_policies(ca_policy=issuer, ee_policy=signer).build_client_verifier()
        try:
            certificate, *issuers = map(x509.load_der_x509_certificate, chain)
            if (end := certificate.not_valid_after_utc) < datetime.now(UTC):
                raise ValueError(f"it expired {end:%Y-%m-%d %H:%M} UTC")
            verifier.verify(certificate, issuers)
            return _of_p256(self.source, certificate.public_key(), _KEY_HINT)
        except (ValueError, UnsupportedAlgorithm, verification.VerificationError) as error:
            raise InputError(
                f"the certificate of its signer is not valid by {self.source}: {first_line(error)}; sign with a valid "
                "certificate"
            ) from None


def sign(content: bytes, key_file: Path) -> str:
    """The signature of a content, its DER bytes in base64. Raises InputError.

    `key_file`: a private key without password, in PEM.
    """
    _, algorithm = _cryptography()
    return base64.b64encode(_private_key(key_file).sign(content, algorithm)).decode()


def _has_signed(key: Any, content: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content, _cryptography()[1])
    except InvalidSignature:
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


def _private_key(path: Path) -> Any:
    """A private key. Raises InputError."""
    serialization, _ = _cryptography()
    try:
        return _of_p256(path, serialization.load_pem_private_key(path.read_bytes(), None), _KEY_HINT)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a private key, {_KEY_HINT}") from None
    except (ValueError, TypeError):  # TypeError: it has a password
        raise InputError(f"{path}: is not a private key in PEM without a password; {_KEY_HINT}") from None


def _of_p256(path: Path, key: Any, hint: str) -> Any:
    if getattr(getattr(key, "curve", None), "name", "") != "secp256r1":
        raise InputError(f"{path}: is not a key of the curve P-256; {hint}")
    return key
