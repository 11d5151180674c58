"""Automated Traffic Signal Performance Measures (ATSPM): signal events as signal controllers log them, for tools that
read them.

`period` is the input, `phase_numbers` and `detectors` say what the events' numbers mean, `events` makes them, and
`files` writes them.
"""
