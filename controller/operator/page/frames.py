"""Frames of the live page: little-endian bytes that a browser reads as typed arrays without a parser.

    header   16 bytes: u8 type (1), u8 flags (bit 0: the states are all in view, not only the changed ones), u16 version
        (1),
             u32 sequence number (counts steps), f64 simulated second
    sections until the end: u8 kind, 3 zero bytes, u32 size of the content, content, zero bytes up to a multiple of 8

    kind      content, each array without a gap after the one before
    VEHICLES  f32 x0, f32 y0, f32 step, u32 n; u16 x[n], u16 y[n] (x0 + step * x, in m), u8 angle[n] (1/256 turn, 0 is
    north,
              clockwise), u8 speed[n] (1/4 m/s, at most 255)
    STATES    u32 n, u32 m; u16 signal[n], u8 size[n], u8 states[m] (SUMO's characters, one signal after the other)
    MODES     u8 mode by TL: the value of its ControlMode
    QUEUES    u32 n, u32 0; u32 row[n] (lane of the readings), u8 vehicles[n] (at most 255). Lanes without a queue are
    left out PANEL     UTF-8 JSON: the TL's and the city's panel, as far as they changed

Signals, TLs and lanes are indices into the lists of /city.json. A reader skips kinds that it does not know.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TYPE_FRAME, VERSION = 1, 1
FLAG_ALL_STATES = 1
VEHICLES, STATES, MODES, QUEUES, PANEL = 1, 2, 3, 4, 5
MAX_SIGNALS = 1 << 16
SPEED_STEPS_PER_MPS = 4.0
_HEADER = struct.Struct("<BBHId")
_SECTION = struct.Struct("<B3xI")
_VEHICLES = struct.Struct("<fffI")
_COUNTS = struct.Struct("<II")

View = tuple[float, float, float, float]
"""(min x, min y, max x, max y) in m."""


class MalformedFrame(Exception):
    """Bytes that are not a frame."""


class Vehicles(NamedTuple):
    """Vehicles at one moment; arrays with one element per vehicle."""

    x: NDArray[np.float32]
    """float32 [n], of the front, in m."""
    y: NDArray[np.float32]
    angle_deg: NDArray[np.float32]
    """float32 [n], SUMO's: 0 is north, clockwise."""
    speed_mps: NDArray[np.float32]


NO_VEHICLES = Vehicles(*(np.zeros(0, np.float32) for _ in range(4)))


@dataclass(frozen=True)
class Frame:
    """A decoded frame. None: it has no such section."""

    sequence: int
    at_s: float
    has_all_states: bool = False
    vehicles: Vehicles | None = None
    states: Mapping[int, str] = field(default_factory=dict)
    """By signal."""
    modes: bytes | None = None
    queues: Mapping[int, int] | None = None
    """By row of the readings, vehicles that halt."""
    panel: Any = None


def encode(sequence: int, at_s: float, has_all_states: bool, sections: Sequence[bytes]) -> bytes:
    """A frame of sections from the functions below."""
    flags = FLAG_ALL_STATES if has_all_states else 0
    return _HEADER.pack(TYPE_FRAME, flags, VERSION, sequence & 0xFFFFFFFF, at_s) + b"".join(sections)


def _section(kind: int, content: bytes) -> bytes:
    return _SECTION.pack(kind, len(content)) + content + bytes(-len(content) % 8)


def vehicles_section(vehicles: Vehicles, view: View) -> bytes:
    """The vehicles that are inside the view."""
    x0, y0, x1, y1 = view
    rows = (vehicles.x >= x0) & (vehicles.x <= x1) & (vehicles.y >= y0) & (vehicles.y <= y1)
    step = max(x1 - x0, y1 - y0, 1e-3) / 65535
    x, y = (
        np.rint((axis[rows] - low) / step).clip(0, 65535).astype("<u2")
        for axis, low in ((vehicles.x, x0), (vehicles.y, y0))
    )
    angle = (np.rint(vehicles.angle_deg[rows] * (256 / 360)).astype(np.int64) & 255).astype(np.uint8)
    speed = np.rint(vehicles.speed_mps[rows] * SPEED_STEPS_PER_MPS).clip(0, 255).astype(np.uint8)
    parts = (axis.tobytes() for axis in (x, y, angle, speed))
    return _section(VEHICLES, _VEHICLES.pack(x0, y0, step, len(x)) + b"".join(parts))


