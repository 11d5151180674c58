"""Release the signals: through a safe transition if there is time and SUMO answers, else at once."""

import logging
import signal

from controller.decision_step import DecisionLoop
from controller.sumo.connection import Interrupts, ReleaseConnection, SumoConnectionLost, WaitAborted

log = logging.getLogger("controller")

RELEASE_MARGIN_S = 30.0
"""Simulated seconds that a safe release may take beyond min green, yellow and clearance."""


class Stop:
    """Counts stop requests (SIGTERM, SIGINT, SIGHUP).

    The first requests a release, the second a stop without waiting for SUMO's answers,
    the third a stop without waiting for SUMO at all.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_controlling = False
        """True if signals are under control, so that they must be released first."""

    def install_handlers(self) -> None:
        # a terminal that closes (SIGHUP) is a stop like any other
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.request)

    def request(self, *_: object) -> None:
        """Count a stop request, also as a signal handler. Raises KeyboardInterrupt if no signal is controlled."""
        self.count += 1
        if not self.is_controlling:
            raise KeyboardInterrupt

    def is_requested(self) -> bool:
        return self.count > 0

    def interrupts(self) -> Interrupts:
        return Interrupts(abort_requested=lambda: self.count > 1, quit_requested=lambda: self.count > 2)


def release(loop: DecisionLoop, connection: ReleaseConnection, end_s: float, stop: Stop) -> bool:
    """Hand the signals back to their own programs: safely if there is time, else at once.

    Returns whether all are released.
    """
    # of two stop requests within one step, the second one means: do not wait for a safe transition
    before = min(stop.count, 1)
    limit_s = min(end_s, loop.now + loop.clearing_s + RELEASE_MARGIN_S)
    try:
        loop.release(limit_s, lambda: stop.count > before)
    finally:
        left_to_guard = _left_to_guard(loop, connection)
        switched, rejected = ([], []) if left_to_guard else loop.release_without_transition()
        if switched:
            log.warning("handed back at once, without a safe transition: %s", ", ".join(switched))
        if rejected:
            log.error("SUMO rejected the release of %s; they keep their last state", ", ".join(rejected))
        elif not left_to_guard:
            log.info("released all signals at second %g", loop.now)
    loop.finish()
    return not rejected


def release_at_once(loop: DecisionLoop, connection: ReleaseConnection, stop: Stop) -> None:
    """Hand the signals back without further steps, after an error in this process."""
    try:
        release(loop, connection, loop.now, stop)
    except WaitAborted:
        abandon(loop, connection)
    except SumoConnectionLost as error:
        log_connection_lost(loop, connection, error)


def log_connection_lost(loop: DecisionLoop, connection: ReleaseConnection, error: SumoConnectionLost) -> None:
    """Log that the connection ended before the signals were released."""
    log.error(
        "the connection to SUMO was lost at second %g of the simulation: %s; %s",
        loop.now,
        error,
        "SUMO has ended, or the guard hands the signals back"
        if connection.is_guarded
        else "the signals cannot be released any more",
    )


def abandon(loop: DecisionLoop, connection: ReleaseConnection) -> None:
    """Request the release without waiting, after a second stop request while SUMO has not answered."""
    if _left_to_guard(loop, connection):
        return
    unreleased = loop.unreleased()
    log.error(
        "SUMO has not answered and a second stop request arrived: requested the release of %s, without a safe "
        "transition",
        ", ".join(signal for signal, _ in unreleased),
    )
    connection.abandon(unreleased)


def _left_to_guard(loop: DecisionLoop, connection: ReleaseConnection) -> bool:
    """True if unreleased signals remain that a guard hands back when the connection closes."""
    unreleased = [signal for signal, _ in loop.unreleased()]
    if unreleased and connection.is_guarded:
        log.warning("left to the guard to hand back: %s", ", ".join(unreleased))
    return bool(unreleased) and connection.is_guarded
