"""Level of service of signalised intersections by delay per vehicle.

Source of the bounds: Highway Capacity Manual (6th edition), criteria of motorised vehicles at signalised intersections.
In the manual a volume above the capacity is F too, whatever the delay. Here F is by delay alone.
"""

BOUNDS_S = (("A", 10.0), ("B", 20.0), ("C", 35.0), ("D", 55.0), ("E", 80.0))
"""(letter, largest delay per vehicle in s); F is above all of them."""


def letter(delay_s: float) -> str:
    """The level of service, A to F, of a delay per vehicle in s."""
    return next((name for name, bound_s in BOUNDS_S if delay_s <= bound_s), "F")
