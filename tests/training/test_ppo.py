"""PPO on problems whose answer is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.training.contracts import contract
from tests.training.traced_learners import mlp_learner
from training.actor_critics import ActorCritics, layouts
from training.learning import MlpLearning
from training.mlp_learner import MAX_LOG_STD, make_batch
from training.ppo import Adam, RowAdam, gae, minibatches
from training.settings import SHARP_FROM, PpoConfig, Settings
from training.statistics import TRAIN, UPDATE, NotFinite, cell, combined, explained_variance
from training.transitions import RewardScale, Transitions

A, B = ("A", 1, 2), ("B", 2, 3)
"""TL, size of its observation, number of its actions."""
CONTINUOUS = ("A", 1, 2, "gro", "sappo")


def learner(*tls, **settings):
    (layout,) = layouts([contract(*tl) for tl in tls], False, (16,))
    arrays = ActorCritics.initial_arrays(layout, np.random.default_rng(1))
    own = mlp_learner(layout, arrays, PpoConfig(**settings))
    own.layout = layout
    return own


def acting(own, sharpness=1.0):
    return ActorCritics(own.layout, own.arrays, sharpness)


def sampled(own, row, x, rng, sharpness=1.0):
    return acting(own, sharpness).sample(np.full(len(x), row), x, rng)


def rounds(own, reward_of, count, size=64):
    """Train on single decisions, whose reward is `reward_of(row, x, action)`."""
    rng = np.random.default_rng(5)
    for k in range(count):
        batches = []
        for row, inputs in enumerate(own.layout.observation_sizes):
            x = np.zeros((size, max(own.layout.observation_sizes)), np.float32)
            x[:, :inputs] = rng.integers(0, 2, (size, inputs))
            action, log_p = sampled(own, row, x, rng, PpoConfig().sharpness(k / count))
            reward = np.array([reward_of(row, *pair) for pair in zip(x, action, strict=True)], np.float32)
            advantage = reward - reward.mean()
            batches.append(batch_of(x, action, log_p, advantage / (advantage.std() + 1e-6), reward))
        own.learn(batches, rng, k / count)


def decisions(own, count, seed=3):
    """A batch of every row, of its own policy's actions and with random advantages."""
    rng, batches = np.random.default_rng(seed), []
    for row, inputs in enumerate(own.layout.observation_sizes):
        x = np.zeros((count, max(own.layout.observation_sizes)), np.float32)
        x[:, :inputs] = rng.random((count, inputs))
        action, log_p = sampled(own, row, x, rng)
        batches.append(batch_of(x, action, log_p, *(rng.normal(size=count).astype(np.float32) for _ in range(3))))
    return batches


def batch_of(x, action, log_p, advantage, target, value=None):
    value = np.zeros(len(x), np.float32) if value is None else value
    return {"x": x, "action": action, "log_p": log_p, "advantage": advantage, "target": target, "value": value}


def transitions(reward, value=None):
    empty = np.zeros((len(reward), 1), np.float32)
    value = empty[:, 0] if value is None else np.array(value, np.float32)
    return Transitions(empty, empty, empty[:, 0], value, np.array(reward, np.float32), empty[:, 0])


def test_every_row_learns_the_better_action_of_its_own_observations():
    own = learner(A, B, learning_rate=3e-3)
    rounds(own, lambda row, x, action: float(action[0] == (x[0] if row == 0 else x[0] + x[1])), 80, 128)
    networks = acting(own)
    for row, cases in enumerate(({(0, 0): 0, (1, 0): 1}, {(0, 0): 0, (0, 1): 1, (1, 1): 2})):
        x = np.array(list(cases), np.float32)
        assert networks.greedy_actions(np.full(len(x), row), x)[:, 0].tolist() == list(cases.values())
    value = networks.critic(np.array([0]), np.array([[0, 0]], np.float32))
    assert value == pytest.approx(1, abs=0.2), "the critic has learned what it earns"


