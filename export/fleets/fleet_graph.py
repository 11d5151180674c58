"""The graph of a fleet: actors of the same shape are stacked and multiplied at once.

Stacked weights are [n, ...] with one row per TL. An observation [B, n * O] is
split into [n, B, O], multiplied in batches, and the actions are concatenated.
An operation costs the same few microseconds for one TL as for a thousand;
therefore slightly different shapes are padded with zeros if reading the padding
costs less than the operations of another group.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from export.actors import Actor, Weight, weight_name
from export.actors.steps import FirstChoice
from export.graphs.graph_actor import GraphActor
from export.saved_model.meta_graph import Variables
from export.saved_model.write import import_graph

MAX_PADDING_BYTES = 1_000_000
"""Padding that costs as much as one more group's operations (0.1 to 0.2 ms on 2 cores: `python -m benchmarks.fleet_groups`)."""
NO_CHOICE = np.float32(-np.inf)
"""Logit of a padded column, which the argmax never chooses."""


@dataclass(frozen=True)
class FleetActor:
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
    """Members that are multiplied at once; a single member if its actor is a trainer's graph."""

    members: tuple[FleetActor, ...]

    @property
    def stacked(self) -> bool:
        return isinstance(self.members[0].actor, Actor)


Shapes = tuple[tuple[int, ...], ...]


def group_members(members: Sequence[FleetActor]) -> list[Group]:
    """Group members by shape, and merge shapes if padding costs less than a group; members keep their order in a group."""
    alike: dict[Any, dict[Shapes, list[int]]] = {}
    alone = []
    for k, member in enumerate(members):
        if isinstance(member.actor, Actor):
            alike.setdefault(_kind(member), {}).setdefault(_shapes(member.actor), []).append(k)
        else:
            alone.append(Group((member,)))
    merged = [chosen for shapes in alike.values() for chosen in _merged(shapes)]
    return [Group(tuple(members[k] for k in sorted(chosen))) for chosen in merged] + alone


def _kind(member: FleetActor) -> Hashable:
    """What stacked members have in common: everything about their steps except the sizes."""
    assert isinstance(member.actor, Actor)
    return member.categorical, *(step.operation for step in member.actor.steps)


def _shapes(actor: Actor) -> Shapes:
    return tuple(layer.kernel.shape for layer in actor.dense)


def _merged(shapes: dict[Shapes, list[int]]) -> list[list[int]]:
    """Members of the same kind, with similar shapes merged, the most similar first."""
    groups = [(shape, list(members)) for shape, members in sorted(shapes.items())]
    while len(groups) > 1:
        costs = [(_padding(first, second), k) for k, (first, second) in enumerate(itertools.pairwise(groups))]
        least, k = min(costs)
        if least > MAX_PADDING_BYTES:
            break
        (a, first_members), (b, second_members) = groups[k : k + 2]
        groups[k : k + 2] = [(_around(a, b), first_members + second_members)]
    return [members for _, members in groups]


def _around(first: Shapes, second: Shapes) -> Shapes:
    """The smallest shapes that contain both."""
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(first, second, strict=True))


def _padding(first: tuple[Shapes, list[int]], second: tuple[Shapes, list[int]]) -> int:
    """Bytes of zeros that merging two groups adds."""
    size = _elements(_around(first[0], second[0]))
    return 4 * sum(len(members) * (size - _elements(shapes)) for shapes, members in (first, second))


def _elements(shapes: Shapes) -> int:
    return sum(a * b for a, b in shapes)


def build(groups: Sequence[Group], observation: Any, variables: Variables) -> Any:
    """[B, sum of A] actions of a fleet, in the order of its groups and their members."""
    begin, actions = 0, []
    for k, group in enumerate(groups):
        width = sum(member.actor.inputs for member in group.members)
        columns = observation[:, begin : begin + width]
        begin += width
        actions.append(
            _stacked(k, group.members, columns, variables) if group.stacked else _single(k, group.members[0], columns, variables)
        )
    return tf.concat(actions, axis=1) if len(actions) > 1 else actions[0]


def weights(groups: Sequence[Group]) -> list[Weight]:
    """The fleet's variables, stacked, in order of their names."""
    stacked = []
    for k, group in enumerate(groups):
        if not group.stacked:
            stacked += [Weight(f"group_{k:04d}/{w.name}", w.stored_as, w.values) for w in group.members[0].actor.weights]
            continue
        for j, part, arrays in _layers(group.members):
            values = _stack(part, arrays)
            stacked.append(Weight(f"group_{k:04d}/{weight_name(j, part)}", f"{len(group.members)} TLs", values))
    return sorted(stacked, key=lambda weight: weight.name)


