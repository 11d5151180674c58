"""Vehicles on detectors are read alike over every connection, from the real SUMO."""

import contextlib
from types import SimpleNamespace

import pytest

from city import network
from city.errors import InputError
from controller.recording.detectors import ADVANCE, track_detectors
from controller.sumo.connection import LanesToRead
from controller.sumo.libsumo_connection import start_libsumo
from records.atspm import detectors
from tests.conftest import GRID
from tests.controller.sumo.openers import OPENERS, OPTIONS, over_socket

END_S = 120
SIGNALS = ("A0", "B1")


@pytest.fixture(scope="module")
def placed():
    return [each for each in detectors.place(network.of_sumocfg(GRID / "grid.sumocfg")) if each.signal in SIGNALS]


@pytest.fixture(scope="module")
def options(placed, tmp_path_factory):
    path = tmp_path_factory.mktemp("detectors") / "detectors.add.xml"
    other = detectors.PlacedDetector("other", "C2", ADVANCE, placed[0].stop_lane, placed[0].lane, 5.0, 0.0)
    detectors.write(path, [*placed, other])
    return [*OPTIONS, "-a", f"{GRID / 'fixed_time.add.xml'},{path}"]


@pytest.fixture(scope="module")
def passages(options, placed):
    """(detector, vehicle, entry) -> exit, requested after every step; None while the vehicle is on the detector."""
    found = {}
    connection = start_libsumo(options)
    for _ in range(END_S):
        connection.api.simulationStep()
        for detector in placed:
            for vehicle, _, entry_s, exit_s, _ in connection.api.inductionloop.getVehicleData(detector.id):
                found[detector.id, vehicle, entry_s] = exit_s if exit_s >= 0 else None
    connection.close()
    return found


@pytest.mark.parametrize("opened", OPENERS)
def test_entries_and_exits_are_those_of_every_step(opened, options, placed, passages):
    with contextlib.closing(opened(options)) as connection:
        tracked = track_detectors(connection, SIGNALS, 1.0)
        assert {each.id: (each.signal, each.function, each.stop_lane) for each in tracked} == {
            detector.id: (detector.signal, detector.function, detector.stop_lane) for detector in placed
        }
        connection.track(LanesToRead(), {"A0": len(connection.api.trafficlight.getRedYellowGreenState("A0"))})
        entries, exits = [], []
        for now in range(0, END_S, 10):
            # several steps of SUMO in a segment, several segments in a reading
            connection.advance(now + 7)
            connection.advance(now + 10)
            for detector, time_s, is_entry in connection.read(()).detector_changes:
                assert now < time_s <= now + 10
                (entries if is_entry else exits).append((tracked[detector].id, time_s))
    assert len(passages) > 50
    assert sorted(entries) == sorted((detector, entry_s) for detector, _, entry_s in passages)
    assert sorted(exits) == sorted(
        (detector, exit_s) for (detector, _, _), exit_s in passages.items() if exit_s is not None
    )


@pytest.mark.parametrize("opened", [over_socket, start_libsumo])
def test_nothing_is_read_without_detectors(opened):
    with contextlib.closing(opened(OPTIONS)) as connection:
        assert track_detectors(connection, SIGNALS, 1.0) == ()
        connection.track(LanesToRead(), {})
        connection.advance(5)
        assert connection.read(()).detector_changes == []


def test_detector_with_an_unknown_function_is_refused():
    parameters = {"x": ("A0", "Presense", "a_0"), "of the user": ("", "", "")}
    connection = SimpleNamespace(detector_parameters=lambda keys: parameters)
    with pytest.raises(InputError, match=r"inductionLoop x is malformed .*'Presense'.*greenserve detectors"):
        track_detectors(connection, SIGNALS, 1.0)
