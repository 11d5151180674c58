"""Whether other clients are connected to a SUMO on this machine. TraCI does not say; Linux's table of TCP connections does."""

from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"


def count_connections(port: int, tables: tuple[Path, ...] = TABLES) -> int | None:
    """The established connections to a TCP port of this machine; None if there is no table of them."""
    count = None
    for table in tables:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # not Linux, or no IPv6
        ports = [int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in map(str.split, rows) if state == ESTABLISHED]
        count = (count or 0) + ports.count(port)
    return count
