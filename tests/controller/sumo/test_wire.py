"""TraCI messages: compared with traci's constants, and decoded from malformed answers."""

import contextlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traci import constants as tc

from controller.sumo import wire
from controller.sumo.wire import CommandRejected, MalformedMessage, NumericGetters, Reader
from tests.controller.sumo.traci_answers import ids_answer, sized, state_answer, status, value, vehicle_answer


def lane_answer(lanes, numbers):
    out = b""
    for lane, (count, length) in zip(lanes, numbers, strict=True):
        out += status(0xA3) + value(0xA3, 0x10, lane, wire.TYPE_INT, struct.pack("!i", count))
        out += status(0xA3) + value(0xA3, 0x15, lane, wire.TYPE_DOUBLE, struct.pack("!d", length))
    return out


def getters(lanes):
    return NumericGetters(
        [(0xA3, v, lane, kind) for lane in lanes for v, kind in ((0x10, wire.TYPE_INT), (0x15, wire.TYPE_DOUBLE))]
    )


def test_constants_equal_tracis():
    pairs = {
        "GET_LANE": "CMD_GET_LANE_VARIABLE", "GET_VEHICLE": "CMD_GET_VEHICLE_VARIABLE",
        "GET_SIM": "CMD_GET_SIM_VARIABLE", "GET_TL": "CMD_GET_TL_VARIABLE",
        "SET_TL": "CMD_SET_TL_VARIABLE", "SIMSTEP": "CMD_SIMSTEP", "CLOSE": "CMD_CLOSE", "TIME": "VAR_TIME",
        "LAST_STEP_VEHICLE_NUMBER": "LAST_STEP_VEHICLE_NUMBER", "LAST_STEP_VEHICLE_IDS": "LAST_STEP_VEHICLE_ID_LIST",
        "LANE_POSITION": "VAR_LANEPOSITION", "SPEED": "VAR_SPEED", "WAITING_TIME": "VAR_WAITING_TIME",
        "LAST_STEP_HALTING": "LAST_STEP_VEHICLE_HALTING_NUMBER", "LAST_STEP_LENGTH": "LAST_STEP_LENGTH",
        "STATE": "TL_RED_YELLOW_GREEN_STATE",
        "PHASE_DURATION": "TL_PHASE_DURATION", "PROGRAM": "TL_PROGRAM", "CURRENT_PROGRAM": "TL_CURRENT_PROGRAM",
        "SET_SIM": "CMD_SET_SIM_VARIABLE", "PARAMETER": "VAR_PARAMETER", "TYPE_COMPOUND": "TYPE_COMPOUND",
        "PHASE": "TL_PHASE_INDEX",
        "TYPE_INT": "TYPE_INTEGER", "TYPE_DOUBLE": "TYPE_DOUBLE", "TYPE_STRING": "TYPE_STRING",
        "TYPE_STRING_LIST": "TYPE_STRINGLIST",
    }  # fmt: skip
    assert {ours: getattr(wire, ours) for ours in pairs} == {
        ours: getattr(tc, theirs) for ours, theirs in pairs.items()
    }


@given(
    st.lists(
        st.tuples(st.text(max_size=300), st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False)),
        min_size=1,
        max_size=8,
    )
)
def test_any_lanes_and_numbers_are_decoded(rows):
    lanes = [name for name, _, _ in rows]
    answer = lane_answer(lanes, [(n, x) for _, n, x in rows])
    ints, doubles = getters(lanes).decode(answer + b"more")
    assert (ints.tolist(), doubles.tolist()) == ([n for _, n, _ in rows], [x for *_, x in rows])
    assert getters(lanes).size == len(answer)


@given(st.binary(max_size=200))
def test_malformed_numbers_raise(content):
    with pytest.raises((MalformedMessage, CommandRejected)):
        getters(["lane_0", "lane_1", "a_much_longer_name_of_a_lane_0"]).decode(content)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_changed_byte_raises_or_only_changes_a_number(at, new):
    answer = bytearray(lane_answer(["lane_0", "lane_1"], [(3, 5.0), (4, 6.0)]))
    answer[at % len(answer)] = new
    try:
        ints, doubles = getters(["lane_0", "lane_1"]).decode(bytes(answer))
    except (MalformedMessage, CommandRejected):
        return
    assert ints.shape == doubles.shape == (2,)


