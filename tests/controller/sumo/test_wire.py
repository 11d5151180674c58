"""TraCI messages of many commands: encoded, and decoded from SUMO's answers."""

import contextlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traci import constants as tc

from controller.sumo import wire
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.tracked_detectors import DetectorVehicle
from controller.sumo.wire import BLOCK_SIZE, CommandRejected, MalformedMessage, NumericGetters, Reader
from tests.controller.sumo.traci_answers import (
    detectors_answer,
    ids_answer,
    near_answer,
    numbers_answer,
    person_answer,
    sized,
    state_answer,
    status,
    value,
    vehicle_answer,
)


def getters(lanes):
    return NumericGetters(
        [(0xA3, v, lane, kind) for lane in lanes for v, kind in ((0x10, tc.TYPE_INTEGER), (0x15, tc.TYPE_DOUBLE))]
    )


@given(
    st.lists(
        st.tuples(st.text(max_size=300), st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False)),
        min_size=1,
        max_size=8,
    )
)
def test_any_lanes_and_numbers_are_decoded(rows):
    lanes = [name for name, _, _ in rows]
    answer = numbers_answer(lanes, [(n, x) for _, n, x in rows])
    ints, doubles = getters(lanes).decode(answer + b"more")
    assert (ints.tolist(), doubles.tolist()) == ([n for _, n, _ in rows], [x for *_, x in rows])
    assert getters(lanes).size == len(answer)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_lists_of_strings_are_decoded(texts):
    packed = struct.pack("!i", len(texts)) + b"".join(struct.pack("!i", len(t.encode())) + t.encode() for t in texts)
    answer = status(0xA3) + value(0xA3, 0x12, "lane_0", tc.TYPE_STRINGLIST, packed)
    assert Reader(answer).value() == texts


@given(st.binary(max_size=120))
def test_malformed_strings_raise_only_our_errors(content):
    with contextlib.suppress(MalformedMessage, CommandRejected):
        Reader(content).value()


def test_huge_list_length_raises_before_allocation():
    packed = struct.pack("!i", 2**31 - 1)
    answer = status(0xA3) + value(0xA3, 0x12, "lane_0", tc.TYPE_STRINGLIST, packed)
    with pytest.raises(MalformedMessage):
        Reader(answer).value()


def test_long_commands_use_the_long_length():
    made = wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, "A", "G" * 400)
    assert made[0] == 0 and struct.unpack("!i", made[1:5])[0] == len(made)
    whole = wire.message([made, wire.step(7.5)])
    assert struct.unpack("!i", whole[:4])[0] == len(whole)
    assert np.frombuffer(whole[-8:], ">f8")[0] == 7.5


STATES = st.lists(
    st.tuples(st.text(max_size=270), st.text("rygG", max_size=260)), max_size=6, unique_by=lambda pair: pair[0]
)


@given(STATES, st.data())
def test_any_states_are_decoded_whatever_their_lengths(pairs, data):
    lengths = {name: data.draw(st.sampled_from((len(state), len(state) + 1))) for name, state in pairs}
    answer = state_answer(pairs)
    assert wire.StateGetters(lengths).decode(answer + b"more") == ([state for _, state in pairs], len(answer))


IDS = st.text(min_size=1, max_size=300)
NUMBERS = st.tuples(*[st.floats(allow_nan=False)] * 3)


IDS_OF = st.dictionaries(st.text(max_size=260), st.lists(IDS, max_size=6), max_size=8)


@given(IDS_OF, IDS_OF, st.binary(max_size=20))
def test_any_ids_of_vehicles_and_persons_are_decoded(ids_of, persons_of, before):
    getters = wire.IdGetters(list(ids_of), list(persons_of))
    vehicles, counts, persons = getters.decode(before + ids_answer(ids_of, persons_of) + b"more", len(before))
    assert vehicles == [sized(text) for ids in ids_of.values() for text in ids]
    assert persons == [sized(text) for ids in persons_of.values() for text in ids]
    assert counts == [*map(len, ids_of.values())]
    requested = [wire.get(tc.CMD_GET_LANE_VARIABLE, tc.LAST_STEP_VEHICLE_ID_LIST, lane) for lane in ids_of]
    requested += [wire.get(tc.CMD_GET_EDGE_VARIABLE, tc.LAST_STEP_PERSON_ID_LIST, area) for area in persons_of]
    assert getters.request == b"".join(requested)


