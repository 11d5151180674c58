"""SUMO's ids of lanes."""


def road_of(lane: str) -> str:
    """The road (SUMO's edge) of a lane: `road_0` is lane 0 of `road`."""
    return lane.rpartition("_")[0]


def is_internal(lane: str) -> bool:
    """True if a lane, or a road, lies inside a junction: its id begins with a colon."""
    return lane.startswith(":")
