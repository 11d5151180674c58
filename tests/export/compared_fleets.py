"""Fleets whose actions and scores are compared with each member's own in NumPy."""

import numpy as np
import tensorflow as tf

from export.fleets import fleet_graph
from export.saved_model.write import Variables


def is_clear(scores, margin):
    """bool [rows]: the best of scores [rows, n] is that much above the others."""
    top = np.sort(scores, 1)
    return top[:, -1] - top[:, -2] > margin if scores.shape[1] > 1 else np.ones(len(scores), bool)


class Given(Variables):
    """Variables with given values; each is read once."""

    def __init__(self, weights):
        self.values = {weight.name: weight.values for weight in weights}

    def read(self, name, shape, dtype=tf.float32):
        values = self.values.pop(name)
        assert tuple(shape) == values.shape
        return tf.constant(values)


def compare_fleet(members, observations):
    """Compare a fleet's outputs with each member's own; return its groups. `observations`: by TL, float32 [rows, O]."""
    groups = fleet_graph.group_members(members)
    ordered = [member for group in groups for member in group.members]
    assert sorted(member.tl for member in ordered) == sorted(member.tl for member in members)
    variables = Given(fleet_graph.weights(groups))
    x = tf.constant(np.concatenate([observations[m.tl] for m in ordered], 1))
    outputs = {key: output.numpy() for key, output in fleet_graph.build(groups, x, variables).items()}
    assert not variables.values, "every weight is used"
    assert ("scores" in outputs) == any(member.categorical for member in ordered)
    actions, column, score = outputs["action"], 0, 0
    for member in ordered:
        own = member.actor.evaluate(observations[member.tl], member.categorical)
        found = actions[:, column : column + member.columns]
        if member.categorical:
            clear = is_clear(own, 1e-4)
            assert (found[:, 0] == own.argmax(1))[clear].all() and clear.any()
            np.testing.assert_allclose(outputs["scores"][:, score : score + own.shape[1]], own, atol=1e-4)
            score += own.shape[1]
        else:
            np.testing.assert_allclose(found, own, atol=1e-5)
        column += member.columns
    assert column == actions.shape[1] and score == (outputs["scores"].shape[1] if score else 0)
    return groups
