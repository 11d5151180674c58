"""The clients of a SUMO on this machine, from Linux's table of TCP connections: TraCI has no command for it."""

from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"


def count_connections(port: int, tables: tuple[Path, ...] = TABLES) -> int | None:
    """Number of established connections to a TCP port of this machine; None if the system has no table of them."""
    count = None
    for table in tables:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # not Linux, or no IPv6
        ports = [
            int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in map(str.split, rows) if state == ESTABLISHED
        ]
        count = (count or 0) + ports.count(port)
    return count