def test_continuous_actions_move_to_the_better_number():
    own = learner(CONTINUOUS, learning_rate=3e-3)
    wanted = np.array([0.6, -0.4])
    rounds(own, lambda row, x, action: -float(((np.clip(action, -1, 1) - wanted) ** 2).sum()), 60, 128)
    found = acting(own).greedy_actions(np.array([0]), np.zeros((1, 1), np.float32))
    assert found[0] == pytest.approx(wanted, abs=0.15)
    assert (own.arrays[-1] < -0.7).all(), "it explores less than at first"


def test_spread_of_actions_returns_from_its_bound():
    """Its entropy pushes it up; then a bonus for less entropy pulls it down again."""
    own = learner(CONTINUOUS, ent_coef=1.0, learning_rate=0.5)
    for entropy in (1.0, -1.0):
        own.ppo = replace(own.ppo, ent_coef=entropy)
        own.learn(decisions(own, 64), np.random.default_rng(1), 0)
        assert (own.arrays[-1] == MAX_LOG_STD).all() is np.bool_(entropy > 0)
    assert (own.arrays[-1] < MAX_LOG_STD).all()


def test_update_is_traced_once_for_every_number_of_decisions():
    own = learner(A, B)
    own.trace()
    for size in (8, 200):
        rounds(own, lambda row, x, action: float(action[0]), 1, size)
    assert own._run.experimental_get_tracing_count() == 1


def test_row_without_decisions_keeps_its_weights_also_after_it_has_learned():
    own = learner(A, B)
    rounds(own, lambda row, x, action: float(action[0]), 2)
    before = own.arrays
    own.learn([decisions(own, 8)[0], None], np.random.default_rng(1), 0)
    assert any(not np.array_equal(old[0], new[0]) for old, new in zip(before, own.arrays, strict=True))
    np.testing.assert_equal([array[1] for array in own.arrays], [array[1] for array in before])


def test_row_learns_the_same_beside_a_row_with_more_decisions():
    """With 8 decisions alone, and beside a row of 500: its updates are its own."""
    results = []
    for count in (8, 500):
        own = learner(A, B)
        small, other = decisions(own, 8)[0], decisions(own, count)[1]
        own.learn([small, other], np.random.default_rng(1), 0)
        results.append([array[0] for array in own.arrays])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "max_size", "expected"),
    [([129], 128, [[65], [64]]), ([128], 128, [[128]]), ([5, 0, 2], 2, [[2, 0, 2], [2, 0, 0], [1, 0, 0]])],
)
def test_minibatches_are_even_and_contain_each_decision_once(sizes, max_size, expected):
    indices, weights = minibatches(sizes, max_size, np.random.default_rng(1))
    assert weights.sum(2).tolist() == expected
    for row, size in enumerate(sizes):
        assert sorted(indices[:, row][weights[:, row] > 0]) == list(range(size))


def test_one_step_is_clipped_ppo_with_adam():
    """The first step of Adam moves every weight by the learning rate against the sign of its gradient."""
    own = learner(A, n_epochs=1, ent_coef=0.0, learning_rate=1e-3)
    x, action = np.ones((4, 1), np.float32), np.array([[0], [0], [1], [1]], np.float32)
    before = own.arrays
    y = acting(own).actor(np.zeros(4, int), x)
    log_p = (y - np.log(np.exp(y).sum(1, keepdims=True)))[np.arange(4), action[:, 0].astype(int)]
    # the ratio of the last decision is beyond the clip, in the direction of its advantage: it has no gradient
    old = log_p - np.array([0, 0, 0, 0.5], np.float32)
    advantage, zeros = np.array([1, 1, -1, 50], np.float32), np.zeros(4, np.float32)
    own.learn([batch_of(x, action, old.astype(np.float32), advantage, zeros)], np.random.default_rng(1), 0)
    np.testing.assert_allclose(own.arrays[3][0] - before[3][0], [1e-3, -1e-3], rtol=1e-2)


