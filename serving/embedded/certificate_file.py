"""The server's certificates, and those of its file when it is replaced."""

from pathlib import Path

import grpc

from city.errors import InputError
from serving.embedded.config import Ssl, ssl_from_file
from serving.embedded.telemetry.logs import event, log


def certificates(ssl: Ssl) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(ssl.server_key, ssl.server_cert)], ssl.custom_ca or None)


class CertificateFile:
    """An --ssl_config_file that may be replaced while a port uses it."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None: the certificates stay the same."""
        self._path = path
        self._change = _change(path) if path is not None else None

    def newest(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates of a file that was replaced; None: those before are still right, or the new ones are invalid."""
        if self._path is None:
            return None
        try:
            change = _change(self._path)
            if change == self._change:
                return None
            self._change = change
            replaced = certificates(ssl_from_file(self._path))
        except (OSError, InputError) as error:
            log.warning("%s: %s; the certificates before are used", self._path, error)
            return None
        event("certificates_replaced", file=self._path)
        return replaced


def _change(path: Path) -> tuple[int, int]:
    """(modification time in ns, inode): a file that was replaced has others."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