def _layers(members: Sequence[FleetActor]) -> list[tuple[int, str, list[NDArray[np.float32]]]]:
    """(step, part, every member's array) of stacked members; a single array if all members share it."""
    steps = [member.actor.steps for member in members if isinstance(member.actor, Actor)]
    return [
        (j, part, _shared([member_steps[j].weights[part] for member_steps in steps]))
        for j, step in enumerate(steps[0])
        for part in step.weights
    ]


def _shared(arrays: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """The first array alone if all are equal: a policy that TLs share is stored once."""
    return arrays[:1] if all(np.array_equal(array, arrays[0]) for array in arrays[1:]) else arrays


def _stack(part: str, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """[n, in, out] of kernels, [n, 1, units] of vectors; padding of smaller arrays does not change an action."""
    stacked = np.full(_stacked_shape(part, arrays), part == "variance", np.float32)
    for row, array in zip(stacked, arrays, strict=True):
        target = row if part == "kernel" else row[0]
        target[tuple(slice(size) for size in array.shape)] = array
    return stacked


def _stacked_shape(part: str, arrays: Sequence[NDArray[np.float32]]) -> tuple[int, ...]:
    widest = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    return (len(arrays), *widest) if part == "kernel" else (len(arrays), 1, *widest)


def _stacked(k: int, members: Sequence[FleetActor], observation: Any, variables: Variables) -> Any:
    actors = [member.actor for member in members if isinstance(member.actor, Actor)]
    shapes = {(j, part): _stacked_shape(part, arrays) for j, part, arrays in _layers(members)}
    x = _split(actors, observation)
    branches: list[Any] = []
    for j, step in enumerate(actors[0].steps):
        weights = {part: variables.read(f"group_{k:04d}/{weight_name(j, part)}", shapes[j, part]) for part in step.weights}
        x = step.build_stacked(x, weights.get, branches)
    return _choices(actors, x) if members[0].categorical else _means(actors, x)


def _split(actors: Sequence[Actor], observation: Any) -> Any:
    """[n, B, widest] observations, the shorter ones padded with zeros, out of [B, sum of inputs]."""
    sizes = [actor.inputs for actor in actors]
    # a shared policy may take more numbers than any of its TLs has
    widest = max(actor.dense[0].inputs for actor in actors)
    if min(sizes) < widest:
        observation = tf.gather(tf.pad(observation, [[0, 0], [0, 1]]), _spread(sizes, widest), axis=1)
    return tf.transpose(tf.reshape(observation, [-1, len(actors), widest]), [1, 0, 2])


def _choices(actors: Sequence[Actor], logits: Any) -> Any:
    """[B, n] choices as float32, out of [n, B, widest] logits; columns beyond an actor's own are never chosen."""
    widths = [actor.widths[-1] for actor in actors]
    if min(widths) < max(widths):
        logits = tf.where(_before(widths, max(widths)), logits, NO_CHOICE)
    if isinstance(actors[0].steps[-1], FirstChoice):
        own = _before([actor.outputs for actor in actors], max(widths))
        others = np.array(own)
        others[..., 0] = False
        first = tf.reduce_max(tf.where(others, NO_CHOICE, logits), axis=2, keepdims=True)
        logits = tf.concat([first, tf.where(own, logits, NO_CHOICE)[..., 1:]], axis=2)
    return tf.transpose(tf.cast(tf.argmax(logits, axis=2, output_type=tf.int64), tf.float32))


def _means(actors: Sequence[Actor], x: Any) -> Any:
    """[B, sum of outputs] means, out of [n, B, widest]."""
    outputs = [actor.outputs for actor in actors]
    widest = max(outputs)
    x = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, len(actors) * widest])
    if min(outputs) < widest:
        x = tf.gather(x, np.concatenate([row * widest + np.arange(size) for row, size in enumerate(outputs)]), axis=1)
    return x


def _before(sizes: Sequence[int], widest: int) -> NDArray[np.bool_]:
    """[n, 1, widest]: whether a column is one of the member's own."""
    is_own: NDArray[np.bool_] = np.arange(widest) < np.array(sizes)[:, None, None]
    return is_own


def _spread(sizes: Sequence[int], widest: int) -> NDArray[np.int32]:
    """Source column of every column of the padded observations; sum(sizes) is the column of zeros."""
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    columns = np.full((len(sizes), widest), sum(sizes), np.int32)
    for row, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        columns[row, :size] = np.arange(begin, begin + size)
    return columns.reshape(-1)


def _single(k: int, member: FleetActor, observation: Any, variables: Variables) -> Any:
    """The action of a trainer's graph, as in the TL's own model."""
    actor = member.actor
    assert isinstance(actor, GraphActor)
    names = tuple((f"group_{k:04d}/{w.name}", w.values.shape, str(w.values.dtype)) for w in actor.weights)
    return tf.reshape(import_graph(actor.graph, actor.output, names, observation, variables), [-1, member.columns])
