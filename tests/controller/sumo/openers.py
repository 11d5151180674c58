"""The ways to connect to the real SUMO."""

from controller.guard.start import open_guarded
from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from tests.conftest import GRID

OPTIONS = ["-c", str(GRID / "grid.sumocfg"), "--seed", "3", "--no-step-log", "true", "--no-warnings", "true"]
OPTIONS += ["--time-to-teleport", "20"]


def over_socket(options):
    return start.connect(SumoAccess(arguments=options), Interrupts())


def over_guard(options):
    return open_guarded(SumoAccess(arguments=options), 60.0, Interrupts())


OPENERS = (over_socket, over_guard, start_libsumo)
