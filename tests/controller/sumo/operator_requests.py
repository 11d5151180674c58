"""Requests of an operator while the controller waits for SUMO."""

from controller.sumo.connection import Interrupts


class Requests:
    """An operator who requests an abort, or to quit after some checks; counts the checks."""

    def __init__(self, aborts=False, quits_after=0):
        self.aborts, self.quits_after, self.checks = aborts, quits_after, 0

    def quit_requested(self):
        self.checks += 1
        return 0 < self.quits_after <= self.checks

    def interrupts(self):
        return Interrupts(lambda: self.aborts, self.quit_requested)
