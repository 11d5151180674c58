"""The sample city under control in this process."""

from controller.assembly import ControlledTls, assemble
from signals.fallback.control_mode import ControlMode
from tests.conftest import GRID

OPTIONS = ["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "true", "--no-warnings", "true"]
"""Arguments of its SUMO."""


class ControlledCity:
    """TLs of the sample city, controlled over a connection."""

    def __init__(self, connection, city, street, contracts, policies, subscribers=()):
        tls = ControlledTls(street, contracts, city.safety, city.controller)
        self.connection = connection
        self.loop = assemble(connection, tls, policies, subscribers)

    def advance(self, seconds):
        end_s = self.loop.now + seconds
        while self.loop.now < end_s:
            self.loop.step(end_s)

    @property
    def modes(self):
        return {x.mode for x in self.loop.intersections.values()}

    def is_on_policies(self):
        return self.modes == {ControlMode.POLICY}

    def frequent_deciders(self):
        """TLs that decide every few seconds; one that decides every other cycle is asked again once it is on its
        plan."""
        return [x for x in self.loop.intersections.values() if x.contract.action.kind in ("categorical", "kc")]
