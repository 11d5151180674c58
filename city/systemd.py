"""Notifications to systemd (sd_notify(3), sd_watchdog_enabled(3)), if it started this process."""

import os
import socket

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


def notify(state: str) -> None:
    """Send a state, such as READY=1, to systemd; do nothing without systemd."""
    path = os.environ.get(SOCKET_VARIABLE, "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as connection:
        try:
            # an abstract address begins with a zero byte, written as @
            connection.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
        except OSError:
            return  # control must not depend on the service manager


def watchdog_interval_s() -> float | None:
    """Wall time in s between two WATCHDOG=1, half of systemd's limit; None if systemd expects none of this process."""
    if os.environ.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) != str(os.getpid()):
        return None  # the variables are those of another process, such as this one's parent
    text = os.environ.get(WATCHDOG_VARIABLE, "")
    return int(text) / 2e6 if text.isdigit() and int(text) else None