def test_nan_ends_the_training_and_leaves_the_last_good_weights():
    (layout,) = layouts([contract(*A)], False, (4,))
    own = MlpLearning(layout, Settings(Path()), np.random.default_rng(1))
    before = own.arrays
    with pytest.raises(NotFinite):
        own.learn([{"A": transitions([np.nan, 0, 0])}], np.random.default_rng(1), 0)
    np.testing.assert_equal(own.arrays, before)


def test_advantages_are_discounted_sums_of_temporal_differences():
    reward, value = np.array([1.0, 2.0, 3.0, 9.0], np.float32), np.array([0.5, 0.4, 0.3, 0.2], np.float32)
    ppo = PpoConfig(gamma=0.9, gae_lambda=0.8)
    batch = make_batch([transitions(reward, value)], 2.0, ppo)
    delta = 2 * reward[:3] + 0.9 * value[1:] - value[:3]
    advantage = [delta[0] + 0.72 * (delta[1] + 0.72 * delta[2]), delta[1] + 0.72 * delta[2], delta[2]]
    np.testing.assert_allclose(batch["target"], advantage + value[:3], rtol=1e-5)
    np.testing.assert_allclose(batch["advantage"], (advantage - np.mean(advantage)) / np.std(advantage), rtol=1e-4)
    np.testing.assert_allclose(gae(2 * reward[:3], value, np.ones(3), 0.9, 0.8), advantage)
    assert make_batch([], 1.0, ppo) is None


def test_rewards_are_scaled_by_the_spread_of_their_sums():
    reward = np.random.default_rng(1).normal(0, 7, 4000)
    assert RewardScale(gamma=0.0).update([transitions(reward)]) == pytest.approx(1 / 7, rel=0.05)
    assert RewardScale(0.9).update([]) == 1.0


@pytest.mark.parametrize("first", [0.0, 1000.0])
def test_reward_scale_is_an_average_in_which_the_first_update_counts_no_more_than_another(first):
    """Without traffic, or in congestion."""
    scale = RewardScale(gamma=0.0)
    scale.update([transitions([-first, first, 0])])
    factor = [scale.update([transitions([-1, 1, 0])]) for _ in range(12)][-1]
    share = 0.9**12 * 0.1 / (1 - 0.9**13)
    assert scale.variance == pytest.approx(share * first**2 + 1 - share)
    assert factor == pytest.approx(scale.variance**-0.5, rel=1e-4)


def test_episodes_of_a_batch_are_discounted_apart():
    rng = np.random.default_rng(1)
    episodes = [transitions(*rng.normal(size=(2, count))) for count in (4, 1, 6)]
    apart = [make_batch([each], 1.0, PpoConfig()) for each in episodes]
    assert apart[1] is None, "one decision has no following value"
    together = make_batch(episodes, 1.0, PpoConfig())
    np.testing.assert_array_equal(together["target"], np.concatenate([apart[0]["target"], apart[2]["target"]]))


@pytest.mark.parametrize(("entropy", "spreads"), [(1.0, True), (-1.0, False)])
def test_entropy_bonus_spreads_the_probabilities(entropy, spreads):
    """Without any advantage only the bonus acts."""
    own = learner(A, ent_coef=entropy, learning_rate=1e-2)
    own.variables[3][0].assign([0.5, -0.5])  # the biases of its actor's last layer
    x, zeros = np.ones((64, 1), np.float32), np.zeros(64, np.float32)

    def gap():
        return float(-np.diff(acting(own).actor(np.zeros(1, int), x[:1]))[0, 0])

    before = gap()
    for _ in range(5):
        action, log_p = sampled(own, 0, x, np.random.default_rng(2))
        own.learn([batch_of(x, action, log_p, zeros, zeros)], np.random.default_rng(1), 0)
    assert (gap() < before) is spreads and gap() != before


