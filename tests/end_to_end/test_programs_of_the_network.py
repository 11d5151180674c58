"""The network's own programs beside control: its schedule (WAUT) is followed, and a signal that was off is off
again."""

from dataclasses import replace

import pytest

from city import network
from city.network import OFF
from controller.__main__ import main as control
from tests.conftest import GRID
from tests.end_to_end.generated_streets import LongestQueue, generate, run
from tests.end_to_end.programs import sumo
from tests.end_to_end.trainer import beside_another_client
from tests.error_lines import assert_refused
from tests.sample_city import copy_city

ONE = ("--grid", "--grid.number", "1", "--grid.attach-length", "200")
SECOND_PROGRAM = '<tlLogic id="A0" programID="rush" type="static" offset="7">{phases}</tlLogic>'


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("street"), *ONE, cars_per_second=0.02)


def with_additional(street, folder, content):
    """The street with an additional file; `{phases}` stands for the phases of the network's program, five seconds
    longer."""
    plan = network.read(street.net_file).signals["A0"].plan
    phases = "".join(f'<phase duration="{phase.duration_s + 5:g}" state="{phase.state}"/>' for phase in plan.phases)
    links = len(plan.phases[0].state)
    path = folder / "programs.add.xml"
    path.write_text(f"<additional>{content.replace('{phases}', phases).replace('{links}', 'o' * links)}</additional>")
    return replace(street, additional=(path,))


OFF_PROGRAM = '<tlLogic id="A0" type="static" programID="off"/>'
BLINKING = '<tlLogic id="A0" type="static" programID="{id}" offset="0"><phase duration="30" state="{links}"/></tlLogic>'


def schedule(attributes):
    return f'{SECOND_PROGRAM}<WAUT id="w" {attributes}</WAUT><wautJunction wautID="w" junctionID="A0"/>'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(OFF_PROGRAM, id="off"),
        pytest.param(BLINKING.replace("{id}", "night"), id="blinking"),
        pytest.param(BLINKING.replace("{id}", "+night"), id="blinking, first of the programs"),
        schedule('startProg="rush"><wautSwitch time="0:01:40" to="0"/><wautSwitch time="200" to="rush"/>'),
        schedule('startProg="off"><wautSwitch time="250" to="rush"/>'),
        *(
            pytest.param(schedule(attributes), marks=pytest.mark.slow)
            for attributes in (
                'startProg="0"><wautSwitch time="200" to="rush"/>',
                'refTime="60" startProg="rush"><wautSwitch time="30" to="0"/><wautSwitch time="5000" to="rush"/>',
                'period="110" startProg="0"><wautSwitch time="40" to="rush"/><wautSwitch time="90" to="0"/>',
                'startProg="0"><wautSwitch time="250" to="off"/>',
                'startProg="off"><wautSwitch time="0" to="rush"/><wautSwitch time="299" to="0"/>',
            )
        ),
    ],
)
def test_released_signal_runs_the_program_that_the_network_has_then(street, tmp_path, content):
    street = with_additional(street, tmp_path, content)
    uncontrolled = run(street, 360)
    controlled = run(street, 360, LongestQueue)
    assert controlled.alarms == [] and controlled.is_released and controlled.decisions > 50
    assert controlled.programs == uncontrolled.programs and controlled.collisions == 0
    assert content != OFF_PROGRAM or controlled.programs == {"A0": OFF}


def test_network_with_all_signals_off_is_controlled_and_off_again(street):
    controlled = run(replace(street, options=("--tls.all-off", "true")), 300, LongestQueue)
    assert controlled.alarms == [] and controlled.is_released and controlled.programs == {"A0": OFF}


def scheduled(folder, switches):
    """The path of a city.toml of the sample city in which A0 follows a schedule."""
    waut = f'<WAUT id="w" startProg="adapted">{switches}</WAUT><wautJunction wautID="w" junctionID="A0"/>'
    (folder / "schedule.add.xml").write_text(f"<additional>{waut}</additional>")
    return copy_city(folder, "schedule.add.xml")


def test_guard_hands_back_onto_the_program_that_the_schedule_has_then(tmp_path):
    city = scheduled(tmp_path, '<wautSwitch time="100" to="0"/>')
    sumo_options = ("--additional-files", f"{GRID / 'fixed_time.add.xml'},{tmp_path / 'schedule.add.xml'}")
    flags = ("--city", city, "--infer-tl", "SA101,SA102")
    with beside_another_client(*flags, sumo_flags=sumo_options) as (trainer, process):
        trainer.step(110)
        assert trainer.online() == {"A0", "A1"}
        process.kill()
        trainer.step(50)
        assert [trainer.programs[-1][s] for s in ("A0", "A1", "B0")] == ["0", "adapted", "adapted"]


def test_schedule_of_a_program_that_sumo_has_not_is_refused(tmp_path, capsys):
    city = scheduled(tmp_path, '<wautSwitch time="100" to="rush"/>')
    with sumo(1) as (port, _):
        flags = ["--sumo", f"127.0.0.1:{port}", "--no-guard", "--policy", "max-pressure"]
        assert control(["--city", city, *flags]) == 2
    assert_refused(capsys, "signal A0: its schedule (WAUT) switches to program 'rush', but SUMO has only")
