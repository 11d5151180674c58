"""Adversarial policies on real streets in SUMO: no collision and no alarm, max red included."""

import contextlib
import re

import pytest

from city import config
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from signals import contract
from tests.city.scenarios import SCENARIOS, street
from tests.controller.decision_events import Alarms
from tests.end_to_end.controlled_city import ControlledCity
from tests.end_to_end.generated_streets import AdversarialPolicies


def contracts_of(street):
    city = config.City(street.net_file)
    return [
        contract.build(city, config.TL((signal.id,), "sumo-rl", f"TL{k}", yellow_s=2.0, min_green_s=5.0), street)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    ]


DAILY = ("random", "intermittent")
"""Kinds that are tried on every street in every run; all of them are on the sample city."""
KINDS = (*DAILY, "constant", "flipping", "nonsense", "max-pressure")
CASES = [
    *(("grid", kind, 300) for kind in KINDS),
    *((name, kind, 300) for name in SCENARIOS for kind in DAILY),
    *(pytest.param(name, kind, 400, marks=pytest.mark.slow) for name in SCENARIOS for kind in KINDS[2:]),
    # longer for the kind whose requested states change most
    *(pytest.param(name, "random", 1800, marks=pytest.mark.slow) for name in ("grid", *SCENARIOS)),
]


@pytest.mark.parametrize(("name", "kind", "seconds"), CASES)
def test_no_collision_and_no_alarm_under_adversarial_policies(name, kind, seconds, request, tmp_path):
    ours, collisions = street(name, request), tmp_path / "collisions.xml"
    contracts = contracts_of(ours)
    options = ["-c", str(ours.net_file).replace(".net.xml", ".sumocfg"), "--seed", "5", "--time-to-teleport", "-1"]
    options += ["--no-step-log", "true", "--no-warnings", "true"]
    # without --collision.check-junctions: it also reports overlaps of merging cars under the scenarios' own plans
    options += ["--collision.action", "warn", "--collision-output", str(collisions)]
    control = config.Controller(hold_s=10, fallback="max-pressure" if kind == "max-pressure" else "plan")
    city, alarms = config.City(ours.net_file, safety=config.Safety(max_red_s=120), controller=control), Alarms()
    with contextlib.closing(connect(SumoAccess(arguments=options), Interrupts())) as connection:
        controlled = ControlledCity(connection, city, ours, contracts, AdversarialPolicies(kind, contracts), [alarms])
        controlled.advance(seconds)
        loop = controlled.loop
        loop.release(loop.now + 60)
        loop.finish()
        assert all(x.is_released for x in loop.intersections.values())
    assert alarms == [] and loop.counters.rejections == 0
    assert re.findall(r"<collision .*", collisions.read_text()) == []
    assert loop.counters.fallbacks > 0 or kind not in ("nonsense", "intermittent", "max-pressure")
