"""TraCI getters of the vehicles on detectors; `wire` explains the protocol."""

import struct
from collections.abc import Iterator, Sequence

from traci import constants as tc

from controller.sumo.tracked_detectors import DetectorVehicle
from controller.sumo.wire import WRONG_LAYOUT, ListGetters, MalformedMessage, sized_string

VALUES_PER_VEHICLE = 5
"""Id, length, entry, exit and type."""
_TIMES = struct.Struct("!BdBdBdB")
"""Length, entry and exit, each after its type, and the type of the vehicle type's name."""
_TIME_TYPES = (tc.TYPE_DOUBLE, tc.TYPE_DOUBLE, tc.TYPE_DOUBLE, tc.TYPE_STRING)


class DetectorGetters(ListGetters):
    """Getters of the vehicles that were on detectors during the newest step."""

    def __init__(self, detectors: Sequence[str]) -> None:
        domain, variable = tc.CMD_GET_INDUCTIONLOOP_VARIABLE, tc.LAST_STEP_VEHICLE_DATA
        super().__init__([(domain, variable, detector) for detector in detectors], _compound(0))

    def decode(self, answer: bytes) -> dict[int, list[DetectorVehicle]]:
        """By detector with vehicles, those that were on it. Raises CommandRejected or MalformedMessage."""
        filled, end = self.filled(answer)
        if end != len(answer):
            raise MalformedMessage(f"an answer of {len(answer)} bytes whose detectors end at byte {end}")
        return {detector: list(_vehicles(answer, begin, end)) for detector, begin, end in filled}


def _compound(vehicles: int) -> bytes:
    """The begin of a detector's value, from the type to the number of vehicles."""
    number_of_values = 1 + VALUES_PER_VEHICLE * vehicles
    return struct.pack("!BiBi", tc.TYPE_COMPOUND, number_of_values, tc.TYPE_INTEGER, vehicles)


def _vehicles(answer: bytes, at: int, end: int) -> Iterator[DetectorVehicle]:
    """Decode a detector's value, from its type on."""
    (count,) = struct.unpack_from("!i", answer, at + 6) if at + 10 <= end else (-1,)
    # a vehicle takes more than a byte
    if not 0 <= count <= end - at or not answer.startswith(_compound(count), at):
        raise MalformedMessage(WRONG_LAYOUT)
    at += 10
    for _ in range(count):
        is_string = answer[at : at + 1] == bytes((tc.TYPE_STRING,))
        vehicle, at = sized_string(answer, at + 1, end)
        if at + _TIMES.size > end:
            raise MalformedMessage(f"an answer that ends at byte {end}, inside a vehicle")
        first, _, second, entry_s, third, exit_s, fourth = _TIMES.unpack_from(answer, at)
        if not is_string or (first, second, third, fourth) != _TIME_TYPES:
            raise MalformedMessage(WRONG_LAYOUT)
        _, at = sized_string(answer, at + _TIMES.size, end)
        yield DetectorVehicle(vehicle, entry_s, exit_s)
    if at != end:
        raise MalformedMessage(f"{count} vehicles on a detector that end at byte {at}, not {end}")
