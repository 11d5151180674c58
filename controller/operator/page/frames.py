"""Frames of the live page: little-endian bytes that a browser reads as typed arrays without a parser.

    header   16 bytes: u8 type (1), u8 flags (bit 0: the states are all in view, not only the changed ones),
             u16 version (1), u32 sequence number (counts steps), f64 simulated second
    sections until the end: u8 kind, 3 zero bytes, u32 size of the content, content, zero bytes up to a multiple of 8

    kind      content, each array without a gap after the one before
    VEHICLES  f32 x0, f32 y0, f32 step, u32 n; u16 x[n], u16 y[n] (x0 + step * x, in m), u8 angle[n] (1/256 turn, 0 is
    north,
              clockwise), u8 speed[n] (1/4 m/s, at most 255)
    STATES    u32 n, u32 m; u16 signal[n], u8 size[n], u8 states[m] (SUMO's characters, one signal after the other)
    MODES     u8 mode by TL: the value of its ControlMode
    QUEUES    u32 n, u32 0; u32 row[n] (lane of the readings), u8 vehicles[n] (at most 255). Lanes without a queue are
              left out
    PANEL     UTF-8 JSON: the TL's and the city's panel, as far as they changed

Signals, TLs and lanes are indices into the lists of /city.json. A reader skips kinds that it does not know:
static/frames.js, and benchmarks/page_frame.py for measurements and tests.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TYPE_FRAME, VERSION = 1, 1
FLAG_ALL_STATES = 1
VEHICLES, STATES, MODES, QUEUES, PANEL = range(1, 6)
MAX_SIGNALS = 1 << 16
SPEED_STEPS_PER_MPS = 4.0
_HEADER = struct.Struct("<BBHId")
_SECTION = struct.Struct("<B3xI")
_VEHICLES = struct.Struct("<fffI")
_COUNTS = struct.Struct("<II")

View = tuple[float, float, float, float]
"""(min x, min y, max x, max y) in m."""


class Vehicles(NamedTuple):
    """Vehicles at one moment; arrays with one element per vehicle."""

    x: NDArray[np.float32]
    """float32 [n], of the front, in m."""
    y: NDArray[np.float32]
    angle_deg: NDArray[np.float32]
    """float32 [n], SUMO's: 0 is north, clockwise."""
    speed_mps: NDArray[np.float32]


NO_VEHICLES = Vehicles(*(np.zeros(0, np.float32) for _ in range(4)))


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
    x = np.rint((vehicles.x[rows] - x0) / step).clip(0, 65535).astype("<u2")
    y = np.rint((vehicles.y[rows] - y0) / step).clip(0, 65535).astype("<u2")
    angle = (np.rint(vehicles.angle_deg[rows] * (256 / 360)).astype(np.int64) & 255).astype(np.uint8)
    speed = np.rint(vehicles.speed_mps[rows] * SPEED_STEPS_PER_MPS).clip(0, 255).astype(np.uint8)
    content = b"".join(column.tobytes() for column in (x, y, angle, speed))
    return _section(VEHICLES, _VEHICLES.pack(x0, y0, step, len(x)) + content)


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


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def panel_section(panels: Mapping[str, bytes]) -> bytes:
    """The panels by their names, each as JSON."""
    return _section(PANEL, b"{" + b",".join(as_json(name) + b":" + panel for name, panel in panels.items()) + b"}")
