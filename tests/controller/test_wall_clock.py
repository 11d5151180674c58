"""A wall clock that jumps (NTP, a suspended machine) changes nothing."""

import re

from tests.conftest import ROOT


def test_no_interval_is_measured_with_the_wall_clock():
    for package in ("city", "controller", "serving"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(
                r"\btime\.time(_ns)?\(|datetime\.now\(\)|from time import .*\btime\b", path.read_text()
            ), path
