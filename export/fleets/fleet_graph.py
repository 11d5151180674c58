"""The graph of a fleet: actors of one shape stacked and multiplied at once.

Stacked weights are [n, ...], one row for each TL; an observation [B, n * O] is
taken apart to [n, B, O], goes through batched products, and the answers are put
together again. Every operation costs the same few microseconds whether it
serves one TL or a thousand, so shapes that differ a little are padded with zeros
where that reads fewer bytes than another group's operations would cost.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from export.actors import WEIGHTS, Activation, Actor, BatchNorm, Branch, Dense, Weight, weight_name
from export.graphs.graph_actor import GraphActor
from export.saved_model.meta_graph import Variables
from export.saved_model.write import ACTIVATIONS, import_graph

GROUP_BYTES = 1_000_000
"""Padding that costs as much as one more group's operations (0.1 to 0.2 ms on 2 cores: `python -m benchmarks.fleet_groups`)."""
NEVER = np.float32(-1e30)
"""A logit that padding may add: less than any of an actor's."""


@dataclass(frozen=True)
class Member:
    """A TL's actor in a fleet."""

    tl: str
    actor: Actor | GraphActor
    categorical: bool

    @property
    def columns(self) -> int:
        """Columns of the fleet's action."""
        return 1 if self.categorical else self.actor.outputs


@dataclass(frozen=True)
class Group:
    """Members that are multiplied at once; one member where its actor is a trainer's graph."""

    members: tuple[Member, ...]

    @property
    def stacked(self) -> bool:
        return isinstance(self.members[0].actor, Actor)


Shapes = tuple[tuple[int, ...], ...]


def group(members: Sequence[Member]) -> list[Group]:
    """Members by shape, shapes merged where padding pays; within a group, in the order given."""
    alike: dict[Any, dict[Shapes, list[int]]] = {}
    alone = []
    for k, member in enumerate(members):
        if isinstance(member.actor, Actor):
            alike.setdefault(_kind(member), {}).setdefault(_shapes(member.actor), []).append(k)
        else:
            alone.append(Group((member,)))
    found = [chosen for shapes in alike.values() for chosen in _merged(shapes)]
    return [Group(tuple(members[k] for k in sorted(chosen))) for chosen in found] + alone


def _kind(member: Member) -> tuple[Any, ...]:
    """What members must share to be stacked: everything of their steps but the sizes."""
    assert isinstance(member.actor, Actor)
    told: list[Any] = [member.categorical]
    for step in member.actor.steps:
        match step:
            case Dense():
                told.append(("dense", step.bias is not None))
            case BatchNorm():
                told.append(("norm", step.gamma is not None, step.beta is not None, step.epsilon))
            case Activation():
                told.append(step.kind)
            case _:
                told.append(type(step).__name__)
    return tuple(told)


def _shapes(actor: Actor) -> Shapes:
    return tuple(layer.kernel.shape for layer in actor.dense)


def _merged(shapes: dict[Shapes, list[int]]) -> list[list[int]]:
    """Members of one kind, shapes of few bytes' difference together, the nearest first."""
    groups = [(shape, list(members)) for shape, members in sorted(shapes.items())]
    while len(groups) > 1:
        costs = [(_padding(one, other), k) for k, (one, other) in enumerate(itertools.pairwise(groups))]
        least, k = min(costs)
        if least > GROUP_BYTES:
            break
        (a, mine), (b, theirs) = groups[k : k + 2]
        groups[k : k + 2] = [(_around(a, b), mine + theirs)]
    return [members for _, members in groups]


def _around(one: Shapes, other: Shapes) -> Shapes:
    """The smallest shapes that hold both."""
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))


def _padding(one: tuple[Shapes, list[int]], other: tuple[Shapes, list[int]]) -> int:
    """Bytes of zeros that merging two groups adds."""
    size = _elements(_around(one[0], other[0]))
    return 4 * sum(len(members) * (size - _elements(shapes)) for shapes, members in (one, other))


def _elements(shapes: Shapes) -> int:
    return sum(a * b for a, b in shapes)


def build(groups: Sequence[Group], observation: Any, variables: Variables) -> Any:
    """[B, sum of A] actions of a fleet, in the order of its groups and their members."""
    begin, actions = 0, []
    for k, one in enumerate(groups):
        width = sum(member.actor.inputs for member in one.members)
        own = observation[:, begin : begin + width]
        begin += width
        actions.append(_stacked(k, one.members, own, variables) if one.stacked else _single(k, one.members[0], own, variables))
    return tf.concat(actions, axis=1) if len(actions) > 1 else actions[0]


