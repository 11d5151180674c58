"""The graph of a fleet: actors of the same shape are stacked and multiplied at once.

Stacked weights are [n, ...] with one row per TL. An observation [B, n * O] is
split into [n, B, O], multiplied in batches, and the actions are concatenated. So are
the scores of categorical actors, which a run for the actions alone leaves out.
An operation costs the same few microseconds for one TL as for a thousand.
Therefore similar shapes are padded with zeros, if reading the padding costs less
than the operations of another group.
"""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from export.actors import Actor, GraphActor, Weight, weight_name
from export.actors.steps import FirstChoice
from export.saved_model.write import Variables, import_graph
from serving.contract import ACTION, Q_VALUES, SCORES

MAX_PADDING_BYTES = 1_000_000
"""Padding that costs as much as one more group's operations (0.1 to 0.2 ms on 2 cores: `python -m
benchmarks.fleet_groups`)."""
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

    @property
    def score_columns(self) -> int:
        """Columns of the fleet's scores."""
        return self.actor.outputs if self.categorical else 0


@dataclass(frozen=True)
class Group:
    """Members that are multiplied at once; a single member if its actor is a trainer's graph."""

    members: tuple[FleetActor, ...]

    @property
    def stacked(self) -> bool:
        return isinstance(self.members[0].actor, Actor)


Shapes = tuple[tuple[int, ...], ...]


def group_members(members: Sequence[FleetActor]) -> list[Group]:
    """Group members by shape, and merge shapes if padding costs less than a group; members keep their order in a
    group."""
    by_operations: dict[Hashable, dict[Shapes, list[int]]] = {}
    graphs = []
    for k, member in enumerate(members):
        if not isinstance(member.actor, Actor):
            graphs.append(Group((member,)))
            continue
        operations = (member.categorical, *(step.operation for step in member.actor.steps))
        shapes = tuple(shape for step in member.actor.steps for shape in step.padding_shapes)
        by_operations.setdefault(operations, {}).setdefault(shapes, []).append(k)
    stacks = [stack for by_shapes in by_operations.values() for stack in _merge(by_shapes)]
    return [Group(tuple(members[k] for k in sorted(stack))) for stack in stacks] + graphs


def _merge(by_shapes: dict[Shapes, list[int]]) -> list[list[int]]:
    """Members with equal operations: merge similar shapes, the most similar first."""
    groups = sorted(by_shapes.items())
    while len(groups) > 1:
        least, k = min((_padding(*pair), k) for k, pair in enumerate(itertools.pairwise(groups)))
        if least > MAX_PADDING_BYTES:
            break
        (first_shapes, first_members), (second_shapes, second_members) = groups[k : k + 2]
        groups[k : k + 2] = [(_enclosing(first_shapes, second_shapes), first_members + second_members)]
    return [members for _, members in groups]


def _enclosing(first: Shapes, second: Shapes) -> Shapes:
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(first, second, strict=True))


def _padding(first: tuple[Shapes, list[int]], second: tuple[Shapes, list[int]]) -> int:
    """Bytes of zeros that merging two groups adds."""
    size = _elements(_enclosing(first[0], second[0]))
    return 4 * sum(len(members) * (size - _elements(shapes)) for shapes, members in (first, second))


def _elements(shapes: Shapes) -> int:
    return sum(a * b for a, b in shapes)


def build(groups: Sequence[Group], observation: Any, variables: Variables) -> dict[str, Any]:
    """The outputs of a fleet, in the order of its groups and their members.

    `action` [B, sum of A]; if a member is categorical, `scores` [B, sum of n] too: probabilities or q-values.
    """
    begin, actions, scores = 0, [], []
    for k, group in enumerate(groups):
        width = sum(member.actor.inputs for member in group.members)
        columns = observation[:, begin : begin + width]
        begin += width
        act = _stacked if group.stacked else _single
        action, *more = act(k, group.members, columns, variables)
        actions.append(action)
        scores += more
    outputs = {ACTION: actions, SCORES: scores}
    return {key: tf.concat(parts, axis=1) if len(parts) > 1 else parts[0] for key, parts in outputs.items() if parts}


def weights(groups: Sequence[Group]) -> list[Weight]:
    """The fleet's variables, stacked, in order of their names."""
    variables = []
    for k, group in enumerate(groups):
        if group.stacked:
            for j, part, is_matrix, arrays in _parts(group.members):
                name = f"group_{k:04d}/{weight_name(j, part)}"
                variables.append(Weight(name, f"{len(group.members)} TLs", _stack(is_matrix, arrays)))
        else:
            variables += [
                Weight(f"group_{k:04d}/{w.name}", w.stored_as, w.values) for w in group.members[0].actor.weights
            ]
    return sorted(variables, key=lambda weight: weight.name)


def _parts(members: Sequence[FleetActor]) -> Iterator[tuple[int, str, bool, list[NDArray[np.float32]]]]:
    """(step, part, whether it is stacked as a matrix, every member's array) of stacked members.

    One array if all members have the same: a policy that TLs share is stored once.
    """
    actors = [member.actor for member in members if isinstance(member.actor, Actor)]
    for j, step in enumerate(actors[0].steps):
        for part in step.weights:
            arrays = [actor.steps[j].weights[part] for actor in actors]
            is_shared = all(np.array_equal(array, arrays[0]) for array in arrays[1:])
            yield j, part, part in step.matrices, arrays[:1] if is_shared else arrays


