"""The server's certificates, read again from their file when it is replaced."""

from pathlib import Path

import grpc

from city.errors import InputError
from protos.model_server_config_pb2 import SSLConfig
from serving.embedded.config import ssl_from_file
from serving.embedded.telemetry.events import event, log


def certificates(ssl: SSLConfig) -> grpc.ServerCertificateConfiguration:
    key, certificate, ca = (text.encode() for text in (ssl.server_key, ssl.server_cert, ssl.custom_ca))
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca or None)


class CertificateFile:
    """An --ssl_config_file that may be replaced while a port uses it."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file; without one, the certificates never change."""
        self._path = path
        self._identity = _identity(path) if path is not None else None

    def newest(self) -> grpc.ServerCertificateConfiguration | None:
        """The file's certificates if it was replaced; None (keep the current ones) if not, or if the new ones are
        invalid."""
        if self._path is None:
            return None
        try:
            identity = _identity(self._path)
            if identity == self._identity:
                return None
            self._identity = identity
            replaced = certificates(ssl_from_file(self._path))
        except (OSError, InputError) as error:
            log.warning("%s: %s; the previous certificates stay in use", self._path, error)
            return None
        event("certificates_replaced", file=self._path)
        return replaced


def _identity(path: Path) -> tuple[int, int]:
    """(modification time in ns, inode); both change when a file is replaced."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
