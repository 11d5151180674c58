"""Spaces of Gymnasium and Gym in the pickles of training libraries, read without these libraries."""

from dataclasses import dataclass
from typing import Any

from export.checkpoints import pickled_arrays
from export.checkpoints.pickled_values import Opaque
from serving.contract import CATEGORICAL

CONTINUOUS = "continuous"


@dataclass(frozen=True)
class Space:
    """A Discrete space from 0 on, or a Box of one dimension."""

    kind: str
    """`categorical` or `continuous`."""
    size: int
    low: tuple[float, ...] = ()
    """Bounds of a Box, exact."""
    high: tuple[float, ...] = ()


def read(space: Any, use: str, *kinds: str) -> Space:
    """The space of a pickle.

    Args:
        space: the pickled object.
        use: `observation` or `action`, for messages.
        kinds: the permitted ones.

    Raises:
        ValueError: it is another space.
    """
    state = space.state if isinstance(space, Opaque) and isinstance(space.state, dict) else {}
    name = str(getattr(space, "global_name", type(space).__name__)).rpartition(".")[2]
    shape = state.get("_shape")
    if name == "Discrete" and CATEGORICAL in kinds and int(state.get("start", 0)) == 0:
        return Space(CATEGORICAL, int(state["n"]))
    if name == "Box" and CONTINUOUS in kinds and isinstance(shape, tuple) and len(shape) == 1:
        low, high = (pickled_arrays.numbers(state.get(key)) for key in ("low", "high"))
        if low is None or high is None or not low.shape == high.shape == shape:
            raise ValueError(f"the bounds of its {use} space cannot be read")
        return Space(CONTINUOUS, int(shape[0]), *(tuple(bound.astype(float).tolist()) for bound in (low, high)))
    permitted = {CATEGORICAL: "Discrete from 0 on", CONTINUOUS: "a Box of one dimension"}
    raise ValueError(
        f"its {use} space is {name}{f' of shape {list(shape)}' if shape else ''}; only "
        f"{' and '.join(permitted[kind] for kind in kinds)} can be exported"
        f"{'; train one policy for each signal' if name == 'MultiDiscrete' else ''}"
    )
