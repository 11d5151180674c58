"""Codes of signal events, and what their parameters mean.

Source of the codes: "Indiana Traffic Signal Hi Resolution Data Logger Enumerations" (Purdue University, pooled fund
study TPF-5(377), 2019), https://docs.lib.purdue.edu/jtrpdata/4/. Values of patterns and of the flash status: NTCIP
1202.
"""

from enum import IntEnum
from typing import NamedTuple


class Code(IntEnum):
    """An event's code. Its parameter is a phase, unless a comment says otherwise."""

    PHASE_BEGIN_GREEN = 1
    PHASE_GAP_OUT = 4
    PHASE_MAX_OUT = 5
    PHASE_FORCE_OFF = 6
    PHASE_GREEN_TERMINATION = 7
    PHASE_BEGIN_YELLOW = 8
    PHASE_END_YELLOW = 9
    PHASE_BEGIN_RED_CLEARANCE = 10
    PHASE_END_RED_CLEARANCE = 11
    PEDESTRIAN_BEGIN_WALK = 21
    PEDESTRIAN_BEGIN_CHANGE = 22
    PEDESTRIAN_BEGIN_DONT_WALK = 23
    PHASE_CALL_REGISTERED = 43
    PHASE_CALL_DROPPED = 44
    DETECTOR_OFF = 81  # the detector's number
    DETECTOR_ON = 82  # the detector's number
    PATTERN_CHANGE = 131  # the pattern's number
    CYCLE_LENGTH_CHANGE = 132  # s, at most 255
    OFFSET_CHANGE = 133  # s, at most 255
    ADDITIONAL_CYCLE_LENGTH = 156  # s above 255
    FLASH_STATUS = 173  # unitFlashStatus
    SPECIAL_FUNCTION_ON = 176  # the function's number
    SPECIAL_FUNCTION_OFF = 177  # the function's number


POLICY_FUNCTION = 1
"""The special function that is on while a policy drives."""
PATTERN_FREE = 254
PATTERN_FLASH = 255
MAX_PATTERN = 253
FLASH_OTHER = 1
NOT_FLASH = 2
FLASH_AUTOMATIC = 3
"""Values of unitFlashStatus: dark, with colours, and flashing yellow."""
MAX_BYTE = 255


class Event(NamedTuple):
    """An event of one signal."""

    time_ms: int
    code: Code
    parameter: int