def test_every_byte_outside_the_numbers_is_checked():
    lanes, every_byte = ["lane_0", "lane_1"], struct.unpack("!d", b"\xff" * 8)[0]
    answer, other = lane_answer(lanes, [(0, 0.0)] * 2), lane_answer(lanes, [(-1, every_byte)] * 2)
    fixed = [at for at, (a, b) in enumerate(zip(answer, other, strict=True)) if a == b]
    assert len(answer) - len(fixed) == 2 * (4 + 8)
    accepted = status(0xA3)
    results = [at + 2 for at in range(len(answer)) if answer.startswith(accepted, at)]  # where SUMO's results stand
    rejected = []
    for at in fixed:
        try:
            getters(lanes).decode(answer[:at] + bytes([answer[at] ^ 0x10]) + answer[at + 1 :])
        except CommandRejected:
            rejected.append(at)
        except MalformedMessage:
            continue
        else:
            pytest.fail(f"byte {at} is not checked")
    assert rejected == results


def test_rejection_of_numbers_raises_with_sumos_text():
    answer = status(0xA3, 0xFF, "Lane 'x' is not known") + status(0xA3)
    with pytest.raises(CommandRejected, match="Lane 'x' is not known"):
        getters(["x"]).decode(answer)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_lists_of_strings_are_decoded(texts):
    packed = struct.pack("!i", len(texts)) + b"".join(struct.pack("!i", len(t.encode())) + t.encode() for t in texts)
    answer = status(0xA3) + value(0xA3, 0x12, "lane_0", wire.TYPE_STRING_LIST, packed)
    assert Reader(answer).value() == texts


@given(st.binary(max_size=120))
def test_malformed_strings_raise_only_our_errors(content):
    with contextlib.suppress(MalformedMessage, CommandRejected):
        Reader(content).value()


def test_huge_list_length_raises_before_allocation():
    packed = struct.pack("!i", 2**31 - 1)
    answer = status(0xA3) + value(0xA3, 0x12, "lane_0", wire.TYPE_STRING_LIST, packed)
    with pytest.raises(MalformedMessage):
        Reader(answer).value()


def test_long_commands_use_the_long_length():
    text = "G" * 400
    made = wire.set_string(wire.SET_TL, wire.STATE, "A", text)
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


@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 30))
def test_changed_or_truncated_states_raise_or_only_change_a_state(at, new, cut):
    pairs = [("A0", "GGrr"), ("B0", "rrGGr")]
    answer = bytearray(state_answer(pairs))
    answer[at % len(answer)] = new
    try:
        states, _ = wire.StateGetters({name: len(state) for name, state in pairs}).decode(
            bytes(answer[: len(answer) - cut])
        )
    except (MalformedMessage, CommandRejected):
        return
    assert [len(state) for state in states] == [4, 5] and cut == 0


def test_rejection_of_states_raises_with_sumos_text():
    with pytest.raises(CommandRejected, match="Traffic light 'x' is not known"):
        wire.StateGetters({"x": 4}).decode(status(0xA2, 0xFF, "Traffic light 'x' is not known"))


IDS = st.text(min_size=1, max_size=300)
NUMBERS = st.tuples(*[st.floats(allow_nan=False)] * 3)


@given(st.dictionaries(st.text(max_size=260), st.lists(IDS, max_size=6), max_size=8), st.binary(max_size=20))
def test_any_vehicle_ids_are_decoded(ids_of, before):
    getters = wire.VehicleIdGetters(list(ids_of))
    names, counts = getters.decode(before + ids_answer(ids_of) + b"more", len(before))
    assert names == [sized(text) for ids in ids_of.values() for text in ids] and counts == [*map(len, ids_of.values())]
    assert getters.request == b"".join(wire.get(wire.GET_LANE, wire.LAST_STEP_VEHICLE_IDS, lane) for lane in ids_of)


