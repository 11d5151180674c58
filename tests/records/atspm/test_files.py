"""Files of signal events: their form, that nothing is written by halves, and errors."""

import csv
import xml.etree.ElementTree as ET
from datetime import datetime

import pytest

from city.errors import InputError
from controller.recording.detectors import ADVANCE, PRESENCE
from records.atspm import files
from records.atspm.analysis_period import AnalysisPeriod, Detection, ShownState, SignalHistory
from records.atspm.detectors import PlacedDetector
from records.atspm.events import signal_events
from signals.phase_numbers import NemaPhase, PhaseNumbers

DETECTORS = [
    PlacedDetector("p", "9", PRESENCE, "a_0", "a_0", 1, 6),
    PlacedDetector("q", "gneJ1", ADVANCE, "b_0", "b_0", 1, 0),
    PlacedDetector("r", "9", ADVANCE, "a_0", "a_0", 1, 0),
]
PHASES = {
    name: PhaseNumbers(name, (NemaPhase(number, (0,), (), f"{lane[0]} north through"),), {lane: number})
    for name, number, lane in (("gneJ1", 2, "b_0"), ("9", 4, "a_0"), ("a/b", 2, "c_0"))
}
PERIOD = AnalysisPeriod(
    0.0,
    60.0,
    datetime(2026, 7, 22, 13, 59, 58),
    (
        SignalHistory("gneJ1", (ShownState(0, "G"), ShownState(2.5, "y"), ShownState(5.5, "r"))),
        SignalHistory("9", (ShownState(0, "r"), ShownState(20, "G"))),
    ),
    (Detection("r", 1.2344, True), Detection("r", 1.9, False), Detection("q", 7, True)),
)


@pytest.fixture
def written(tmp_path):
    events = signal_events(PERIOD, PHASES, DETECTORS)
    return files.write(tmp_path / "new" / "atspm", PERIOD, events, PHASES, DETECTORS), tmp_path / "new" / "atspm"


def rows(path):
    with path.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


def test_events_have_oregons_columns_and_local_time(written):
    table = rows(written[1] / "events.csv")
    assert table[0] == ("TimeStamp", "DeviceId", "EventId", "Parameter")
    assert table[1:] == [
        ("2026-07-22 13:59:58.000", "3", "1", "2"),
        ("2026-07-22 14:00:00.500", "3", "7", "2"),
        ("2026-07-22 14:00:00.500", "3", "8", "2"),
        ("2026-07-22 14:00:03.500", "3", "9", "2"),
        ("2026-07-22 14:00:03.500", "3", "10", "2"),
        ("2026-07-22 14:00:05.000", "3", "82", "1"),
        ("2026-07-22 13:59:59.234", "1", "82", "2"),
        ("2026-07-22 13:59:59.900", "1", "81", "2"),
        ("2026-07-22 14:00:18.000", "1", "1", "4"),
    ]


def test_detectors_and_phases_say_what_numbers_mean(written):
    assert rows(written[1] / "detectors.csv") == [
        ("DeviceId", "Phase", "Parameter", "Function"),
        ("1", "4", "1", "Presence"), ("3", "2", "1", "Advance"), ("1", "4", "2", "Advance"),
    ]  # fmt: skip
    assert rows(written[1] / "phases.csv") == [
        ("DeviceId", "Signal", "Phase", "Movements", "Lanes"),
        ("1", "9", "4", "a north through", "a_0"), ("2", "a/b", "2", "c north through", "c_0"),
        ("3", "gneJ1", "2", "b north through", "b_0"),
    ]  # fmt: skip


def test_maxtime_events_are_elements_with_month_first(written):
    root = ET.parse(written[1] / "device-3.xml").getroot()
    events = [(e.get("TimeStamp"), e.get("EventTypeID"), e.get("Parameter")) for e in root.iter("Event")]
    assert events[:2] == [("7-22-2026 13:59:58.000", "1", "2"), ("7-22-2026 14:00:00.500", "7", "2")]
    assert len(events) == 6
    assert root.findtext("EventResponse/Description/PhasesInUse") == "2"


def test_notes_name_device_and_rule(written):
    result, folder = written
    text = (folder / "notes.txt").read_text()
    assert text == "".join(f"{note}\n" for note in result.notes)
    assert text.startswith(
        "device 3, signal gneJ1, phase 2: a red clearance of 54.5 s at 2026-07-22 14:00:03 (1 in all): "
    )


def test_only_whole_files_remain(written):
    result, folder = written
    assert sorted(folder.iterdir()) == sorted(result.paths) and len(result.paths) == 6


def test_a_device_has_the_same_number_without_the_others(tmp_path):
    own = AnalysisPeriod(0.0, 60.0, PERIOD.zero, PERIOD.signals[:1])
    files.write(tmp_path, own, signal_events(own, PHASES, DETECTORS), PHASES, DETECTORS)
    assert {row[1] for row in rows(tmp_path / "events.csv")[1:]} == {"3"}
    assert rows(tmp_path / "detectors.csv")[2] == ("3", "2", "1", "Advance")


@pytest.mark.parametrize("blocked", ["atspm", "atspm/events.csv"])
def test_a_folder_that_cannot_be_written_is_one_error(tmp_path, blocked):
    path = tmp_path / blocked
    path.parent.mkdir(exist_ok=True)
    path.touch() if blocked == "atspm" else path.mkdir()
    with pytest.raises(InputError, match=r"cannot be (created|written): .*pass another folder"):
        files.write(tmp_path / "atspm", PERIOD, signal_events(PERIOD, PHASES, DETECTORS), PHASES, DETECTORS)
