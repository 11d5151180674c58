"""Giving the signals back: safely where there is time and an answer, else as well as can be."""

import logging
import signal

from controller.decision_step import DecisionSteps
from controller.sumo.link import Link, NotWaiting, SumoGone

log = logging.getLogger("controller")

RELEASE_ROOM_S = 30.0
"""Simulated seconds that a safe release may take beyond min green, yellow and clearance."""


class Stop:
    """Set by signals: the first asks for a release, the second for an end at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.controlling = False
        """Whether signals are under control, so that an end must release them first."""

    def listen(self) -> None:
        # a terminal that closes is an end like any other
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked += 1
        if not self.controlling:
            raise KeyboardInterrupt

    def __call__(self) -> bool:
        return self.asked > 0

    def hurried(self) -> bool:
        return self.asked > 1


def release(steps: DecisionSteps, link: Link, end_s: float, stop: Stop) -> bool:
    """Back to the signals' own programs: safely where there is time, else at once. Whether all are."""
    before = stop.asked
    limit = min(end_s, steps.now + steps.clearing_s + RELEASE_ROOM_S)
    try:
        steps.release(limit, lambda: stop.asked > before)
    finally:
        is_left = _left_to_guard(steps, link)
        done, refused = ([], []) if is_left else steps.switch_back()
        if done:
            log.warning("handed back at once, without a safe transition: %s", ", ".join(done))
        if refused:
            log.error("SUMO refused to take back %s; they stay as they are", ", ".join(refused))
        elif not is_left:
            log.info("released all signals at second %g", steps.now)
    steps.watch()
    return not refused


def release_at_once(steps: DecisionSteps, link: Link, stop: Stop) -> None:
    """Where something is wrong here, so that no more steps are taken."""
    try:
        release(steps, link, steps.now, stop)
    except NotWaiting:
        abandon(steps, link)
    except SumoGone as error:
        tell_gone(steps, link, error)


def tell_gone(steps: DecisionSteps, link: Link, error: SumoGone) -> None:
    """The connection has ended before the signals were released."""
    words = "SUMO has ended, or the guard hands the signals back" if link.guarded else "its signals cannot be released any more"
    where = "the connection to SUMO" if link.guarded else "SUMO"
    log.error("%s is gone at second %g of the simulation: %s; %s", where, steps.now, error, words)


def abandon(steps: DecisionSteps, link: Link) -> None:
    """Where SUMO has not answered, and who stops the controller does not want to wait."""
    if _left_to_guard(steps, link):
        return
    left = steps.unreleased()
    log.error(
        "SUMO has not answered and a second signal came: asked it to hand back %s, without a safe transition",
        ", ".join(signal for signal, _ in left),
    )
    link.abandon(left)


def _left_to_guard(steps: DecisionSteps, link: Link) -> bool:
    """Whether signals are not released, and a guard will see to them when the link closes."""
    left = [signal for signal, _ in steps.unreleased()]
    if left and link.guarded:
        log.warning("left to the guard to hand back: %s", ", ".join(left))
    return bool(left) and link.guarded