@given(st.lists(st.tuples(IDS, st.none() | st.tuples(st.text(max_size=300), *[st.floats(allow_nan=False)] * 2))))
def test_any_persons_are_decoded_and_unknown_ones_left_out(persons):
    getters = wire.PersonGetters([sized(name) for name, _ in persons])
    variables = (tc.VAR_NEXT_EDGE, tc.VAR_SPEED, tc.VAR_WAITING_TIME)
    requested = [wire.get(tc.CMD_GET_PERSON_VARIABLE, variable, name) for name, _ in persons for variable in variables]
    assert getters.request == b"".join(requested)
    answer = person_answer(persons)
    assert getters.decode(answer + b"more") == ([values for _, values in persons if values is not None], len(answer))


@given(st.lists(st.tuples(IDS, st.none() | NUMBERS), max_size=8))
def test_any_vehicles_are_decoded_and_unknown_ones_left_out(vehicles):
    getters = wire.VehicleGetters([sized(name) for name, _ in vehicles])
    requested = [
        wire.get(tc.CMD_GET_VEHICLE_VARIABLE, variable, name) for name, _ in vehicles for variable in (0x56, 0x40, 0x7A)
    ]
    assert getters.request == b"".join(requested)
    values, known = getters.decode(vehicle_answer(vehicles))
    assert known.tolist() == [numbers is not None for _, numbers in vehicles]
    assert values.T.tolist() == [list(numbers) for _, numbers in vehicles if numbers is not None]


def test_answers_of_the_guard_are_valid_traci():
    assert Reader(wire.ok(wire.HANDOVER)[4:]).status() == wire.HANDOVER
    answer = wire.version_answer(21, "SUMO 1.28 behind a guard")
    reader = Reader(answer[4:])
    assert reader.status() == wire.GETVERSION and answer.endswith(b"SUMO 1.28 behind a guard")


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_splitter_yields_whole_messages_however_they_are_split(contents, cuts):
    sent = [wire.message([content]) for content in contents]
    stream, received, splitter, at = b"".join(sent), [], wire.MessageSplitter(), 0
    for size in itertools.cycle(cuts):
        if at >= len(stream):
            break
        received += splitter.feed(stream[at : at + size])
        at += size
    assert received == sent and splitter.is_between


@given(st.integers(-(2**31), 3))
def test_message_size_below_four_raises(size):
    with pytest.raises(wire.MalformedMessage):
        list(wire.MessageSplitter().feed(struct.pack("!i", size) + b"more"))


@given(st.lists(st.tuples(st.text(max_size=20), *[st.floats(allow_nan=False)] * 4), max_size=8))
def test_vehicles_near_a_junction_are_decoded(vehicles):
    assert wire.decode_vehicles_near(near_answer("B1", vehicles), "B1").tolist() == [
        list(values) for _, *values in vehicles
    ]


def test_another_count_of_vehicles_is_refused():
    with pytest.raises(MalformedMessage, match="1 vehicles"):
        wire.decode_vehicles_near(near_answer("B1", [("a", 1, 2, 3, 4)], count=2), "B1")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("v" * 300)
VEHICLES = st.lists(st.tuples(NAMES, *[st.floats(allow_nan=False)] * 2), max_size=3)
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


# damaged answers to every kind of getter: what is not a value is checked byte by byte

NUMBER_BYTE, TEXT_BYTE = 0xA5, ord("~")
"""All bytes of the values; no other byte of the answers is one of these."""
(INT,) = struct.unpack("!i", bytes([NUMBER_BYTE] * 4))
(DOUBLE,) = struct.unpack("!d", bytes([NUMBER_BYTE] * 8))
LANES = ["lane_0", "lane_1"]
SOME_STATES = {"A0": "~~~~", "B0": "~~~~~"}
SOME_IDS = {"a_0": [], "a_1": ["~~~", "~~~~~"], "a_2": ["~" * 300]}
PERSONS_OF = {":J_w0": ["~~~", "~"], ":J_w1": []}
NAMED = ["flow.1", "v" * 300]
DETECTED = {"x": [], "y": [("~~~", DOUBLE, DOUBLE)], "z": []}

CASES = {
    "numbers": (getters(LANES).decode, numbers_answer(LANES, [(INT, DOUBLE)] * 2)),
    "states": (
        wire.StateGetters({k: len(v) for k, v in SOME_STATES.items()}).decode,
        state_answer(SOME_STATES.items()),
    ),
    "ids": (wire.IdGetters(list(SOME_IDS), list(PERSONS_OF)).decode, ids_answer(SOME_IDS, PERSONS_OF)),
    "persons": (
        wire.PersonGetters([sized(name) for name in NAMED]).decode,
        person_answer([(NAMED[0], ("~~~", DOUBLE, DOUBLE)), (NAMED[1], ("~" * 300, DOUBLE, DOUBLE))]),
    ),
    "vehicles": (
        wire.VehicleGetters([sized(name) for name in NAMED]).decode,
        vehicle_answer([(name, (DOUBLE,) * 3) for name in NAMED]),
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
