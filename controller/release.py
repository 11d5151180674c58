"""Handing the signals back: through a safe transition if there is time and SUMO answers, else as well as possible."""

import logging
import signal

from controller.decision_step import DecisionSteps
from controller.sumo.link import Interrupts, Link, SumoConnectionLost, WaitAborted

log = logging.getLogger("controller")

RELEASE_MARGIN_S = 30.0
"""Simulated seconds that a safe release may take beyond min green, yellow and clearance."""


class Stop:
    """Counts the signals that ask the controller to stop.

    The first asks for a release, the second to stop at once, the third not even to
    wait for SUMO.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_controlling = False
        """Whether signals are under control, so that they must be released first."""

    def install_handlers(self) -> None:
        # a terminal that closes (SIGHUP) is a stop like any other
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, *_: object) -> None:
        self.count += 1
        if not self.is_controlling:
            raise KeyboardInterrupt

    def is_requested(self) -> bool:
        return self.count > 0

    def interrupts(self) -> Interrupts:
        return Interrupts(abort_requested=lambda: self.count > 1, quit_requested=lambda: self.count > 2)


def release(steps: DecisionSteps, link: Link, end_s: float, stop: Stop) -> bool:
    """Hand the signals back to their own programs: safely if there is time, else at once. Whether all are released."""
    before = stop.count
    limit_s = min(end_s, steps.now + steps.clearing_s + RELEASE_MARGIN_S)
    try:
        steps.release(limit_s, lambda: stop.count > before)
    finally:
        left_to_guard = _left_to_guard(steps, link)
        switched, rejected = ([], []) if left_to_guard else steps.switch_back()
        if switched:
            log.warning("handed back at once, without a safe transition: %s", ", ".join(switched))
        if rejected:
            log.error("SUMO rejected the handover of %s; they stay as they are", ", ".join(rejected))
        elif not left_to_guard:
            log.info("released all signals at second %g", steps.now)
    steps.feed_monitors()
    return not rejected


def release_at_once(steps: DecisionSteps, link: Link, stop: Stop) -> None:
    """Hand the signals back without further steps, because something is wrong in this process."""
    try:
        release(steps, link, steps.now, stop)
    except WaitAborted:
        abandon(steps, link)
    except SumoConnectionLost as error:
        log_connection_lost(steps, link, error)


def log_connection_lost(steps: DecisionSteps, link: Link, error: SumoConnectionLost) -> None:
    """Report that the connection ended before the signals were released."""
    if link.is_guarded:
        consequence = "SUMO has ended, or the guard hands the signals back"
    else:
        consequence = "the signals cannot be released any more"
    subject = "the connection to SUMO" if link.is_guarded else "SUMO"
    log.error("%s is gone at second %g of the simulation: %s; %s", subject, steps.now, error, consequence)


def abandon(steps: DecisionSteps, link: Link) -> None:
    """Request the handover without waiting: SUMO has not answered, and the operator has asked twice to stop."""
    if _left_to_guard(steps, link):
        return
    unreleased = steps.unreleased()
    log.error(
        "SUMO has not answered and a second signal came: requested the handover of %s, without a safe transition",
        ", ".join(signal for signal, _ in unreleased),
    )
    link.abandon(unreleased)


def _left_to_guard(steps: DecisionSteps, link: Link) -> bool:
    """Whether signals are not released, and a guard will hand them back when the link closes."""
    unreleased = [signal for signal, _ in steps.unreleased()]
    if unreleased and link.is_guarded:
        log.warning("left to the guard to hand back: %s", ", ".join(unreleased))
    return bool(unreleased) and link.is_guarded