@given(st.lists(st.tuples(IDS, st.none() | NUMBERS), max_size=8))
def test_any_vehicles_are_decoded_and_unknown_ones_left_out(vehicles):
    getters = wire.VehicleGetters([sized(name) for name, _ in vehicles])
    requested = [wire.get(wire.GET_VEHICLE, variable, name) for name, _ in vehicles for variable in (0x56, 0x40, 0x7A)]
    assert getters.request == b"".join(requested)
    values, known = getters.decode(vehicle_answer(vehicles))
    assert known.tolist() == [numbers is not None for _, numbers in vehicles]
    assert values.T.tolist() == [list(numbers) for _, numbers in vehicles if numbers is not None]


IDS_OF = {"a_0": [], "a_1": ["flow.1", "flow.2 ü"], "a_2": ["v" * 300]}
VEHICLES = [("flow.1", (1.0, 2.0, 0.0)), ("flow.2 ü", None), ("v" * 300, (3.0, 0.0, 7.0))]


@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 100))
def test_changed_or_truncated_vehicle_ids_raise_only_our_errors(at, new, cut):
    answer = bytearray(ids_answer(IDS_OF))
    answer[at % len(answer)] = new
    try:
        names, counts = wire.VehicleIdGetters(list(IDS_OF)).decode(bytes(answer[: len(answer) - cut]))
    except (MalformedMessage, CommandRejected):
        return
    assert len(names) == sum(counts) and cut == 0


@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 100))
def test_changed_or_truncated_vehicles_raise_only_our_errors(at, new, cut):
    answer = bytearray(vehicle_answer(VEHICLES))
    answer[at % len(answer)] = new
    try:
        values, known = wire.VehicleGetters([sized(name) for name, _ in VEHICLES]).decode(
            bytes(answer[: len(answer) - cut])
        )
    except (MalformedMessage, CommandRejected):
        return
    assert values.shape == (3, known.sum()) and len(known) == 3 and cut == 0


@given(st.binary(max_size=200))
def test_malformed_vehicles_raise(content):
    with pytest.raises((MalformedMessage, CommandRejected)):
        wire.VehicleIdGetters(list(IDS_OF)).decode(content)
    with pytest.raises((MalformedMessage, CommandRejected)):
        wire.VehicleGetters([sized(name) for name, _ in VEHICLES]).decode(content)


def test_every_byte_of_vehicle_ids_outside_the_ids_is_checked():
    answer, ids = ids_answer(IDS_OF), [text.encode() for own in IDS_OF.values() for text in own]
    inside = {at for text in ids for at in range(answer.index(text), answer.index(text) + len(text))}
    for at in set(range(len(answer))) - inside:
        with pytest.raises((MalformedMessage, CommandRejected)):
            wire.VehicleIdGetters(list(IDS_OF)).decode(answer[:at] + bytes([answer[at] ^ 0x10]) + answer[at + 1 :])


def test_every_byte_of_vehicles_outside_the_numbers_is_checked():
    every_byte = struct.unpack("!d", b"\xff" * 8)[0]
    answer, other = (vehicle_answer([("a", (number,) * 3), ("b" * 300, (number,) * 3)]) for number in (0.0, every_byte))
    fixed = [at for at, (a, b) in enumerate(zip(answer, other, strict=True)) if a == b]
    assert len(answer) - len(fixed) == 2 * 3 * 8
    for at in fixed:
        with pytest.raises(MalformedMessage):
            wire.VehicleGetters([sized("a"), sized("b" * 300)]).decode(
                answer[:at] + bytes([answer[at] ^ 0x10]) + answer[at + 1 :]
            )


def test_rejection_of_vehicle_ids_raises_with_sumos_text():
    with pytest.raises(CommandRejected, match="Lane 'x' is not known"):
        wire.VehicleIdGetters(["x"]).decode(status(0xA3, 0xFF, "Lane 'x' is not known"))


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
