"""Max green and max red: which links they apply to, when they are exceeded and which phase serves."""

import math

import pytest

from signals.safety.conflicts import ConflictRules, OverrideReason
from signals.safety.safety_times import SafetyTimes
from signals.safety.service_bounds import ServiceBounds

GREENS = ["GgGr", "rrrG"]


def bounds_of(signal, greens=GREENS, **times):
    return ServiceBounds(ConflictRules(signal), SafetyTimes(3, 5, **times), greens)


def test_bounds_apply_to_links_that_some_phases_serve_and_others_do_not(crossing):
    assert bounds_of(crossing, ["GgGr", "Grrr"]).links == [1, 2]
    assert bounds_of(crossing, ["GgGr"]).links == []


def test_first_bound_is_exceeded_by_the_colour_of_each_link(crossing):
    since = [10.0, 11.0, 12.0, 13.0]
    bounds = bounds_of(crossing, max_green_s=20, max_red_s=90)
    assert bounds.first_exceeded_s("GgGr", since) == 30.0
    assert bounds.first_exceeded_s("rrrr", since) == 100.0
    assert bounds.first_exceeded_s("yyyr", since) == 103.0, "a yellow has no bound"
    assert bounds_of(crossing).first_exceeded_s("GgGr", since) == math.inf
    assert bounds_of(crossing, (), max_green_s=20).first_exceeded_s("GgGr", since) == math.inf


MAX_GREEN = OverrideReason.MAX_GREEN


@pytest.mark.parametrize(
    ("greens", "state", "ages", "requested", "forced"),
    [
        (GREENS, "GgGr", (20, 20, 20, 1), "GgGr", (MAX_GREEN, "rrrG")),
        (GREENS, "GgGr", (19, 19, 19, 30), "GgGr", None),  # the green has not expired, however long the foe waits
        (GREENS, "rrrG", (30, 30, 30, 10), "rrrG", None),  # a red that is older than max green is no expired green
        (GREENS, "GgGr", (20, 20, 20, 1), "rrrG", None),  # the requested state ends the green by itself
        (GREENS, "GgGr", (20, 20, 20, 1), "rrrr", None),
        (GREENS, "rrrr", (30, 30, 30, 30), "GgGr", None),  # a red that is to turn green is no expired green
        (["Grrr", "rgrr"], "Grrr", (30, 30, 30, 30), "Grrr", None),  # link 1, which waits, is no foe of link 0
    ],
)
def test_max_green_ends_a_green_only_for_a_foe_that_waits(crossing, greens, state, ages, requested, forced):
    since = [100.0 - age for age in ages]
    assert bounds_of(crossing, greens, max_green_s=20).forced(state, since, requested, 100.0) == forced


def test_relieving_phase_ends_every_expired_green(crossing):
    # link 1 yields to links 0 and 2, so it may be green beside both
    crossing.foes[0, 1] = crossing.foes[1, 0] = crossing.yields[1, 0] = True
    bounds = bounds_of(crossing, ["GrGr", "Ggrr", "rgrr"], max_green_s=20)
    assert bounds.forced("GrGr", [0.0] * 4, "GrGr", 30.0) == (MAX_GREEN, "rgrr")
