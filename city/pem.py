"""PEM files: certificates and keys."""

import base64
import calendar
import os
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError, os_errors


def read(path: Path) -> bytes:
    """The content of a PEM file. Raises InputError."""
    with os_errors(f"{path}: cannot be read", "fix its path or permissions"):
        content = path.read_bytes()
    if b"-----BEGIN " not in content or not content.isascii():
        raise InputError(f"{path}: is not PEM; it must begin with a line such as -----BEGIN CERTIFICATE-----")
    return content


def check_pair(certificate: bytes, key: bytes, where: str) -> None:
    """Raise InputError if a key does not belong to the certificate. `where`: text that names both.

    gRPC reports all other faults: Python's TLS library is stricter, about short keys for instance.
    """
    with os.fdopen(os.memfd_create("pem"), "wb") as file:  # in memory: a key must not be written to a disk
        file.write(certificate + b"\n" + key)
        file.flush()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except (ssl.SSLError, ValueError) as error:
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                raise InputError(
                    f"{where}: the key does not belong to the certificate; pass the two that belong together"
                ) from None


def earliest_expiry_s(content: bytes) -> float | None:
    """The earliest expiry of the certificates in a PEM file, in s since 1970 (UTC); None without a readable
    certificate.

    Source: RFC 5280, section 4.1.
    """
    blocks = re.findall(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", content, re.S)
    try:
        return min((_not_after_s(base64.b64decode(block)) for block in blocks), default=None)
    except (ValueError, IndexError):
        return None


def _not_after_s(certificate: bytes) -> float:
    """`notAfter` of a DER certificate. Raises ValueError or IndexError."""
    ((_, signed),) = _fields(certificate)
    body, *_ = _fields(signed)
    fields = list(_fields(body[1]))
    # optional version, serial number, algorithm, issuer, validity
    validity = fields[4 if fields[0][0] == 0xA0 else 3][1]
    tag, text = list(_fields(validity))[1]
    year_digits = 2 if tag == 0x17 else 4
    parsed = time.strptime(text.decode("ascii"), "%y%m%d%H%M%SZ" if year_digits == 2 else "%Y%m%d%H%M%SZ")
    # two digits below 50 are years of this century (RFC 5280); strptime reads those up to 68 so
    year = parsed.tm_year - 100 if year_digits == 2 and parsed.tm_year >= 2050 else parsed.tm_year
    return float(calendar.timegm((year, *parsed[1:])))


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each DER field."""
    place = 0
    while place < len(content):
        tag, size = content[place], content[place + 1]
        place += 2
        if size & 0x80:
            length = size & 0x7F
            size = int.from_bytes(content[place : place + length], "big")
            place += length
        yield tag, content[place : place + size]
        place += size
