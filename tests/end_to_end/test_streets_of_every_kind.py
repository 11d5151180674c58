"""Ten minutes of control on networks of every kind, beside ten minutes of their fixed plans."""

from dataclasses import replace

import pytest

from city import config, network
from export import pretrained
from pretraining.junction_policies import JunctionPolicies
from tests.end_to_end import handmade_streets
from tests.end_to_end.generated_streets import AdversarialPolicies, LongestQueue, generate, run

SECONDS = 600
SIZES = ["--grid.number", "2", "--grid.length", "150", "--grid.attach-length", "150", "--default.lanenumber", "2"]
GRID = ["--grid", *SIZES]
RANDOM = ["--rand", "--rand.iterations", "25", "--rand.grid", "--seed", "5"]
SPIDER = ["--spider", "--spider.arm-number", "5", "--spider.circle-number", "2", "--spider.attach-length", "100"]
JOINED = ["--junctions.join", "--junctions.join-dist", "60", "--tls.join", "--tls.join-dist", "80"]
GENERATED = {
    "crossroads": GRID,
    "left-hand": (*GRID, "--lefthand"),
    "100 km/h": (*GRID, "--default.speed", "27.78"),
    "three arms and more": SPIDER,
    "joined junctions": (*RANDOM, *JOINED),
    "pedestrian crossings": (*GRID, "--sidewalks.guess", "--crossings.guess"),
    "bicycle lanes": (*GRID, "--bikelanes.guess", "--sidewalks.guess", "--crossings.guess"),
    "right on red": (*GRID, "--default-junction-type", "traffic_light_right_on_red"),
    "turn lanes": (*GRID, "--turn-lanes", "1"),
    "no internal links": (*GRID, "--no-internal-links"),
    "a phase per approach": (*GRID, "--tls.layout", "incoming"),
    "actuated": (*GRID, "--tls.default-type", "actuated"),
    "delay-based": (*GRID, "--tls.default-type", "delay_based"),
    "NEMA": (*GRID, "--tls.layout", "opposites", "--tls.default-type", "NEMA", "--turn-lanes", "1"),
}
WITH_WALKERS = {name for name, options in GENERATED.items() if "--crossings.guess" in options}
HANDMADE = {
    "rail crossing beside": handmade_streets.beside_a_rail_crossing,
    "public-transport lanes": handmade_streets.with_bus_lanes,
    "bicycles": handmade_streets.with_bicycles,
    "ramp meter": handmade_streets.with_a_ramp_meter,
}
TIMES = {
    "0.1 s": (0.1, 0.0),
    "0.25 s": (0.25, 0.0),
    "0.5 s from 1234.5 s": (0.5, 1234.5),
    "0.1 s from 0.3 s": (0.1, 0.3),
}


def street_of(name, folder):
    if name in HANDMADE:
        return HANDMADE[name](folder)
    if name in TIMES:
        step_s, begin_s = TIMES[name]
        return replace(generate(folder, *GRID, cars_per_second=0.012), step_s=step_s, begin_s=begin_s)
    if name == "two programs":
        street = generate(folder, *GRID, cars_per_second=0.012)
        plan = network.read(street.net_file).signals["A0"].plan
        phases = "".join(f'<phase duration="{phase.duration_s + 5:g}" state="{phase.state}"/>' for phase in plan.phases)
        additional = folder / "second.add.xml"
        program = f'<tlLogic id="A0" programID="second" type="actuated" offset="3">{phases}</tlLogic>'
        additional.write_text(f"<additional>{program}</additional>")
        return replace(street, additional=(additional,))
    return generate(folder, *GENERATED[name], cars_per_second=0.012, walkers=name in WITH_WALKERS)


@pytest.mark.parametrize("name", [*GENERATED, *HANDMADE, "two programs", *TIMES])
@pytest.mark.slow
def test_control_is_as_safe_as_the_fixed_plan_and_moves_as_many_vehicles(name, tmp_path):
    street = street_of(name, tmp_path)
    seconds = SECONDS / 2 if name in TIMES else SECONDS  # several steps each
    fixed = run(street, seconds)

    def checked(policies, *options, dialect="sumo-rl"):
        controlled = run(street, seconds, policies, *options, dialect=dialect)
        assert controlled.alarms == [] and controlled.is_released and controlled.decisions > 50
        assert controlled.programs == fixed.programs
        for count in ("collisions", "emergency_stops", "emergency_braking"):
            assert getattr(controlled, count) <= getattr(fixed, count), count
        return controlled

    # it may starve a lane for the 300 s after which SUMO teleports
    checked(lambda _, contracts: AdversarialPolicies("random", contracts))
    longest_queue = checked(LongestQueue)
    # the phases of a NEMA program are single movements, which sumo-rl shows one by one
    assert longest_queue.arrived >= (0.7 if name == "NEMA" else 0.9) * fixed.arrived > 0
    safety = config.Safety(max_red_s=config.STREET_MAX_RED_S)
    shipped = checked(lambda _, own: JunctionPolicies(own, pretrained.policy()), safety, dialect="street")
    # where the last vehicles are when a short run ends is chance
    assert shipped.arrived >= (0.9 if name in TIMES else 0.95) * fixed.arrived
    assert longest_queue.teleports <= fixed.teleports and shipped.teleports <= fixed.teleports
