"""Answers to getters of the vehicles on detectors."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traci import constants as tc

from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.tracked_detectors import DetectorVehicle
from controller.sumo.wire import BLOCK_SIZE, MalformedMessage
from tests.controller.sumo.traci_answers import detectors_answer

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


def test_answer_that_goes_on_is_malformed():
    getters, answer, _ = answer_and_expected([[], [("v", 1.0, 2.0)], []])
    with pytest.raises(MalformedMessage, match="whose detectors end at byte"):
        getters.decode(answer + b"more")


def test_number_of_vehicles_beyond_any_answer_is_malformed():
    getters, answer, _ = answer_and_expected([[("v", 1.0, 2.0)]])
    number = answer.index(struct.pack("!Bi", tc.TYPE_INTEGER, 1)) + 1
    for wrong in (-1, 1 << 25, (1 << 31) - 1):
        with pytest.raises(MalformedMessage):
            getters.decode(answer[:number] + struct.pack("!i", wrong) + answer[number + 4 :])