def _stack(is_matrix: bool, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Kernels as [n, in, out], vectors as [n, 1, units]; padding with 0 does not change an action."""
    stacked = np.zeros(_stacked_shape(is_matrix, arrays), np.float32)
    for row, array in zip(stacked, arrays, strict=True):
        row[(..., *(slice(size) for size in array.shape))] = array
    return stacked


def _stacked_shape(is_matrix: bool, arrays: Sequence[NDArray[np.float32]]) -> tuple[int, ...]:
    widest = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    return (len(arrays), *widest) if is_matrix else (len(arrays), 1, *widest)


def _stacked(k: int, members: Sequence[FleetActor], observation: Any, variables: Variables) -> list[Any]:
    """[action], or [action, scores] of a categorical group."""
    actors = [member.actor for member in members if isinstance(member.actor, Actor)]
    shapes = {(j, part): _stacked_shape(is_matrix, arrays) for j, part, is_matrix, arrays in _parts(members)}
    x = _split(actors, observation)
    branches: list[Any] = []
    for j, step in enumerate(actors[0].steps):
        weights = {
            part: variables.read(f"group_{k:04d}/{weight_name(j, part)}", shapes[j, part]) for part in step.weights
        }
        x = step.build_stacked(x, weights.get, branches)
    if not members[0].categorical:
        return [_unpadded(actors, x)]
    logits = _logits(actors, x)
    choices = tf.cast(tf.argmax(logits, axis=2, output_type=tf.int64), tf.float32)
    return [tf.transpose(choices), _unpadded(actors, _scores(actors, logits))]


def _split(actors: Sequence[Actor], observation: Any) -> Any:
    """[B, sum of inputs] observations as [n, B, widest], padded with zeros."""
    sizes = [actor.inputs for actor in actors]
    first_steps = [actor.steps[0] for actor in actors]
    own_columns = [step.fleet_columns(first_steps) for step in first_steps]
    if own_columns[0] is None:
        # a shared policy may have more inputs than any of its TLs' observations
        widest = max(actor.dense[0].inputs for actor in actors)
        own_columns = [np.arange(widest, dtype=np.int32)] * len(actors)
    # the source of each column [n, widest]; column sum(sizes) holds zeros
    own, size = np.array(own_columns), np.array(sizes, np.int32)[:, None]
    columns = np.where(own < size, np.cumsum(size)[:, None] - size + own, sum(sizes)).astype(np.int32)
    if columns.size > sum(sizes):
        observation = tf.gather(tf.pad(observation, [[0, 0], [0, 1]]), columns.reshape(-1), axis=1)
    return tf.transpose(tf.reshape(observation, [-1, *columns.shape]), [1, 0, 2])


def _logits(actors: Sequence[Actor], logits: Any) -> Any:
    """[n, B, widest] logits with NO_CHOICE in padded columns, and with the first choice of policies that TLs share."""
    widths = [actor.widths[-1] for actor in actors]
    if min(widths) < max(widths):
        logits = tf.where(_column_mask(widths, max(widths)), logits, NO_CHOICE)
    if isinstance(actors[0].steps[-1], FirstChoice):
        # as FirstChoice: the first choice takes the maximum of itself and of those beyond the TL's
        valid = _column_mask([actor.outputs for actor in actors], max(widths))
        valid_except_first = np.array(valid)
        valid_except_first[..., 0] = False
        first = tf.reduce_max(tf.where(valid_except_first, NO_CHOICE, logits), axis=2, keepdims=True)
        logits = tf.concat([first, tf.where(valid, logits, NO_CHOICE)[..., 1:]], axis=2)
    return logits


def _scores(actors: Sequence[Actor], logits: Any) -> Any:
    """[n, B, widest] logits -> the second output of each member's own model: probabilities or q-values."""
    is_q = np.array([actor.scores == Q_VALUES for actor in actors])
    if is_q.all():
        return logits
    probabilities = tf.nn.softmax(logits)
    return tf.where(is_q[:, None, None], logits, probabilities) if is_q.any() else probabilities


def _unpadded(actors: Sequence[Actor], x: Any) -> Any:
    """[n, B, widest] values -> [B, sum of outputs]."""
    outputs = [actor.outputs for actor in actors]
    # a shared policy may have more choices than any of its TLs
    widest = max(actor.widths[-1] for actor in actors)
    x = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, len(actors) * widest])
    if min(outputs) < widest:
        x = tf.gather(x, np.concatenate([row * widest + np.arange(size) for row, size in enumerate(outputs)]), axis=1)
    return x


def _column_mask(sizes: Sequence[int], widest: int) -> NDArray[np.bool_]:
    """[n, 1, widest]: whether a column is one of the first `size` of its member."""
    return np.asarray(np.arange(widest) < np.array(sizes)[:, None, None])


def _single(k: int, members: Sequence[FleetActor], observation: Any, variables: Variables) -> list[Any]:
    """[action], or [action, scores] if it is categorical, of a trainer's graph, as in the TL's own model."""
    (member,) = members
    actor = member.actor
    assert isinstance(actor, GraphActor)
    names = tuple((f"group_{k:04d}/{w.name}", w.values.shape, str(w.values.dtype)) for w in actor.weights)
    tensors = [actor.output, actor.scores_tensor] if actor.scores_tensor else [actor.output]
    outputs = import_graph(actor.graph, tensors, names, observation, variables)
    sizes = (member.columns, member.score_columns)
    return [tf.reshape(output, [-1, size]) for output, size in zip(outputs, sizes, strict=False)]
