"""Where the control API listens, and who may reach it: flags and keys of city.toml."""

import argparse
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from city.arguments import host_and_port
from city.config import City
from city.errors import InputError
from serving.client.tls_files import TlsFiles

TLS_FLAGS = ("ca", "certificate", "key")


@dataclass(frozen=True)
class ControlAddress:
    """The control API's settings."""

    address: tuple[str, int]
    """(host, port); port 0: the system chooses."""
    tls: TlsFiles | None
    """The server's certificate and key, and the CA bundle that verifies clients; None: plain text and
    the user's token, on loopback alone."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--control-address",
        metavar="HOST:PORT",
        help="serve the control API for greenserve ctl there, on loopback for this user or with the certificates below "
        "(default: [controller] control_address)",
    )
    for flag, text in (
        ("ca", "CA bundle (PEM) that verifies the control API's clients"),
        ("certificate", "the control API's certificate (PEM)"),
        ("key", "its key (PEM)"),
    ):
        parser.add_argument(
            f"--control-tls-{flag}",
            type=Path,
            metavar="FILE",
            help=f"{text} (default: [controller] control_tls_{flag})",
        )


def from_flags(args: argparse.Namespace, city: City) -> ControlAddress | None:
    """The settings of flags and city.toml, flags first; None: no control API. Raises InputError."""
    settings = city.controller
    written = args.control_address or settings.control_address
    if not written:
        if passed := [name for name in TLS_FLAGS if getattr(args, f"control_tls_{name}")]:
            raise InputError(
                f"--control-tls-{passed[0]} is for the control API; pass --control-address, or leave it out"
            )
        return None
    flag = "--control-address" if args.control_address else f"{city.path}: [controller] control_address"
    address = host_and_port(written, flag, "127.0.0.1:9110")
    files = TlsFiles(
        *(getattr(args, f"control_tls_{name}") or getattr(settings, f"control_tls_{name}") for name in TLS_FLAGS)
    )
    has_tls = files != TlsFiles()
    if has_tls and None in (files.ca, files.certificate, files.key):
        raise InputError(
            "--control-tls-ca, --control-tls-certificate and --control-tls-key belong together; pass all three"
        )
    if not has_tls and not is_loopback(address[0]):
        raise InputError(
            f"{flag} {written}: any client that reaches it could command the signals; listen on 127.0.0.1, or pass "
            "--control-tls-ca, --control-tls-certificate and --control-tls-key, so that clients need a certificate"
        )
    return ControlAddress(address, files if has_tls else None)


def is_loopback(host: str) -> bool:
    """Tell if only programs on this machine reach a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A socket that listens; port 0: the system chooses. Raises InputError that names the flag."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that the name service cannot have
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0]
        raise InputError(f"{flag} {host}:{port}: cannot listen there ({reason}); pass another port") from None
