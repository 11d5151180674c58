"""Automated Traffic Signal Performance Measures (ATSPM): signal events as signal controllers log them, for tools that
read them.

`analysis_period` is the input, `detectors` and `signals.phase_numbers` say what the events' numbers mean, `events`
makes them, and `files` writes them.
"""
