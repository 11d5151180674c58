"""Answers to getters of the vehicles on detectors."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sumo.connection import CommandRejected
from controller.sumo.detector_passages import DetectorVehicle
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.wire import BLOCK_SIZE, TYPE_INT, MalformedMessage
from tests.controller.sumo.traci_answers import detectors_answer, status

TIMES_S = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("v" * 300)
VEHICLES = st.lists(st.tuples(NAMES, TIMES_S, TIMES_S), max_size=3)
DETECTORS = st.lists(st.just([]) | VEHICLES, max_size=2 * BLOCK_SIZE + 3)


def answer_and_expected(vehicles_of):
    names = [f"presence:{k}" for k in range(len(vehicles_of))]
    expected = {
        k: [DetectorVehicle(vehicle.encode(), entry_s, exit_s) for vehicle, entry_s, exit_s in vehicles]
        for k, vehicles in enumerate(vehicles_of)
        if vehicles
    }
    return DetectorGetters(names), detectors_answer(dict(zip(names, vehicles_of, strict=True))), expected


@given(DETECTORS)
def test_vehicles_of_all_detectors_are_decoded(vehicles_of):
    getters, answer, expected = answer_and_expected(vehicles_of)
    assert getters.decode(answer) == expected


@given(VEHICLES.filter(bool), st.data())
def test_answer_that_ends_early_or_late_is_malformed(vehicles, data):
    getters, answer, _ = answer_and_expected([[], vehicles, []])
    size = data.draw(st.integers(0, len(answer) - 1))
    for wrong in (answer[:size], answer + answer[size:]):
        with pytest.raises((MalformedMessage, CommandRejected)):
            getters.decode(wrong)


@given(VEHICLES.filter(bool), st.data())
def test_changed_byte_is_decoded_or_malformed(vehicles, data):
    getters, answer, expected = answer_and_expected([vehicles, []])
    at = data.draw(st.integers(0, len(answer) - 1))
    changed = bytearray(answer)
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        decoded = getters.decode(bytes(changed))
    except (MalformedMessage, CommandRejected):
        return
    # of a time, of a name or of a vehicle's length
    assert {detector: len(of_detector) for detector, of_detector in decoded.items()} == {
        k: len(v) for k, v in expected.items()
    }


def test_number_of_vehicles_beyond_any_answer_is_malformed():
    getters, answer, _ = answer_and_expected([[("v", 1.0, 2.0)]])
    number = answer.index(struct.pack("!Bi", TYPE_INT, 1)) + 1
    for wrong in (-1, 1 << 25, (1 << 31) - 1):
        with pytest.raises(MalformedMessage):
            getters.decode(answer[:number] + struct.pack("!i", wrong) + answer[number + 4 :])


def test_rejected_getter_is_named():
    with pytest.raises(CommandRejected, match="Induction loop 'x' is not known"):
        DetectorGetters(["x"]).decode(status(0xA0, 0xFF, "Induction loop 'x' is not known"))
