"""Which SUMO a program is a client of, and as which of its clients: flags of the controller and of the guard."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from city.arguments import host_and_port
from city.errors import InputError

MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True)
class SumoAccess:
    """A running SUMO, or one that the program starts."""

    attach: tuple[str, int] | None = None
    """(host, port) of a running SUMO; without it, the program starts one."""
    arguments: Sequence[str] = ()
    clients: int = 1
    """Clients that the started SUMO waits for, including this one."""
    port: int = 0
    """TraCI port of the started SUMO; 0 for a free one."""
    order: int | None = None
    """TraCI order of this client among several clients of one simulation."""
    gui: bool = False

    @property
    def has_other_clients(self) -> bool:
        """True if SUMO may have other clients, so that it must not end with this one."""
        return self.attach is not None or self.clients > 1


def add_flags(parser: argparse.ArgumentParser, clients: int) -> None:
    """Add the flags that select a SUMO. `clients`: default of --clients."""
    parser.add_argument("--sumo", metavar="HOST:PORT", help="attach to a running SUMO (default: start one)")
    for flag, default, text in (
        ("--order", None, "TraCI client order, as setOrder (default: 1 if there are several clients)"),
        ("--clients", clients, f"clients that the started SUMO waits for (default: {clients})"),
        ("--sumo-port", 0, "TraCI port of the started SUMO (default: a free one)"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--gui",
        action="store_true",
        help="start sumo-gui, which shows the simulation, in the place of sumo; it needs a display",
    )


def from_flags(args: argparse.Namespace, arguments: Sequence[str]) -> SumoAccess:
    """The SUMO of the flags of `add_flags`. Raises InputError.

    `arguments`: those of a SUMO that is started.
    """
    if not 1 <= args.clients <= MAX_INT32:
        raise InputError(f"--clients {args.clients} must lie between 1 and {MAX_INT32}: this controller is one of them")
    if args.order is not None and not 0 <= args.order <= MAX_INT32:
        raise InputError(
            f"--order {args.order} must lie between 0 and {MAX_INT32}, such as 1; SUMO serves its clients in this order"
        )
    if not 0 <= args.sumo_port <= 65535:
        raise InputError(f"--sumo-port {args.sumo_port} must lie between 0 and 65535")
    if args.sumo is not None:
        attach = host_and_port(args.sumo, "--sumo", "127.0.0.1:8813")
        return SumoAccess(attach, order=1 if args.order is None else args.order)
    # SUMO ends for all its clients if one of several has no order
    order = 1 if args.order is None and args.clients > 1 else args.order
    return SumoAccess(None, tuple(arguments), args.clients, args.sumo_port, order, args.gui)
