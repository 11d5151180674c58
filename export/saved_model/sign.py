"""Sign a model with OpenSSF model-signing, as the last step before it is published."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from city import signatures
from city.arguments import Parser
from city.errors import InputError, library_errors
from serving import signed_models

MISSING = "--sign needs the packages model-signing and pyopenssl; install greenserve[signing]"


def add_flags(parser: Parser) -> None:
    """Add --sign and --certificate."""
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help=f"sign each version with this private key (P-256, PEM), as {signed_models.FILE_NAME} in it",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="with --sign: the key's certificate, then those that issued it, as PEM",
    )


def signer(args: argparse.Namespace) -> "Signer | None":
    """The signer of the flags; None without --sign. Raises InputError."""
    if args.certificate is not None and args.sign is None:
        raise InputError("--certificate is for --sign; pass --sign KEY too")
    return None if args.sign is None else Signer(args.sign, args.certificate)


class Signer:
    """A private key, and its certificate if it has one."""

    def __init__(self, key: Path, certificate: Path | None = None) -> None:
        """Read the files. Raises InputError, also if the certificate is expired or may not sign."""
        self.signers = signatures.Signers.of_key(key)
        """This signer, to verify what it has signed."""
        try:
            from cryptography.hazmat.primitives.serialization import Encoding
            from model_signing import signing
        except ImportError:
            raise InputError(MISSING) from None
        self._config = signing.Config()
        if certificate is None:
            self._config.use_elliptic_key_signer(private_key=key)
            return
        read = signatures.Signers.read(certificate)
        with library_errors(f"{certificate}: cannot be used with {key}"):
            self._config.use_certificate_signer(
                private_key=key, signing_certificate=certificate, certificate_chain=[certificate]
            )
        self.signers = replace(read, certificates=read.certificates[-1:])
        self.signers.certified_key([each.public_bytes(Encoding.DER) for each in read.certificates])

    def sign(self, version: Path, tl: str, number: int) -> None:
        """Sign the files of a version, which nobody may add to afterwards. Raises InputError."""
        self._config.set_hashing_config(_Hashing(f"{tl}/{number}")).sign(version, version / signed_models.FILE_NAME)
        signed_models.verify(version, tl, number, self.signers)


class _Hashing:
    """Hashes the files of a draft under the name of its model, which its folder gets when it is published."""

    def __init__(self, name: str) -> None:
        self._name = name

    def hash(self, folder: Path) -> Any:
        """The library's manifest of a folder."""
        from model_signing import hashing, manifest

        # git's files are signed too: a version has none, and nobody may add one
        config = hashing.Config().set_ignored_paths(paths=[signed_models.FILE_NAME], ignore_git_paths=False)
        found = config.hash(folder)
        kind = manifest.SerializationType.from_args(found.serialization_type)
        files = [kind.new_item(each.identifier, each.digest) for each in found.resource_descriptors()]
        return manifest.Manifest(self._name, files, kind)
