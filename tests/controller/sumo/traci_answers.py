"""TraCI answers as SUMO packs them."""

import struct
from types import MappingProxyType

from traci import constants as tc


def status(command, result=0, text=""):
    body = struct.pack("!BBi", command, result, len(text)) + text.encode()
    return struct.pack("!B", len(body) + 1) + body


def value(command, variable, name, kind, packed):
    raw = name.encode()
    body = struct.pack("!BBi", command + 0x10, variable, len(raw)) + raw + struct.pack("!B", kind) + packed
    head = struct.pack("!B", len(body) + 1) if len(body) < 254 else struct.pack("!Bi", 0, len(body) + 5)
    return head + body


def ids_answer(ids_of, persons_of=MappingProxyType({})):
    """`ids_of`: the vehicles' ids by lane. `persons_of`: the persons' by walking area."""
    answer = b""
    for domain, variable, by_object in ((0xA3, 0x12, ids_of), (0xAA, 0x1A, persons_of)):
        for name, ids in by_object.items():
            packed = struct.pack("!i", len(ids)) + b"".join(sized(text) for text in ids)
            answer += status(domain) + value(domain, variable, name, tc.TYPE_STRINGLIST, packed)
    return answer


def person_answer(persons):
    """`persons`: (id, (next edge, speed, waiting time)), or (id, None) of a person that SUMO does not know."""
    answer = b""
    for name, values in persons:
        if values is None:
            answer += 3 * status(0xAE, 0xFF, "Person is not known.")
            continue
        edge, *numbers = values
        answer += status(0xAE) + value(0xAE, 0xC1, name, tc.TYPE_STRING, sized(edge))
        for variable, number in zip((0x40, 0x7A), numbers, strict=True):
            answer += status(0xAE) + value(0xAE, variable, name, tc.TYPE_DOUBLE, struct.pack("!d", number))
    return answer


def sized(text):
    return struct.pack("!i", len(text.encode())) + text.encode()


def vehicle_answer(vehicles):
    """`vehicles`: (id, (position, speed, waiting time)), or (id, None) of a vehicle that SUMO does not know."""
    answer = b""
    for name, values in vehicles:
        if values is None:
            answer += 3 * status(0xA4, 0xFF, "Vehicle is not known.")
            continue
        for variable, number in zip((0x56, 0x40, 0x7A), values, strict=True):
            answer += status(0xA4) + value(0xA4, variable, name, tc.TYPE_DOUBLE, struct.pack("!d", number))
    return answer


def state_answer(pairs):
    packed = [struct.pack("!i", len(state)) + state.encode() for _, state in pairs]
    values = [value(0xA2, 0x20, name, tc.TYPE_STRING, state) for (name, _), state in zip(pairs, packed, strict=True)]
    return b"".join(status(0xA2) + content for content in values)


def numbers_answer(lanes, numbers):
    """`numbers`: by lane, (number of vehicles, mean length)."""
    answer = b""
    for lane, (count, length_m) in zip(lanes, numbers, strict=True):
        answer += status(0xA3) + value(0xA3, 0x10, lane, tc.TYPE_INTEGER, struct.pack("!i", count))
        answer += status(0xA3) + value(0xA3, 0x15, lane, tc.TYPE_DOUBLE, struct.pack("!d", length_m))
    return answer


def near_answer(junction, vehicles, count=None):
    """A context subscription's answer and that to its end. `vehicles`: (id, x, y, angle, speed)."""
    count = len(vehicles) if count is None else count
    body = struct.pack("!B", 0x99) + sized(junction) + struct.pack("!BBi", 0xA4, 3, count)
    for name, x, y, angle, speed in vehicles:
        body += sized(name) + struct.pack("!BBBdd", 0x42, 0, 1, x, y)
        body += struct.pack("!BBBd", 0x43, 0, 0x0B, angle) + struct.pack("!BBBd", 0x40, 0, 0x0B, speed)
    return status(0x89) + struct.pack("!Bi", 0, len(body) + 5) + body + status(0x89)


def detectors_answer(vehicles_of, length_m=5.0, vehicle_type="DEFAULT_VEHTYPE"):
    """`vehicles_of`: by detector, (vehicle's id, entry, exit) of the newest step."""
    answer = b""
    for detector, vehicles in vehicles_of.items():
        packed = struct.pack("!iBi", 1 + 5 * len(vehicles), tc.TYPE_INTEGER, len(vehicles))
        for vehicle, entry_s, exit_s in vehicles:
            packed += struct.pack("!B", tc.TYPE_STRING) + sized(vehicle)
            for number in (length_m, entry_s, exit_s):
                packed += struct.pack("!Bd", tc.TYPE_DOUBLE, number)
            packed += struct.pack("!B", tc.TYPE_STRING) + sized(vehicle_type)
        answer += status(0xA0) + value(0xA0, 0x17, detector, tc.TYPE_COMPOUND, packed)
    return answer