def test_adam_of_rows_is_keras_adam_for_each_row():
    """With gradients that are clipped, others that are not, and rows that do not learn at each step."""
    rng = np.random.default_rng(1)
    start = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4, 5), (3, 5))]
    stacked = [tf.Variable(array) for array in start]
    apart = [[tf.Variable(array[row]) for array in start] for row in range(3)]
    rows, optimisers = RowAdam(stacked, 0.5), [Adam(variables, 0.5) for variables in apart]
    for own in (rows, *optimisers):
        own.learning_rate.assign(0.1)
    for step in range(5):
        is_active = np.array([1, step % 2, 0], np.float32)
        gradients = [np.float32([[100], [1e-3], [1]]).reshape(-1, *[1] * (array.ndim - 1)) * array for array in start]
        gradients = [gradient * rng.normal(size=gradient.shape).astype(np.float32) for gradient in gradients]
        norms = rows.step([tf.constant(gradient) for gradient in gradients], tf.constant(is_active))
        for k, own in enumerate(optimisers):
            own_norm = own.step([tf.constant(gradient[k]) for gradient in gradients], tf.constant(is_active[k : k + 1]))
            np.testing.assert_allclose(norms[k], own_norm[0], rtol=1e-5)
    for array, variables in zip(stacked, zip(*apart, strict=True), strict=True):
        for row, variable in zip(array.numpy(), variables, strict=True):
            np.testing.assert_allclose(row, variable.numpy(), rtol=1e-5)


def test_sharpness_rises_to_its_end_and_is_what_the_actor_learns_with():
    ppo = PpoConfig()
    assert ppo.sharpness(0) == 1 and ppo.sharpness(SHARP_FROM / 2) == pytest.approx(ppo.final_sharpness**0.5)
    assert ppo.sharpness(SHARP_FROM) == pytest.approx(ppo.final_sharpness) == ppo.sharpness(1)
    own = learner(A, n_epochs=1, minibatch=64, learning_rate=1e-3)
    own.variables[3][0].assign([0.1, -0.1])
    x = np.ones((64, 1), np.float32)
    action, log_p = sampled(own, 0, x, np.random.default_rng(2), ppo.sharpness(1))
    advantage, zeros = np.linspace(-1, 3, 64, dtype=np.float32), np.zeros(64, np.float32)
    learned = own.learn([batch_of(x, action, log_p, advantage, zeros)], np.random.default_rng(1), 1)
    # every ratio is 1 in the first step: the actor that learns is the one that acted
    assert learned["policy_gradient_loss"] == pytest.approx(-advantage.mean(), abs=1e-5)
    assert acting(own, 10).layers_of("A")[-1][1] == pytest.approx(10 * own.arrays[3][0])


def test_weights_are_those_of_the_release_before_the_learners_were_one():
    """Sums of the arrays' absolute values after three updates with the defaults of 0.2."""
    own = learner(("A", 2, 3), ("B", 3, 2), vf_coef=1.0)
    rounds(own, lambda row, x, action: float(action[0] == x[0]), 3)
    expected = [22.080065, 0.30161877, 1.0997038, 0.078555397, 22.963067, 0.34909847, 6.184751, 0.032657273, 4.1999999]
    np.testing.assert_allclose([np.abs(array).sum() for array in own.arrays], expected, rtol=1e-5)
    own = learner(("A", 2, 2, "gro", "sappo"), vf_coef=1.0)
    rounds(own, lambda row, x, action: -float(abs(action).sum()), 3)
    expected = [
        8.4163106, 0.13199494, 0.31216268, 0.025770846, 8.9768208, 0.18983165, 3.1613475, 0.016412001, 1.4322833,
    ]  # fmt: skip
    np.testing.assert_allclose([np.abs(array).sum() for array in own.arrays], expected, rtol=1e-5)


def test_target_kl_ends_the_update_of_a_row_alone():
    """The first row's advantages drive its policy away from the old one; the second row's policy does not change."""
    results = []
    for target in (None, 0.001):
        own = learner(A, B, target_kl=target, n_epochs=20, learning_rate=1e-2, ent_coef=0.0)
        first, second = decisions(own, 64)
        second["advantage"][:] = 0
        statistics = own.learn([first, second], np.random.default_rng(1), 0)
        results.append((own.arrays, own.optimisers[0].variables[-1].numpy(), statistics))
    (free, free_steps, without), (stopped, stopped_steps, limited) = results
    assert free_steps.tolist() == [20, 20] and 1 <= stopped_steps[0] < 20 == stopped_steps[1]
    assert limited["approx_kl"] < without["approx_kl"]
    for a, b in zip(free, stopped, strict=True):
        np.testing.assert_allclose(a[1], b[1], atol=1e-6)
    assert not np.allclose(free[0][0], stopped[0][0])


