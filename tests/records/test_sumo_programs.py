"""SUMO alone shows the recorded lights, so that every trip is the same."""

import shutil
import subprocess
import xml.etree.ElementTree as ET

from city import config
from controller.sumo.programs import sumo_program
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from records import sumo_programs
from records.export import main as export
from records.recorded_run import RecordedRun
from serving.errors import DeadlineExceeded
from tests.conftest import GRID
from tests.records.replayed_city import record_run
from tests.records.update import path

END_S = 550
OPTIONS = ("--seed", "7", "--end", str(END_S), *TRIPINFO_OPTIONS)


def some_are_released(tl, request):
    """No answers of three TLs for so long that their signals run their own programs."""
    return DeadlineExceeded("late") if tl in ("SA101", "SA105", "SA108") and 6 <= request <= 25 else None


def city_with_evenings(folder, schedules=()):
    """The sample city from second 60 on, with a second program of three signals. `schedules`: (signal, (second,
    program)...)."""
    for name in ("grid.net.xml", "demand.rou.xml", "fixed_time.add.xml", "city.toml", "grid.sumocfg"):
        shutil.copy(GRID / name, folder / name)
    more = ET.Element("additional")
    for program in ET.parse(folder / "fixed_time.add.xml").getroot():
        if program.get("id") in ("A0", "B1", "C1"):
            program.set("programID", "evening")
            program.set("offset", "7")
            for phase in program:
                phase.set(
                    "duration", str(float(phase.get("duration")) + (6 if float(phase.get("duration")) > 5 else 0))
                )
            more.append(program)
    for signal, *switches in schedules:
        waut = ET.SubElement(more, "WAUT", id=f"of-{signal}", refTime="0", startProg="adapted")
        for at_s, program in switches:
            ET.SubElement(waut, "wautSwitch", time=str(at_s), to=program)
        ET.SubElement(more, "wautJunction", wautID=f"of-{signal}", junctionID=signal)
    ET.ElementTree(more).write(folder / "more.add.xml")
    configuration = folder / "grid.sumocfg"
    text = configuration.read_text().replace('fixed_time.add.xml"', 'fixed_time.add.xml,more.add.xml"')
    configuration.write_text(text.replace('begin value="0"', 'begin value="60"'))
    return config.load(folder / "city.toml")


def trips_alone(folder):
    additional = ",".join(str(folder / name) for name in ("fixed_time.add.xml", "more.add.xml", "lights.add.xml"))
    command = [sumo_program(), "-c", str(folder / "grid.sumocfg"), "-a", additional, *OPTIONS]
    command += ["--no-step-log", "--no-warnings", "--tripinfo-output", str(folder / "alone.xml")]
    subprocess.run(command, check=True, timeout=120)
    return trips(folder / "alone.xml")


def trips(file):
    return {trip.get("id"): dict(trip.attrib) for trip in ET.parse(file).getroot()}


def recorded(folder, city, **arguments):
    """Record a run, and write its lights: (the trips under control, lines about the lights)."""
    options = (*OPTIONS, "--tripinfo-output", str(folder / "controlled.xml"))
    record_run(folder / "run.mcap", city, 400, *options, fails=some_are_released, idle_to_s=END_S, **arguments)
    run = RecordedRun([folder / "run.mcap"])
    notes = sumo_programs.write(folder / "lights.add.xml", run.start, run.steps())
    return trips(folder / "controlled.xml"), notes


def releases(folder):
    """(signal, second) of every release before the end of the control."""
    return [
        (command.signal, states.at_s)
        for step in RecordedRun([folder / "run.mcap"]).steps()
        for each in step.tls.values()
        for states in each.states
        for command in states.commands
        if not command.state and states.at_s < 400
    ]


def test_trips_are_those_of_the_controlled_run(tmp_path):
    controlled, notes = recorded(tmp_path, city_with_evenings(tmp_path), begins_s=150)
    assert {signal for signal, _ in releases(tmp_path)} == {"A0", "B1", "C1", "C2"}, "they were released in between"
    assert notes == []
    alone = trips_alone(tmp_path)
    assert len(alone) > 250
    assert alone == controlled
    (tmp_path / "lights.add.xml").write_text("<additional/>")
    assert trips_alone(tmp_path) != controlled, "the lights decide"


def test_trips_are_the_same_from_the_first_second_on_and_without_a_release(tmp_path):
    controlled, _ = recorded(tmp_path, city_with_evenings(tmp_path), releases_until_s=None)
    assert trips_alone(tmp_path) == controlled
    programs = [each for each in ET.parse(tmp_path / "lights.add.xml").iter("tlLogic") if each.get("id") == "A0"]
    assert [each.get("programID") for each in programs] == ["recorded"]


def test_schedule_of_the_network_is_part_of_the_written_one(tmp_path):
    schedules = (
        ("A0", (100, "evening"), (190, "adapted"), (230, "evening"), (500, "adapted")),
        ("B1", (170, "adapted"), (205, "evening")),
    )
    controlled, notes = recorded(tmp_path, city_with_evenings(tmp_path, schedules), begins_s=150)
    assert [note.partition(":")[0] for note in notes] == ["signal A0", "signal B1"]
    assert "leave its wautJunction out of the additional file" in notes[0]
    more = ET.parse(tmp_path / "more.add.xml")
    for junction in more.getroot().findall("wautJunction"):
        more.getroot().remove(junction)
    more.write(tmp_path / "more.add.xml")
    assert trips_alone(tmp_path) == controlled


def test_changes_of_an_actuated_program_are_noted_as_not_known_to_the_second(tmp_path):
    city = city_with_evenings(tmp_path)
    more = tmp_path / "more.add.xml"
    more.write_text(more.read_text().replace('type="static"', 'type="actuated"'))
    _, notes = recorded(tmp_path, city)
    assert any(note.startswith("signal A0: between second") and "'evening'" in note for note in notes)


def test_written_programs_have_ids_of_their_own(tmp_path):
    city = city_with_evenings(tmp_path)
    more = tmp_path / "more.add.xml"
    more.write_text(more.read_text().replace('"evening"', '"recorded"'))
    recorded(tmp_path, city)
    programs = [
        each.get("programID")
        for each in ET.parse(tmp_path / "lights.add.xml").iter("tlLogic")
        if each.get("id") == "A0"
    ]
    assert programs == ["recorded-1", "recorded-plan"]


def test_command_writes_the_lights_and_refuses_a_folder_that_is_missing(tmp_path, capsys):
    sample = str(path("sample-city"))
    assert export([sample, "--sumo", str(tmp_path / "lights.add.xml")], "greenserve record export") == 0
    assert {each.get("id") for each in ET.parse(tmp_path / "lights.add.xml").iter("tlLogic")} >= {"A0", "C1", "C2"}
    assert export([sample, "--sumo", str(tmp_path / "missing" / "lights.add.xml")], "greenserve record export") == 2
    assert "cannot be written" in capsys.readouterr().err