def states_section(states: Mapping[int, str]) -> bytes:
    """States by signal; a state has at most 255 links here, further ones are left out."""
    texts = [state.encode("ascii", "replace")[:255] for state in states.values()]
    joined = b"".join(texts)
    indices = np.fromiter(states, "<u2", len(states))
    return _section(STATES, _COUNTS.pack(len(texts), len(joined)) + indices.tobytes() + bytes(map(len, texts)) + joined)


def modes_section(modes: bytes) -> bytes:
    return _section(MODES, modes)


def queues_section(rows: NDArray[np.intp], vehicles: NDArray[np.float64]) -> bytes:
    """The queues of lanes that have one."""
    has_queue = vehicles > 0
    content = rows[has_queue].astype("<u4").tobytes() + vehicles[has_queue].clip(0, 255).astype(np.uint8).tobytes()
    return _section(QUEUES, _COUNTS.pack(int(has_queue.sum()), 0) + content)


def panel_section(panel: Any) -> bytes:
    return _section(PANEL, json.dumps(panel, separators=(",", ":"), allow_nan=False).encode())


def decode(data: bytes) -> Frame:
    """Decode a frame as the page does. Raises MalformedFrame."""
    try:
        kind, flags, version, sequence, at_s = _HEADER.unpack_from(data)
    except struct.error:
        raise MalformedFrame(f"{len(data)} bytes, less than a header") from None
    if kind != TYPE_FRAME or version != VERSION:
        raise MalformedFrame(f"type {kind} version {version}, not {TYPE_FRAME} version {VERSION}")
    values: dict[str, Any] = {}
    for section, content in _sections(data):
        try:
            if section == VEHICLES:
                values["vehicles"] = _decode_vehicles(content)
            elif section == STATES:
                values["states"] = _decode_states(content)
            elif section == MODES:
                values["modes"] = content
            elif section == QUEUES:
                values["queues"] = _decode_queues(content)
            elif section == PANEL:
                values["panel"] = json.loads(content)
        except (struct.error, ValueError) as error:
            raise MalformedFrame(f"section {section} of {len(content)} bytes is damaged: {error}") from None
    return Frame(sequence, at_s, bool(flags & FLAG_ALL_STATES), **values)


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEADER.size
    while at < len(data):
        try:
            kind, size = _SECTION.unpack_from(data, at)
        except struct.error:
            raise MalformedFrame(f"it ends inside the header of a section, at byte {len(data)}") from None
        at += _SECTION.size
        if at + size + -size % 8 > len(data):
            raise MalformedFrame(f"section {kind} has {size} bytes, but {len(data) - at} follow")
        yield kind, data[at : at + size]
        at += size + -size % 8


def _arrays(content: bytes, at: int, *kinds: tuple[str, int]) -> list[NDArray[Any]]:
    """Arrays of (type, count) that follow one another up to the end. Raises ValueError."""
    arrays = []
    for kind, count in kinds:
        arrays.append(np.frombuffer(content, kind, count, at))
        at += arrays[-1].nbytes
    if at != len(content):
        raise ValueError(f"its arrays end at byte {at}")
    return arrays


def _decode_vehicles(content: bytes) -> Vehicles:
    x0, y0, step, count = _VEHICLES.unpack_from(content)
    x, y, angle, speed = _arrays(content, _VEHICLES.size, ("<u2", count), ("<u2", count), ("u1", count), ("u1", count))
    floats = (x0 + step * x, y0 + step * y, angle * (360 / 256), speed / SPEED_STEPS_PER_MPS)
    return Vehicles(*(values.astype(np.float32) for values in floats))


def _decode_states(content: bytes) -> dict[int, str]:
    count, size = _COUNTS.unpack_from(content)
    signals, sizes, text = _arrays(content, _COUNTS.size, ("<u2", count), ("u1", count), ("u1", size))
    if int(sizes.sum()) != size:
        raise ValueError(f"states of {int(sizes.sum())} characters in {size}")
    ends = np.cumsum(sizes, dtype=np.int64)
    raw = text.tobytes()
    return {
        int(k): raw[end - length : end].decode("ascii") for k, length, end in zip(signals, sizes, ends, strict=True)
    }


def _decode_queues(content: bytes) -> dict[int, int]:
    count, _ = _COUNTS.unpack_from(content)
    rows, vehicles = _arrays(content, _COUNTS.size, ("<u4", count), ("u1", count))
    return dict(zip(rows.tolist(), vehicles.tolist(), strict=True))