@pytest.mark.parametrize("kind", [(), ("gro", "sappo")])
def test_statistics_of_an_update_are_means_over_its_decisions(kind):
    """Two rows with unequal numbers of decisions, one step each: recomputed with NumPy."""
    own = learner(("A", 2, 3, *kind), ("B", 3, 2, *kind), n_epochs=1)
    first, second = decisions(own, 64)[0], decisions(own, 16)[1]
    parts = []
    for row, batch in enumerate((first, second)):
        # another policy has chosen the actions
        ratio = np.exp(np.random.default_rng(row).normal(0, 0.2, len(batch["x"])))
        batch["log_p"][:] -= np.log(ratio)
        rows, x = np.full(len(batch["x"]), row), batch["x"]
        y, value = acting(own).actor(rows, x), acting(own).critic(rows, x)
        entropy = own.layout.action_sizes[row] * (-0.7 + 0.5 * np.log(2 * np.pi * np.e))
        if not kind:
            log_p = y - np.log(np.exp(y).sum(1, keepdims=True))
            entropy = -(np.exp(log_p) * log_p).sum(1).mean()
        gain = np.minimum(ratio * batch["advantage"], np.clip(ratio, 0.8, 1.2) * batch["advantage"])
        kl, share = (ratio - 1 - np.log(ratio)).mean(), (np.abs(ratio - 1) > 0.2).mean()
        parts.append([kl, share, -entropy, -gain.mean(), ((value - batch["target"]) ** 2).mean()])
    statistics = own.learn([first, second], np.random.default_rng(1), 0)
    names = ("approx_kl", "clip_fraction", "entropy_loss", "policy_gradient_loss", "value_loss")
    assert statistics["decisions"] == 80
    np.testing.assert_allclose([statistics[name] for name in names], np.average(parts, 0, [64, 16]), rtol=1e-3)
    assert statistics["actor_gradient_norm"] > 0 and statistics["critic_gradient_norm"] > 0


def test_explained_variance_is_1_of_a_perfect_critic_and_0_of_a_constant_one():
    target, ones = np.array([1, 2, 4], np.float32), np.ones(3, np.float32)
    assert explained_variance([(target, target)]) == 1
    assert explained_variance([(ones, target)]) == pytest.approx(0)
    assert explained_variance([(-target, target)]) == pytest.approx(-3)
    assert np.isnan(explained_variance([(target, ones)]))
    # a network of small targets does not count more than its variance
    assert explained_variance([(target, target), (0 * ones, 0.01 * target)]) == pytest.approx(1, abs=1e-3)


def test_statistics_of_several_networks_count_by_their_decisions():
    small, large = ({"decisions": count, **dict.fromkeys(UPDATE, k)} for count, k in ((1, 1.0), (3, 2.0)))
    assert combined([small, large]) == dict.fromkeys(TRAIN, 1.75)
    undefined = {**small, "explained_variance": np.nan}
    assert combined([undefined, large])["train/explained_variance"] == 2 and combined([]) == {}


def test_learning_rate_falls_linearly_or_is_constant():
    linear, constant = PpoConfig(), PpoConfig(learning_rate_schedule="constant")
    assert [linear.learning_rate_at(x) for x in (0, 0.5, 1)] == pytest.approx([1e-3, 0.525e-3, 0.05e-3])
    assert [constant.learning_rate_at(x) for x in (0, 0.5, 1)] == [1e-3] * 3
    assert linear.entropy_at(1) == constant.entropy_at(1) == pytest.approx(0.0005)


def test_cells_of_the_curve_have_whole_counts_and_6_digits():
    assert [cell(value) for value in (1_234_567, 12.34567891, None, float("nan"))] == ["1234567", "12.3457", "", ""]
