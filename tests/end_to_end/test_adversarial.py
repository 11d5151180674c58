"""Adversarial policies on real streets in SUMO: no collision and no alarm, max red included."""

import re

import pytest

from city import config, network
from controller.assembly import ControlledTls, assemble
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from signals import contract
from tests.conftest import GRID
from tests.controller.decision_events import Alarms
from tests.end_to_end.generated_streets import AdversarialPolicies

SAFETY = config.Safety(max_red_s=120)


def contracts_of(street):
    city = config.City(street.net_file)
    return [
        contract.build(city, config.TL((signal.id,), "sumo-rl", f"TL{k}", yellow_s=2.0, min_green_s=5.0), street)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    ]


KINDS = ("random", "constant", "flipping", "nonsense", "intermittent", "max-pressure")


# longer for the kind whose requested states change most
@pytest.mark.parametrize(
    ("kind", "seconds"), [*((kind, 400) for kind in KINDS), pytest.param("random", 1800, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["grid", "cologne1", "cologne8", "ingolstadt7"])
def test_no_collision_and_no_alarm_under_adversarial_policies(name, kind, seconds, request, tmp_path):
    path = (
        GRID / "grid.sumocfg"
        if name == "grid"
        else request.getfixturevalue("shared") / f"scenarios/{name}/{name}.sumocfg"
    )
    street = network.of_sumocfg(path)
    contracts = contracts_of(street)
    collisions = tmp_path / "collisions.xml"
    options = [
        "-c",
        str(path),
        "--no-step-log",
        "true",
        "--no-warnings",
        "true",
        "--seed",
        "5",
        "--time-to-teleport",
        "-1",
    ]
    # without --collision.check-junctions: it also reports overlaps of merging cars under the scenarios' own plans
    checks = ["--collision.action", "warn", "--collision-output", str(collisions)]
    connection = connect(SumoAccess(arguments=[*options, *checks]), Interrupts())
    try:
        alarms = Alarms()
        control = config.Controller(hold_s=10, fallback="max-pressure" if kind == "max-pressure" else "plan")
        policies = AdversarialPolicies(kind, contracts)
        loop = assemble(connection, ControlledTls(street, contracts, SAFETY, control), policies, [alarms])
        end_s = loop.now + seconds
        while loop.now < end_s:
            loop.step(end_s)
        loop.release(loop.now + 60)
        loop.finish()
        assert all(x.is_released for x in loop.intersections.values())
    finally:
        connection.close()
    assert alarms == []
    assert loop.counters.rejections == 0
    assert re.findall(r"<collision .*", collisions.read_text()) == []
    if kind in ("nonsense", "intermittent", "max-pressure"):
        assert loop.counters.fallbacks > 0
