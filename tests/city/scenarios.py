"""The sample city's street network, and those of real scenarios."""

from city import network
from tests.conftest import GRID

SCENARIOS = ("cologne1", "cologne8", "ingolstadt7")


def street(name, request):
    if name == "grid":
        return network.of_sumocfg(GRID / "grid.sumocfg")
    return network.of_sumocfg(request.getfixturevalue("shared") / "scenarios" / name / f"{name}.sumocfg")
