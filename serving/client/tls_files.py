"""A client's certificates: their flags and files, which may be replaced while it runs."""

import argparse
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from city import pem
from city.config import Serving
from city.errors import InputError
from serving.client import Tls

log = logging.getLogger("serving.client")

FLAGS = ("tls_ca", "tls_certificate", "tls_key")


@dataclass(frozen=True)
class TlsFiles:
    """Paths of a client's PEM files."""

    ca: Path | None = None
    """CA bundle that verifies the server."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """Name in the server's certificate, if it differs from the address."""

    def read(self) -> Tls:
        """Read the files. Raises InputError."""
        ca, certificate, key = (
            None if path is None else pem.read(path) for path in (self.ca, self.certificate, self.key)
        )
        if certificate is not None and key is not None:
            pem.check_pair(certificate, key, f"{self.certificate} and {self.key}")
        return Tls(ca, certificate, key, self.server_name)


class ChangingTls:
    """The certificates of a client whose files may be replaced while it runs."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files. Raises InputError."""
        self._files = files
        self._newest = files.read()
        self._last_error = ""
        """Error of the last reading; the same error is logged once."""

    def newest(self) -> Tls:
        return self._newest

    def expiries_s(self) -> dict[str, float]:
        """By file (`ca` or `certificate`), the earliest expiry of its certificates in use, in s since 1970 (UTC)."""
        contents = {"ca": self._newest.ca or b"", "certificate": self._newest.certificate or b""}
        expiries = {file: pem.earliest_expiry_s(content) for file, content in contents.items()}
        return {file: expiry_s for file, expiry_s in expiries.items() if expiry_s is not None}

    def has_changed(self) -> bool:
        """Read the files again and return whether the certificates differ; those of unreadable files stay in use."""
        try:
            newest = self._files.read()
        except InputError as error:
            if str(error) != self._last_error:
                log.warning("%s; the previous certificates stay in use", error)
            self._last_error = str(error)
            return False
        self._last_error = ""
        has_changed, self._newest = newest != self._newest, newest
        return has_changed


def add_flags(parser: argparse.ArgumentParser) -> None:
    for flag, text in (
        ("ca", "TLS: CA bundle (PEM) that verifies the server"),
        ("certificate", "mTLS: client certificate (PEM)"),
        ("key", "mTLS: client key (PEM)"),
    ):
        parser.add_argument(
            f"--tls-{flag}", f"--tls_{flag}", type=Path, metavar="FILE", help=f"{text} (default: [serving] tls_{flag})"
        )


def from_flags(args: argparse.Namespace, serving: Serving) -> TlsFiles | None:
    """The files that flags and city.toml name, flags first; None: plain text. Raises InputError."""
    files = TlsFiles(serving.tls_ca, serving.tls_certificate, serving.tls_key, serving.tls_server_name)
    for flag in FLAGS:
        if getattr(args, flag) is not None:
            files = replace(files, **{flag.removeprefix("tls_"): getattr(args, flag)})
    if (files.certificate is None) != (files.key is None):
        raise InputError("--tls-certificate and --tls-key belong together; pass both")
    return None if files == TlsFiles() else files
