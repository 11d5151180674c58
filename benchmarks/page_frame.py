"""Decodes a frame of the page, as static/frames.js does, for measurements and tests."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controller.operator.page.frames import (
    FLAG_ALL_STATES,
    MODES,
    PANEL,
    QUEUES,
    SPEED_STEPS_PER_MPS,
    STATES,
    TYPE_FRAME,
    VEHICLES,
    VERSION,
    Vehicles,
)


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


def decode(data: bytes) -> Frame:
    """The content of a frame. Raises ValueError or struct.error if it is of another form."""
    kind, flags, version, sequence, at_s = struct.unpack_from("<BBHId", data)
    if (kind, version) != (TYPE_FRAME, VERSION):
        raise ValueError(f"type {kind} version {version}, not {TYPE_FRAME} version {VERSION}")
    values: dict[str, Any] = {}
    for section, content in _sections(data):
        if section == VEHICLES:
            values["vehicles"] = _vehicles(content)
        elif section == STATES:
            values["states"] = _states(content)
        elif section == MODES:
            values["modes"] = content
        elif section == QUEUES:
            (count,) = struct.unpack_from("<I", content)
            rows, vehicles = np.frombuffer(content, "<u4", count, 8), np.frombuffer(content, "u1", count, 8 + 4 * count)
            values["queues"] = dict(zip(rows.tolist(), vehicles.tolist(), strict=True))
        elif section == PANEL:
            values["panel"] = json.loads(content)
    return Frame(sequence, at_s, bool(flags & FLAG_ALL_STATES), **values)


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 16
    while at < len(data):
        kind, size = struct.unpack_from("<B3xI", data, at)
        if at + 8 + size > len(data):
            raise ValueError(f"section {kind} has {size} bytes, but {len(data) - at - 8} follow")
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + size + -size % 8


def _vehicles(content: bytes) -> Vehicles:
    x0, y0, step, count = struct.unpack_from("<fffI", content)
    x, y = np.frombuffer(content, "<u2", 2 * count, 16).reshape(2, count)
    angle, speed = np.frombuffer(content, "u1", 2 * count, 16 + 4 * count).reshape(2, count)
    columns = (x0 + step * x, y0 + step * y, angle * (360 / 256), speed / SPEED_STEPS_PER_MPS)
    return Vehicles(*(column.astype(np.float32) for column in columns))


def _states(content: bytes) -> dict[int, str]:
    count, _ = struct.unpack_from("<II", content)
    signals = np.frombuffer(content, "<u2", count, 8).tolist()
    sizes = np.frombuffer(content, "u1", count, 8 + 2 * count).tolist()
    text = content[8 + 3 * count :].decode("ascii")
    states, begin = {}, 0
    for signal, size in zip(signals, sizes, strict=True):
        states[signal] = text[begin : begin + size]
        begin += size
    return states
