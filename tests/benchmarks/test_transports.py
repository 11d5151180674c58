"""A compared case runs over the transport that it is called after, or fails."""

import os

import pytest

from benchmarks import control_cases, sumo_rl_loop
from benchmarks.turns import Command, take_turns
from tests.conftest import GRID, ROOT

SUMOCFG = GRID / "grid.sumocfg"
SECONDS = 20
FAKE_SUMO_RL = """
import os
import sumo
import traci

class Space:
    n = 2

class SumoEnvironment:
    def __init__(self, net_file, route_file, begin_time, **settings):
        program = os.path.join(sumo.SUMO_HOME, "bin", "sumo")
        self._arguments = [program, "-n", net_file, "-r", route_file, "-b", str(begin_time), "--no-step-log"]

    def reset(self):
        traci.start(self._arguments)
        self.ts_ids = ["A0"]

    def action_spaces(self, ts):
        return Space

    def step(self, actions):
        traci.simulationStep(traci.simulation.getTime() + 5)

    def close(self):
        traci.close()
"""


@pytest.fixture
def fake_sumo_rl(tmp_path, monkeypatch):
    """A sumo_rl package that imports and uses traci as the real one does."""
    (tmp_path / "sumo_rl").mkdir()
    (tmp_path / "sumo_rl" / "__init__.py").write_text(FAKE_SUMO_RL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.delenv(sumo_rl_loop.LIBSUMO_VARIABLE, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("transport", sumo_rl_loop.TRANSPORTS)
def test_sumo_rl_runs_over_the_transport_of_its_case(fake_sumo_rl, monkeypatch, transport):
    # whatever the caller's own environment is
    monkeypatch.setenv(sumo_rl_loop.LIBSUMO_VARIABLE, "1")
    took = take_turns({transport: sumo_rl_loop.command(SUMOCFG, SECONDS, transport)}, [SECONDS])
    assert len(took[transport]) == 1


@pytest.mark.parametrize(("transport", "variable"), [("libsumo", None), ("traci", "1")])
def test_sumo_rl_over_another_transport_is_an_error(fake_sumo_rl, transport, variable):
    wrong = Command(
        sumo_rl_loop.command(SUMOCFG, SECONDS, transport).arguments, {sumo_rl_loop.LIBSUMO_VARIABLE: variable}
    )
    with pytest.raises(RuntimeError, match=f"the case over {transport} would run over"):
        take_turns({"wrong": wrong}, [SECONDS])


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["traci", "guard", "libsumo"])
def test_the_controller_runs_over_the_transport_of_its_case(transport):
    arguments = ("controlled", str(SUMOCFG), str(SECONDS), transport, "", "", "sumo-rl")
    command = Command(("-m", "benchmarks.control_loop", "--case", *arguments))
    assert len(take_turns({transport: command}, [SECONDS])[transport]) == 1


@pytest.mark.parametrize(("opened", "named"), [("libsumo", "traci"), ("traci", "guard"), ("traci", "libsumo")])
def test_a_link_of_another_transport_is_an_error(opened, named):
    connection = control_cases.open_connection(opened, SUMOCFG)
    try:
        with pytest.raises(RuntimeError, match=f"the case over {named} has a"):
            control_cases.check_connection(connection, named)
    finally:
        connection.close()
