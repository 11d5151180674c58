"""Programs that no policy can be exported for: export, check and the controller's start name them."""

import re

import pytest

from city import config, network
from city.errors import InputError
from signals import contract
from tests.networks import netgenerate

GRID = ("--grid", "--grid.number", "2", "--grid.attach-length", "100", "--no-turnarounds")
NEMA = (*GRID, "--tls.layout", "opposites", "--tls.default-type", "NEMA", "--turn-lanes", "1")


def build(net_file, dialect="sumo-rl", **settings):
    street = network.read(net_file)
    return contract.build(config.City(net_file), config.TL(("A0",), dialect, "SA101", **settings), street)


def changed(net_file, program):
    """The network with another first program of signal A0. `program`: its phases."""
    phases = "".join(f'<phase duration="10" state="{state}"/>' for state in program)
    text = re.sub(
        r'(<tlLogic id="A0"[^>]*>).*?(</tlLogic>)', rf"\1{phases}\2", net_file.read_text(), count=1, flags=re.DOTALL
    )
    net_file.write_text(text)
    return net_file


def test_nema_program_is_refused_for_sappo(tmp_path):
    net_file = netgenerate(tmp_path / "a.net.xml", *NEMA)
    for action in ("gr", "gro", "offset", "kc"):
        with pytest.raises(InputError, match=r"SA101: program .0. of signal A0 has type NEMA, which does not run its"):
            build(net_file, "sappo", state="d", action=action)
    assert build(net_file).action.size > 1, "sumo-rl chooses among its greens"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        pytest.param(
            lambda states: ["g" * len(states[0]), "Y" * len(states[0])],
            r"SA101: signal A0: phase 'Y+' .* write y for Y",
            id="capital Y",
        ),
        pytest.param(
            lambda states: ["o" * len(states[0])], r"phase 'o+' .* is not a state .* a colour for o", id="only off"
        ),
    ],
)
def test_program_that_is_never_shown_is_refused_with_its_remedy(tmp_path, program, message):
    net_file = netgenerate(tmp_path / "a.net.xml", *GRID)
    states = [phase.state for phase in network.read(net_file).signals["A0"].plan.phases]
    with pytest.raises(InputError, match=message):
        build(changed(net_file, program(states)))
