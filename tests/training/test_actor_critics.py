"""Actors and critics in one array per layer: the same numbers as each TL's own networks."""

import numpy as np
import pytest

from tests.training.contracts import contract
from training.actor_critics import ActorCritics, layouts


def evaluated(layers, x):
    for kernel, bias in layers[:-1]:
        x = np.maximum(x @ kernel + bias, 0)
    return x @ layers[-1][0] + layers[-1][1]


def networks(*contracts, shared=False):
    (layout,) = layouts(contracts, shared, (8, 6))
    return ActorCritics(layout, ActorCritics.initial_arrays(layout, np.random.default_rng(1)))


def test_padded_arrays_give_each_tls_own_outputs():
    both = networks(contract("A", 3, 2), contract("B", 5, 4))
    rng = np.random.default_rng(2)
    observations = [rng.random(3, np.float32), rng.random(5, np.float32)]
    rows = both.rows_of(["A", "B"])
    y = both.actor(rows, both.inputs_of(observations, rows))
    for k, (tl, size) in enumerate((("A", 2), ("B", 4))):
        np.testing.assert_allclose(y[k, :size], evaluated(both.layers_of(tl), observations[k]), atol=1e-6)
        assert (y[k, size:] < -1e8).all(), "what is padding is never chosen"
    (one,) = both.actor(rows[1:], both.inputs_of(observations[1:], rows[1:]))
    np.testing.assert_allclose(one, y[1], atol=1e-6)


def test_sampled_actions_have_the_softmax_probabilities():
    only = networks(contract("A", 3, 2), contract("B", 3, 3))
    only.arrays[5][:] = [[0.0, 1.0, 0.0], [0.0, 1.0, 2.0]]  # biases of the logits
    rows, x = only.rows_of(["A", "B"] * 20_000), np.zeros((40_000, 3), np.float32)
    actions, log_p = only.sample(rows, x, np.random.default_rng(3))
    for row, logits in ((0, [0.0, 1.0]), (1, [0.0, 1.0, 2.0])):
        expected = np.exp(logits) / np.exp(logits).sum()
        chosen = actions[rows == row, 0].astype(int)
        np.testing.assert_allclose(np.bincount(chosen, minlength=len(logits)) / len(chosen), expected, atol=0.02)
        np.testing.assert_allclose(np.exp(log_p[rows == row]), expected[chosen], rtol=1e-4)
    assert (only.greedy_actions(rows, x)[:2] == [[1], [2]]).all()


def test_continuous_actions_are_gaussian_around_the_mean():
    only = networks(contract("A", 3, 2, "gro", "sappo"))
    only.arrays[5][:] = [[0.5, -1.0]]
    rows, x = only.rows_of(["A"] * 20_000), np.zeros((20_000, 3), np.float32)
    actions, log_p = only.sample(rows, x, np.random.default_rng(3))
    mean, std = np.tanh([0.5, -1.0]), np.exp(-0.7)
    np.testing.assert_allclose(actions.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(actions.std(0), std, atol=0.02)
    np.testing.assert_allclose(log_p, (-0.5 * ((actions - mean) / std) ** 2 - np.log(std)).sum(1), atol=1e-4)
    np.testing.assert_allclose(only.greedy_actions(rows[:1], x[:1]), [mean], atol=1e-6)


def test_tls_of_one_shape_share_a_row():
    (layout,) = layouts([contract("A", 3, 2), contract("B", 3, 2), contract("C", 4, 2)], True, (8,))
    assert layout.rows == (0, 0, 1) and layout.row_count == 2


def test_categorical_and_continuous_tls_are_apart():
    contracts = [contract("A", 3, 2), contract("B", 3, 2, "gr", "sappo"), contract("C", 4, 2)]
    assert [layout.tls for layout in layouts(contracts, False, (8,))] == [("A", "C"), ("B",)]


@pytest.mark.parametrize("size", [(5, 3), (3, 5)])
def test_initial_kernels_are_orthogonal_without_the_padding(size):
    (layout,) = layouts([contract("A", size[0], 2), contract("B", 9, 2)], False, (size[1],))
    kernel = ActorCritics.initial_arrays(layout, np.random.default_rng(1))[0][0]
    assert not kernel[size[0] :].any()
    kernel = kernel[: size[0]]
    product = kernel @ kernel.T if size[0] < size[1] else kernel.T @ kernel
    np.testing.assert_allclose(product, 2 * np.eye(min(size)), atol=1e-5)
