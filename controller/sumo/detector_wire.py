"""TraCI getters of the vehicles on detectors; `wire` explains the protocol."""

import struct
from collections.abc import Iterator, Sequence

from controller.sumo import wire
from controller.sumo.detector_passages import DetectorVehicle
from controller.sumo.wire import MalformedMessage

BLOCK_DETECTORS = 32
"""Detectors that are skipped together if no vehicle is on any of them."""
VALUES_PER_VEHICLE = 5
"""Id, length, entry, exit and type."""
_TIMES = struct.Struct("!BdBdBdB")
"""Length, entry and exit, each after its type, and the type of the vehicle type's name."""
_TIME_TYPES = (wire.TYPE_DOUBLE, wire.TYPE_DOUBLE, wire.TYPE_DOUBLE, wire.TYPE_STRING)


class DetectorGetters:
    """Getters of the vehicles of the newest step. Most detectors are empty; the answer of an empty detector is known
    beforehand."""

    def __init__(self, detectors: Sequence[str]) -> None:
        self.request = b"".join(
            wire.get(wire.GET_DETECTOR, wire.LAST_STEP_VEHICLE_DATA, detector) for detector in detectors
        )
        self._begins = [
            wire.value_begin(wire.GET_DETECTOR, wire.LAST_STEP_VEHICLE_DATA, detector) for detector in detectors
        ]
        """By detector, the begin of its value, up to the type."""
        values = [begin + _compound(0) for begin in self._begins]
        self._empty = [wire.value_head(wire.GET_DETECTOR, len(value)) + value for value in values]
        """By detector, its whole answer without vehicles."""
        blocks = range(0, len(detectors), BLOCK_DETECTORS)
        self._blocks = [(first, b"".join(self._empty[first : first + BLOCK_DETECTORS])) for first in blocks]

    def decode(self, answer: bytes) -> dict[int, list[DetectorVehicle]]:
        """By detector with vehicles, those that were on it. Raises CommandRejected or MalformedMessage."""
        vehicles_of: dict[int, list[DetectorVehicle]] = {}
        at = 0
        for first, empty_block in self._blocks:
            if answer.startswith(empty_block, at):
                at += len(empty_block)
                continue
            for detector in range(first, min(first + BLOCK_DETECTORS, len(self._empty))):
                if answer.startswith(self._empty[detector], at):
                    at += len(self._empty[detector])
                else:
                    vehicles, at = _vehicles(answer, at, self._begins[detector])
                    if vehicles:
                        vehicles_of[detector] = vehicles
        if at != len(answer):
            raise MalformedMessage(f"an answer of {len(answer)} bytes whose detectors end at byte {at}")
        return vehicles_of


def _compound(vehicles: int) -> bytes:
    """The begin of a detector's value, from the type to the number of vehicles."""
    number_of_values = 1 + VALUES_PER_VEHICLE * vehicles
    return struct.pack("!BiBi", wire.TYPE_COMPOUND, number_of_values, wire.TYPE_INT, vehicles)


def _vehicles(answer: bytes, at: int, begin: bytes) -> tuple[list[DetectorVehicle], int]:
    """Decode the answer of a detector: (its vehicles, the end of the answer)."""
    reader = wire.Reader(answer, at)
    reader.status()
    end = reader.value_end()
    at = reader.at + len(begin)
    (count,) = struct.unpack_from("!i", answer, at + 6) if at + 10 <= end else (-1,)
    # a vehicle takes more than a byte
    if (
        not 0 <= count <= end - at
        or not answer.startswith(begin, reader.at)
        or not answer.startswith(_compound(count), at)
    ):
        raise MalformedMessage("an answer whose layout does not match its getters")
    vehicles = list(_each_vehicle(answer, at + 10, end, count))
    return vehicles, end


def _each_vehicle(answer: bytes, at: int, end: int, count: int) -> Iterator[DetectorVehicle]:
    for _ in range(count):
        is_string = answer[at : at + 1] == bytes((wire.TYPE_STRING,))
        vehicle, at = _string(answer, at + 1, end)
        if at + _TIMES.size > end:
            raise MalformedMessage(f"an answer that ends at byte {end}, inside a vehicle")
        first, _, second, entry_s, third, exit_s, fourth = _TIMES.unpack_from(answer, at)
        if not is_string or (first, second, third, fourth) != _TIME_TYPES:
            raise MalformedMessage("an answer whose layout does not match its getters")
        _, at = _string(answer, at + _TIMES.size, end)
        yield DetectorVehicle(vehicle, entry_s, exit_s)
    if at != end:
        raise MalformedMessage(f"{count} vehicles on a detector that end at byte {at}, not {end}")


def _string(answer: bytes, at: int, end: int) -> tuple[bytes, int]:
    """(a string's bytes, its end)."""
    size = int.from_bytes(answer[at : at + 4])
    if at + 4 + size > end:
        raise MalformedMessage(f"a string of {size} bytes, but {max(end - at - 4, 0)} remain")
    return answer[at + 4 : at + 4 + size], at + 4 + size
