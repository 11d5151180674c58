"""The network's own programs beside control: its schedule (WAUT) is followed, and a signal that was off is off
again."""

import pytest

from city import network
from city.network import OFF
from controller.__main__ import main as control
from tests.conftest import GRID
from tests.end_to_end.generated_streets import LongestQueue, generate, run
from tests.end_to_end.programs import connect, program, sumo
from tests.end_to_end.signal_history import step_until
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
    return street.__class__(street.net_file, street.routes, (path,))


@pytest.mark.parametrize(
    "schedule",
    [
        '<WAUT id="w" startProg="rush"><wautSwitch time="0:01:40" to="0"/><wautSwitch time="200" to="rush"/></WAUT>',
        '<WAUT id="w" startProg="off"><wautSwitch time="250" to="rush"/></WAUT>',
        *(
            pytest.param(f'<WAUT id="w" {schedule}</WAUT>', marks=pytest.mark.slow)
            for schedule in (
                'startProg="0"><wautSwitch time="200" to="rush"/>',
                'refTime="60" startProg="rush"><wautSwitch time="30" to="0"/><wautSwitch time="5000" to="rush"/>',
                'period="110" startProg="0"><wautSwitch time="40" to="rush"/><wautSwitch time="90" to="0"/>',
                'startProg="0"><wautSwitch time="250" to="off"/>',
                'startProg="off"><wautSwitch time="0" to="rush"/><wautSwitch time="299" to="0"/>',
            )
        ),
    ],
)
def test_released_signal_runs_the_program_that_its_schedule_has_then(street, tmp_path, schedule):
    street = with_additional(street, tmp_path, SECOND_PROGRAM + schedule + '<wautJunction wautID="w" junctionID="A0"/>')
    uncontrolled = run(street, 360)
    controlled = run(street, 360, LongestQueue)
    assert controlled.alarms == [] and controlled.is_released and controlled.decisions > 50
    assert controlled.programs == uncontrolled.programs and controlled.collisions == 0


@pytest.mark.parametrize(
    "content",
    [
        '<tlLogic id="A0" type="static" programID="off"/>',
        '<tlLogic id="A0" type="static" programID="night" offset="0"><phase duration="30" state="{links}"/></tlLogic>',
        '<tlLogic id="A0" type="static" programID="+night" offset="0"><phase duration="30" state="{links}"/></tlLogic>',
    ],
    ids=["off", "blinking", "blinking, first of the programs"],
)
def test_signal_that_is_off_is_controlled_and_off_again_after_its_release(street, tmp_path, content):
    street = with_additional(street, tmp_path, content)
    uncontrolled = run(street, 300)
    controlled = run(street, 300, LongestQueue)
    assert controlled.alarms == [] and controlled.is_released and controlled.decisions > 40
    assert controlled.programs == uncontrolled.programs and controlled.programs["A0"] != "0"
    assert controlled.collisions == 0


def test_network_with_all_signals_off_is_controlled_and_off_again(street):
    street = street.__class__(street.net_file, street.routes, options=("--tls.all-off", "true"))
    controlled = run(street, 300, LongestQueue)
    assert controlled.alarms == [] and controlled.is_released and controlled.programs == {"A0": OFF}


def scheduled(folder, switches):
    """The path of a city.toml of the sample city in which A0 follows a schedule."""
    waut = f'<WAUT id="w" startProg="adapted">{switches}</WAUT><wautJunction wautID="w" junctionID="A0"/>'
    (folder / "schedule.add.xml").write_text(f"<additional>{waut}</additional>")
    return copy_city(folder, "schedule.add.xml")


def test_guard_hands_back_onto_the_program_that_the_schedule_has_then(grid_server, tmp_path):
    city = scheduled(tmp_path, '<wautSwitch time="100" to="0"/>')
    sumo_options = ("--additional-files", f"{GRID / 'fixed_time.add.xml'},{tmp_path / 'schedule.add.xml'}")
    with (
        sumo(2, *sumo_options) as (port, _),
        program(
            "controller", "--city", city, "--sumo", f"127.0.0.1:{port}", "--order", "2", "--infer-tl", "SA101,SA102",
            "--server", grid_server,
        ) as process,
    ):  # fmt: skip
        client, history = connect(port, 1), []
        step_until(client, 150, history)
        assert {client.trafficlight.getProgram(s) for s in ("A0", "A1")} == {"online"}
        process.kill()
        step_until(client, 200, history)
        assert [client.trafficlight.getProgram(s) for s in ("A0", "A1", "B0")] == ["0", "adapted", "adapted"]
        client.close()


def test_schedule_of_a_program_that_sumo_has_not_is_refused(tmp_path, capsys):
    city = scheduled(tmp_path, '<wautSwitch time="100" to="rush"/>')
    with sumo(1) as (port, _):
        flags = ["--sumo", f"127.0.0.1:{port}", "--no-guard", "--policy", "max-pressure"]
        assert control(["--city", city, *flags]) == 2
    assert_refused(capsys, "signal A0: its schedule (WAUT) switches to program 'rush', but SUMO has only")
