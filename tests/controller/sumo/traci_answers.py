"""TraCI answers as SUMO packs them."""

import struct

from controller.sumo import wire


def status(command, result=0, text=""):
    body = struct.pack("!BBi", command, result, len(text)) + text.encode()
    return struct.pack("!B", len(body) + 1) + body


def value(command, variable, name, kind, packed):
    raw = name.encode()
    body = struct.pack("!BBi", command + 0x10, variable, len(raw)) + raw + struct.pack("!B", kind) + packed
    head = struct.pack("!B", len(body) + 1) if len(body) < 254 else struct.pack("!Bi", 0, len(body) + 5)
    return head + body


def state_answer(pairs):
    packed = [struct.pack("!i", len(state)) + state.encode() for _, state in pairs]
    values = [value(0xA2, 0x20, name, wire.TYPE_STRING, state) for (name, _), state in zip(pairs, packed, strict=True)]
    return b"".join(status(0xA2) + content for content in values)
