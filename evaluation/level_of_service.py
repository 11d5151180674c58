"""Levels of service of signalised intersections."""

BOUNDS_S = (("A", 10.0), ("B", 20.0), ("C", 35.0), ("D", 55.0), ("E", 80.0))
"""(letter, largest delay per vehicle in s); F is above all of them.

Source: Highway Capacity Manual (6th edition), criteria of motorised vehicles at signalised intersections.
"""


def level_of_service(delay_s: float, saturation: float = 0.0) -> str:
    """The level of service, A to F.

    Args:
        delay_s: delay per vehicle.
        saturation: volume / capacity of a lane group; above 1 it is F, whatever the delay. Approaches and intersections
            are judged by their delay alone (same source).
    """
    return next((letter for letter, bound_s in BOUNDS_S if delay_s <= bound_s and saturation <= 1.0), "F")
