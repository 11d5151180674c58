"""Greens that each movement of a signal got in one simulation."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from city.network import SEQUENTIAL_TYPES, SignalNetwork
from evaluation.signal_recording import SignalBand
from signals.movement_names import LEFT, MovementNames

PROTECTED, GREEN = "G", "Gg"
PROTECTED_SUFFIX = " (protected)"
"""Follows the name of a left turn that the plan also serves as a permissive one; its own row has the protected greens
alone."""


@dataclass(frozen=True)
class MovementService:
    """The greens of a movement in one simulation, or means over several. It is green while one of its links is."""

    greens_per_h: float
    green_share: float
    longest_red_s: float
    """Longest time without a green, yellow included."""
    skipped_share: float | None
    """Share of the plan's cycles without a green; None without a plan of a fixed cycle."""


def movement_service(signal: SignalNetwork, names: MovementNames, band: SignalBand) -> dict[str, MovementService]:
    """By name of a movement, its greens in a recording."""
    phases = [phase.state for program in signal.programs for phase in program.phases]
    rows: dict[str, tuple[set[int], str]] = {}
    for group in names.groups:
        rows.setdefault(group.name, (set(), GREEN))[0].update(group.links)
        if group.kind == LEFT and {state[link] for state in phases for link in group.links} >= set(GREEN):
            rows[group.name + PROTECTED_SUFFIX] = set(group.links), PROTECTED
    begins_s = cycle_begins_s(signal, band)
    return {name: _service(band, links, colours, begins_s) for name, (links, colours) in rows.items()}


def cycle_begins_s(signal: SignalNetwork, band: SignalBand) -> NDArray[np.float64]:
    """Seconds at which whole cycles of the signal's plan begin, and at which the last one ends.

    The plan is the program that runs at the recording's begin; if its phases have no fixed duration, the cycle is the
    sum of the durations that the file has. Empty for a program whose phases do not follow one another.
    """
    begin_s = band.states[0][0]
    plan = signal.program(signal.scheduled_program(begin_s))
    cycle_s = sum(phase.duration_s for phase in plan.phases)
    if plan.type not in SEQUENTIAL_TYPES:
        return np.zeros(0)
    first = math.ceil((begin_s - plan.offset_s) / cycle_s)
    last = math.floor((band.end_s - plan.offset_s) / cycle_s)
    return plan.offset_s + cycle_s * np.arange(first, last + 1, dtype=np.float64)


def green_share(band: SignalBand, links: tuple[int, ...]) -> float:
    """Share of the time in which one of the links is green."""
    is_green, lasted_s = _greens(band, set(links), GREEN)
    return float(lasted_s[is_green].sum() / lasted_s.sum())


def _greens(band: SignalBand, links: set[int], colours: str) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """By recorded state, whether one of the links has one of the colours, and how long it lasted, s."""
    greens = {state: any(state[link] in colours for link in links if link < len(state)) for _, state in band.states}
    lasted_s = np.diff([*(begin_s for begin_s, _ in band.states), band.end_s])
    return np.array([greens[state] for _, state in band.states]), lasted_s


def _service(band: SignalBand, links: set[int], colours: str, begins_s: NDArray[np.float64]) -> MovementService:
    is_green, lasted_s = _greens(band, links, colours)
    starts = is_green & ~np.concatenate([[False], is_green[:-1]])
    ends_s = band.states[0][0] + np.cumsum(lasted_s)
    green_until_s = np.concatenate([[0.0], np.cumsum(np.where(is_green, lasted_s, 0.0))])
    reds_s = np.bincount(np.cumsum(is_green), np.where(is_green, 0.0, lasted_s))
    total_s = float(lasted_s.sum())
    greens_s = np.diff(np.interp(begins_s, [band.states[0][0], *ends_s], green_until_s))
    return MovementService(
        greens_per_h=3600.0 * int(starts.sum()) / total_s,
        green_share=float(green_until_s[-1] / total_s),
        longest_red_s=float(reds_s.max()),
        skipped_share=float(np.mean(greens_s <= 0)) if len(greens_s) else None,
    )
