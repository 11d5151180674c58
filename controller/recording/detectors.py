"""Detectors before a city's signals (SUMO's inductionLoop) whose vehicles a run reads, for the events of its record.

`greenserve detectors` places them (`records/atspm/detectors.py`). SUMO's params say to which signal, function and stop
line a detector belongs.
"""

from collections.abc import Container
from dataclasses import dataclass

from city.errors import InputError
from controller.sumo.connection import DetectorConnection

ADVANCE, PRESENCE, YELLOW_RED = "Advance", "Presence", "Yellow_Red"
FUNCTIONS = (ADVANCE, PRESENCE, YELLOW_RED)
"""Functions of detectors in the detector table of Oregon DOT's atspm."""
SIGNAL_KEY, FUNCTION_KEY, LANE_KEY = "greenserve.signal", "greenserve.function", "greenserve.lane"


@dataclass(frozen=True)
class Detector:
    """A detector, as far as signal events need it."""

    id: str
    signal: str
    function: str
    """One of FUNCTIONS."""
    stop_lane: str
    """The lane at whose stop line its vehicles arrive; an advance detector may be on a lane that leads to it."""


def track_detectors(
    connection: DetectorConnection, signals: Container[str], sumo_step_s: float
) -> tuple[Detector, ...]:
    """Read the vehicles on the signals' detectors that SUMO has loaded, after each of its steps from now on.

    Returns the detectors in the order of the connection's events; without any, nothing is read. Raises InputError for a
    detector without a known function.
    """
    found = []
    for detector, (signal, function, stop_lane) in sorted(
        connection.detector_parameters((SIGNAL_KEY, FUNCTION_KEY, LANE_KEY)).items()
    ):
        if signal not in signals:
            continue
        try:
            found.append(Detector(detector, signal, known_function(function), stop_lane))
        except ValueError as error:
            raise InputError(
                f"SUMO's inductionLoop {detector} is malformed ({error}); "
                "write its file again with greenserve detectors"
            ) from None
    connection.track_detectors([detector.id for detector in found], sumo_step_s)
    return tuple(found)


def known_function(function: str) -> str:
    """The function. Raises ValueError if it is not one of FUNCTIONS."""
    if function not in FUNCTIONS:
        raise ValueError(f"{FUNCTION_KEY} = {function!r}")
    return function
