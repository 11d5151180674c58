"""Damaged answers to every kind of getter: what is not a value is checked byte by byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traci import constants as tc

from controller.sumo import wire
from controller.sumo.connection import CommandRejected
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.wire import MalformedMessage
from tests.controller.sumo.traci_answers import (
    detectors_answer,
    ids_answer,
    near_answer,
    numbers_answer,
    person_answer,
    sized,
    state_answer,
    status,
    vehicle_answer,
)

NUMBER_BYTE, TEXT_BYTE = 0xA5, ord("~")
"""All bytes of the values; no other byte of the answers is one of these."""
(INT,) = struct.unpack("!i", bytes([NUMBER_BYTE] * 4))
(DOUBLE,) = struct.unpack("!d", bytes([NUMBER_BYTE] * 8))
LANES = ["lane_0", "lane_1"]
STATES = {"A0": "~~~~", "B0": "~~~~~"}
IDS_OF = {"a_0": [], "a_1": ["~~~", "~~~~~"], "a_2": ["~" * 300]}
PERSONS_OF = {":J_w0": ["~~~", "~"], ":J_w1": []}
VEHICLES = ["flow.1", "v" * 300]
DETECTED = {"x": [], "y": [("~~~", DOUBLE, DOUBLE)], "z": []}

NUMERIC = [(0xA3, v, lane, kind) for lane in LANES for v, kind in ((0x10, tc.TYPE_INTEGER), (0x15, tc.TYPE_DOUBLE))]
CASES = {
    "numbers": (wire.NumericGetters(NUMERIC).decode, numbers_answer(LANES, [(INT, DOUBLE)] * 2)),
    "states": (wire.StateGetters({k: len(v) for k, v in STATES.items()}).decode, state_answer(STATES.items())),
    "ids": (wire.IdGetters(list(IDS_OF), list(PERSONS_OF)).decode, ids_answer(IDS_OF, PERSONS_OF)),
    "persons": (
        wire.PersonGetters([sized(name) for name in VEHICLES]).decode,
        person_answer([(VEHICLES[0], ("~~~", DOUBLE, DOUBLE)), (VEHICLES[1], ("~" * 300, DOUBLE, DOUBLE))]),
    ),
    "vehicles": (
        wire.VehicleGetters([sized(name) for name in VEHICLES]).decode,
        vehicle_answer([(name, (DOUBLE,) * 3) for name in VEHICLES]),
    ),
    "vehicles near": (
        lambda answer: wire.decode_vehicles_near(answer, "B1"),
        near_answer("B1", [("~~", *[DOUBLE] * 4), ("~", *[DOUBLE] * 4)]),
    ),
    "detectors": (DetectorGetters(list(DETECTED)).decode, detectors_answer(DETECTED, DOUBLE, "~")),
}
cases = pytest.mark.parametrize(("decode", "answer"), CASES.values(), ids=CASES)


@cases
def test_every_byte_outside_the_values_is_checked(decode, answer):
    decode(answer)
    for at, byte in enumerate(answer):
        damaged = answer[:at] + bytes([byte ^ 0x10]) + answer[at + 1 :]
        if byte in (NUMBER_BYTE, TEXT_BYTE):
            decode(damaged)
            continue
        with pytest.raises((MalformedMessage, CommandRejected)):
            decode(damaged)


@cases
def test_an_answer_that_ends_too_early_is_refused(decode, answer):
    for size in range(len(answer)):
        with pytest.raises((MalformedMessage, CommandRejected)):
            decode(answer[:size])


@cases
@given(data=st.data())
def test_changed_bytes_raise_only_our_errors(decode, answer, data):
    at = data.draw(st.integers(0, len(answer) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=4))
    damaged = answer[:at] + damage + answer[at + len(damage) :]
    try:
        decode(damaged)
    except (MalformedMessage, CommandRejected):
        assert damaged != answer


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in ("vehicles", "persons")])
def test_a_rejection_raises_with_sumos_text(kind):
    decode, answer = CASES[kind]
    rejected = status(answer[1], 0xFF, "'x' is not known") + status(answer[1])
    with pytest.raises(CommandRejected, match="'x' is not known"):
        decode(rejected)