def weights(groups: Sequence[Group]) -> list[Weight]:
    """The fleet's variables, stacked, in order of their names."""
    found = []
    for k, one in enumerate(groups):
        if not one.stacked:
            found += [Weight(f"group_{k:04d}/{w.name}", w.stored_as, w.values) for w in one.members[0].actor.weights]
            continue
        for j, part, arrays in _layers(one.members):
            values = _stack(one, j, part, arrays)
            found.append(Weight(f"group_{k:04d}/{weight_name(j, part)}", f"{len(arrays)} TLs", values))
    return sorted(found, key=lambda weight: weight.name)


def _layers(members: Sequence[Member]) -> list[tuple[int, str, list[NDArray[np.float32]]]]:
    """(step, part, every member's array) of stacked members."""
    steps = [member.actor.steps for member in members if isinstance(member.actor, Actor)]
    return [
        (j, part, [getattr(own[j], part) for own in steps])
        for j, step in enumerate(steps[0])
        if isinstance(step, Dense | BatchNorm)
        for part in WEIGHTS
        if getattr(step, part, None) is not None
    ]


def _stack(one: Group, step: int, part: str, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """[n, in, out] of kernels, [n, 1, units] of vectors; smaller ones padded so that nothing of the padding is seen."""
    actor = one.members[0].actor
    assert isinstance(actor, Actor)
    last = max(j for j, other in enumerate(actor.steps) if isinstance(other, Dense))
    fill = NEVER if one.members[0].categorical and (step, part) == (last, "bias") else np.float32(part == "variance")
    stacked = np.full(_stacked_shape(part, arrays), fill, np.float32)
    for row, array in zip(stacked, arrays, strict=True):
        own = row if part == "kernel" else row[0]
        own[tuple(slice(size) for size in array.shape)] = array
    return stacked


def _stacked_shape(part: str, arrays: Sequence[NDArray[np.float32]]) -> tuple[int, ...]:
    widest = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    return (len(arrays), *widest) if part == "kernel" else (len(arrays), 1, *widest)


def _stacked(k: int, members: Sequence[Member], observation: Any, variables: Variables) -> Any:
    n = len(members)
    actor = members[0].actor
    assert isinstance(actor, Actor)
    sizes = [member.actor.inputs for member in members]
    widest = max(sizes)
    if min(sizes) < widest:
        # a column of zeros stands where a smaller observation has no number
        observation = tf.gather(tf.pad(observation, [[0, 0], [0, 1]]), _spread(sizes, widest), axis=1)
    x = tf.transpose(tf.reshape(observation, [-1, n, widest]), [1, 0, 2])
    shapes = {(j, part): _stacked_shape(part, arrays) for j, part, arrays in _layers(members)}

    def weight(j: int, part: str) -> Any:
        shape = shapes.get((j, part))
        return None if shape is None else variables.read(f"group_{k:04d}/{weight_name(j, part)}", shape)

    branches = []
    for j, step in enumerate(actor.steps):
        match step:
            case Dense():
                x = tf.matmul(x, weight(j, "kernel"))
                x = x if step.bias is None else x + weight(j, "bias")
            case BatchNorm():
                mean, variance = weight(j, "mean"), weight(j, "variance")
                x = tf.nn.batch_normalization(x, mean, variance, weight(j, "beta"), weight(j, "gamma"), step.epsilon)
            case Activation():
                x = ACTIVATIONS[step.kind](x)
            case Branch():
                branches.append(x)
            case _:
                x = x + branches.pop()
    if members[0].categorical:
        return tf.transpose(tf.cast(tf.argmax(x, axis=2, output_type=tf.int64), tf.float32))
    answers = [member.actor.outputs for member in members]
    most = max(answers)
    x = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, n * most])
    if min(answers) < most:
        x = tf.gather(x, np.concatenate([row * most + np.arange(size) for row, size in enumerate(answers)]), axis=1)
    return x


def _spread(sizes: Sequence[int], widest: int) -> NDArray[np.int32]:
    """Column of every padded observation's number; what is beyond the last is the column of zeros."""
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    columns = np.full((len(sizes), widest), sum(sizes), np.int32)
    for row, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        columns[row, :size] = np.arange(begin, begin + size)
    return columns.reshape(-1)


def _single(k: int, member: Member, observation: Any, variables: Variables) -> Any:
    """A trainer's graph, as it stands in the TL's own model."""
    actor = member.actor
    assert isinstance(actor, GraphActor)
    own = tuple((f"group_{k:04d}/{w.name}", w.values.shape, str(w.values.dtype)) for w in actor.weights)
    return tf.reshape(import_graph(actor.graph, actor.output, own, observation, variables), [-1, member.columns])
