"""PPO on problems whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.training.contracts import contract
from training.actor_critics import ActorCritics, layouts
from training.ppo import MAX_GRADIENT_NORM, Learner, clipped_by_row
from training.ppo_config import SHARP_FROM, PpoConfig
from training.statistics import TRAIN, NotFinite, UpdateStatistics, combined, explained_variance
from training.transitions import Batch, RewardScale, Transitions, make_batch


def learner(*contracts, **settings):
    (layout,) = layouts(contracts, False, (16,))
    return Learner(
        ActorCritics(layout, ActorCritics.initial_arrays(layout, np.random.default_rng(1))), PpoConfig(**settings)
    )


def rounds(own, reward_of, count, size=64):
    """Train on single decisions, whose reward is `reward_of(row, x, action)`."""
    networks, rng = own.networks, np.random.default_rng(5)
    for k in range(count):
        networks.sharpness = PpoConfig().sharpness(k / count)
        batches = []
        for row in range(networks.layout.row_count):
            x = np.zeros((size, max(networks.layout.observation_sizes)), np.float32)
            x[:, : networks.layout.observation_sizes[row]] = rng.integers(
                0, 2, (size, networks.layout.observation_sizes[row])
            )
            rows = np.full(size, row)
            action, log_p = networks.sample(rows, x, rng)
            reward = np.array([reward_of(row, *pair) for pair in zip(x, action, strict=True)], np.float32)
            advantage = reward - reward.mean()
            batches.append(Batch(x, action, log_p, advantage / (advantage.std() + 1e-6), reward, 0 * reward))
        own.learn(batches, rng, k / count)


def test_every_row_learns_the_better_action_of_its_own_observations():
    own = learner(contract("A", 1, 2), contract("B", 2, 3), learning_rate=3e-3)
    rounds(own, lambda row, x, action: float(action[0] == (x[0] if row == 0 else x[0] + x[1])), 80, 128)
    networks = own.networks
    assert [networks.greedy_actions(np.array([0]), np.array([[x, 0]], np.float32))[0, 0] for x in (0, 1)] == [0, 1]
    second = [
        networks.greedy_actions(np.array([1]), np.array([pair], np.float32))[0, 0] for pair in ((0, 0), (0, 1), (1, 1))
    ]
    assert second == [0, 1, 2]
    value = networks.critic(np.array([0]), np.array([[0, 0]], np.float32))
    assert value == pytest.approx(1, abs=0.2), "the critic has learned what it earns"


def test_continuous_actions_move_to_the_better_number():
    own = learner(contract("A", 1, 2, "gro", "sappo"), learning_rate=3e-3)
    wanted = np.array([0.6, -0.4])
    rounds(own, lambda row, x, action: -float(((np.clip(action, -1, 1) - wanted) ** 2).sum()), 60, 128)
    assert own.networks.greedy_actions(np.array([0]), np.zeros((1, 1), np.float32))[0] == pytest.approx(
        wanted, abs=0.15
    )
    assert (own.networks.arrays[-1] < -0.7).all(), "it explores less than at first"


def test_update_is_traced_once_for_every_number_of_decisions():
    own = learner(contract("A", 1, 2), contract("B", 2, 3))
    own.trace()
    for size in (8, 200):
        rounds(own, lambda row, x, action: float(action[0]), 1, size)
    assert own._run.experimental_get_tracing_count() == 1


def test_row_without_decisions_keeps_its_weights_also_after_it_has_learned():
    own = learner(contract("A", 1, 2), contract("B", 1, 2))
    rounds(own, lambda row, x, action: float(action[0]), 2)
    before = [array.copy() for array in own.networks.arrays]
    x = np.ones((8, 1), np.float32)
    action, log_p = own.networks.sample(np.zeros(8, int), x, np.random.default_rng(1))
    batch = Batch(
        x, action, log_p, np.linspace(-1, 1, 8, dtype=np.float32), np.ones(8, np.float32), np.zeros(8, np.float32)
    )
    own.learn([batch, None], np.random.default_rng(1), 0)
    assert any(not np.array_equal(old[0], new[0]) for old, new in zip(before, own.networks.arrays, strict=True))
    for old, new in zip(before, own.networks.arrays, strict=True):
        np.testing.assert_array_equal(old[1], new[1])


def test_row_learns_the_same_beside_a_row_with_more_decisions():
    """With 8 decisions alone, and beside a row of 500: its updates are its own."""
    rng = np.random.default_rng(4)
    small = Batch(
        rng.random((8, 1), np.float32), np.zeros((8, 1), np.float32), np.full(8, -0.7, np.float32),
        rng.normal(size=8).astype(np.float32), rng.random(8, np.float32), np.zeros(8, np.float32),
    )  # fmt: skip
    large = Batch(
        rng.random((500, 1), np.float32), np.zeros((500, 1), np.float32), np.full(500, -0.7, np.float32),
        rng.normal(size=500).astype(np.float32), rng.random(500, np.float32), np.zeros(500, np.float32),
    )  # fmt: skip
    results = []
    for other in (small, large):
        own = learner(contract("A", 1, 2), contract("B", 1, 2))
        own.learn([small, other], np.random.default_rng(1), 0)
        results.append([array[0] for array in own.networks.arrays])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_one_step_is_clipped_ppo_with_adam():
    """The first step of Adam moves every weight by the learning rate against the sign of its gradient."""
    own = learner(contract("A", 1, 2), epochs=1, entropy=0.0, learning_rate=1e-3)
    x, action = np.ones((4, 1), np.float32), np.array([[0], [0], [1], [1]], np.float32)
    before = [array.copy() for array in own.networks.arrays]
    _, log_p = own.networks.sample(np.zeros(4, int), x, np.random.default_rng(1))
    y = own.networks.actor(np.zeros(4, int), x)
    log_p = (y - np.log(np.exp(y).sum(1, keepdims=True)))[np.arange(4), action[:, 0].astype(int)]
    # the ratio of the last decision is beyond the clip, in the direction of its advantage: it has no gradient
    old = log_p - np.array([0, 0, 0, 0.5], np.float32)
    advantage = np.array([1, 1, -1, 50], np.float32)
    zeros = np.zeros(4, np.float32)
    own.learn([Batch(x, action, old.astype(np.float32), advantage, zeros, zeros)], np.random.default_rng(1), 0)
    moved = own.networks.arrays[3][0] - before[3][0]
    np.testing.assert_allclose(moved, [1e-3, -1e-3], rtol=1e-2)


def test_nan_ends_the_training_and_leaves_the_last_good_weights():
    own = learner(contract("A", 1, 2))
    before = [array.copy() for array in own.networks.arrays]
    x, zeros = np.zeros((4, 1), np.float32), np.zeros(4, np.float32)
    with pytest.raises(NotFinite):
        own.learn([Batch(x, x, zeros, np.full(4, np.nan, np.float32), zeros, zeros)], np.random.default_rng(1), 0)
    for old, new in zip(before, own.networks.arrays, strict=True):
        np.testing.assert_array_equal(old, new)


def test_restored_learner_continues_to_the_same_numbers():
    first, second = (learner(contract("A", 1, 2)) for _ in range(2))
    rounds(first, lambda row, x, action: float(action[0]), 3)
    second.restore(first.state())
    for own in (first, second):
        rounds(own, lambda row, x, action: float(action[0]), 2)
    for a, b in zip(first.networks.arrays, second.networks.arrays, strict=True):
        np.testing.assert_array_equal(a, b)


def test_advantages_are_discounted_sums_of_temporal_differences():
    reward, value = np.array([1.0, 2.0, 3.0, 9.0], np.float32), np.array([0.5, 0.4, 0.3, 0.2], np.float32)
    empty = np.zeros((4, 1), np.float32)
    one = Transitions(empty, empty, empty[:, 0], value, reward, empty[:, 0])
    batch = make_batch([one], 2.0, 0.9, 0.8)
    delta = 2 * reward[:3] + 0.9 * value[1:] - value[:3]
    advantage = [delta[0] + 0.72 * (delta[1] + 0.72 * delta[2]), delta[1] + 0.72 * delta[2], delta[2]]
    np.testing.assert_allclose(batch.target, advantage + value[:3], rtol=1e-5)
    np.testing.assert_allclose(batch.advantage, (advantage - np.mean(advantage)) / np.std(advantage), rtol=1e-4)
    assert make_batch([], 1.0, 0.9, 0.8) is None


def test_rewards_are_scaled_by_the_spread_of_their_sums():
    rng = np.random.default_rng(1)
    reward = rng.normal(0, 7, 4000).astype(np.float32)
    empty = np.zeros((4000, 1), np.float32)
    scale = RewardScale(gamma=0.0)
    assert scale.update([Transitions(empty, empty, empty[:, 0], empty[:, 0], reward, empty[:, 0])]) == pytest.approx(
        1 / 7, rel=0.05
    )
    assert RewardScale(0.9).update([]) == 1.0


def test_reward_scale_is_an_exponential_average_over_updates():
    scale, empty = RewardScale(gamma=0.0), np.zeros((3, 1), np.float32)

    def update(reward):
        return scale.update(
            [Transitions(empty, empty, empty[:, 0], empty[:, 0], np.array(reward, np.float32), empty[:, 0])]
        )

    update([-1, 1, 0])
    assert scale.variance == 1.0, "the first update counts whole"
    assert update([-300, 300, 0]) == pytest.approx(1 / np.sqrt(0.9 * 1 + 0.1 * 90_000))


def test_episodes_of_a_batch_are_discounted_apart():
    rng = np.random.default_rng(1)

    def episode(count):
        numbers = rng.normal(size=(2, count)).astype(np.float32)
        empty = np.zeros((count, 1), np.float32)
        return Transitions(empty, empty, empty[:, 0], *numbers, empty[:, 0])

    episodes = [episode(4), episode(1), episode(6)]
    apart = [make_batch([each], 1.0, 0.9, 0.8) for each in episodes]
    assert apart[1] is None, "one decision has no following value"
    together = make_batch(episodes, 1.0, 0.9, 0.8)
    np.testing.assert_array_equal(together.target, np.concatenate([apart[0].target, apart[2].target]))


@pytest.mark.parametrize(("entropy", "spreads"), [(1.0, True), (-1.0, False)])
def test_entropy_bonus_spreads_the_probabilities(entropy, spreads):
    """Without any advantage only the bonus acts."""
    own = learner(contract("A", 1, 2), entropy=entropy, learning_rate=1e-2)
    own.networks.arrays[3][0] = [0.5, -0.5]
    own.restore([*own.networks.arrays, *own.state()[len(own.networks.arrays) :]])
    x, zeros = np.ones((64, 1), np.float32), np.zeros(64, np.float32)

    def gap():
        return float(-np.diff(own.networks.actor(np.zeros(1, int), x[:1]))[0, 0])

    before = gap()
    for _ in range(5):
        action, log_p = own.networks.sample(np.zeros(64, int), x, np.random.default_rng(2))
        own.learn([Batch(x, action, log_p, zeros, zeros, zeros)], np.random.default_rng(1), 0)
    assert (gap() < before) is spreads and gap() != before


def test_gradients_are_clipped_row_by_row():
    rng = np.random.default_rng(1)
    gradients = [rng.normal(size=(3, 4, 5)).astype(np.float32), rng.normal(size=(3, 5)).astype(np.float32)]
    for gradient in gradients:
        gradient[0] *= 100
        gradient[1] *= 1e-3
    clipped, norms = clipped_by_row([tf.constant(gradient) for gradient in gradients])
    clipped = [each.numpy() for each in clipped]

    def norm(arrays, row):
        return np.sqrt(sum((array[row] ** 2).sum() for array in arrays))

    assert norm(clipped, 0) == pytest.approx(MAX_GRADIENT_NORM) and norm(clipped, 2) == pytest.approx(MAX_GRADIENT_NORM)
    np.testing.assert_allclose(norms, [norm(gradients, row) for row in range(3)], rtol=1e-5)
    for before, after in zip(gradients, clipped, strict=True):
        np.testing.assert_array_equal(before[1], after[1])
        np.testing.assert_allclose(after[0] * norm(gradients, 0), before[0] * MAX_GRADIENT_NORM, rtol=1e-4)


def test_sharpness_rises_to_its_end_and_is_what_the_actor_learns_with():
    ppo = PpoConfig()
    assert ppo.sharpness(0) == 1 and ppo.sharpness(SHARP_FROM / 2) == pytest.approx(ppo.final_sharpness**0.5)
    assert ppo.sharpness(SHARP_FROM) == pytest.approx(ppo.final_sharpness) == ppo.sharpness(1)
    own = learner(contract("A", 1, 2), epochs=1, minibatch=64, learning_rate=1e-3)
    own.networks.arrays[3][0] = [0.1, -0.1]
    own.restore([*own.networks.arrays, *own.state()[len(own.networks.arrays) :]])
    own.networks.sharpness = ppo.sharpness(1)
    x = np.ones((64, 1), np.float32)
    action, log_p = own.networks.sample(np.zeros(64, int), x, np.random.default_rng(2))
    advantage = np.linspace(-1, 3, 64, dtype=np.float32)
    zeros = np.zeros(64, np.float32)
    learned = own.learn([Batch(x, action, log_p, advantage, zeros, zeros)], np.random.default_rng(1), 1)
    # every ratio is 1 in the first step: the actor that learns is the one that acted
    assert learned.policy_gradient_loss == pytest.approx(-advantage.mean(), abs=1e-5)
    assert own.networks.layers_of("A")[-1][1] == pytest.approx(10 * own.networks.arrays[3][0])


def decisions(own, count, seed=3):
    """A batch of every row, of its own policy's actions and with random advantages."""
    rng, layout, batches = np.random.default_rng(seed), own.networks.layout, []
    for row in range(layout.row_count):
        x = np.zeros((count, max(layout.observation_sizes)), np.float32)
        x[:, : layout.observation_sizes[row]] = rng.random((count, layout.observation_sizes[row]))
        action, log_p = own.networks.sample(np.full(count, row), x, rng)
        advantage, target, value = (rng.normal(size=count).astype(np.float32) for _ in range(3))
        batches.append(Batch(x, action, log_p, advantage, target, value))
    return batches


def test_weights_are_those_of_the_release_without_statistics():
    """Sums of the arrays' absolute values after three updates with the defaults, before statistics and target_kl were
    added."""
    own = learner(contract("A", 2, 3), contract("B", 3, 2))
    rounds(own, lambda row, x, action: float(action[0] == x[0]), 3)
    expected = [22.080065, 0.30161877, 1.0997038, 0.078555397, 22.963067, 0.34909847, 6.184751, 0.032657273, 4.1999999]
    np.testing.assert_allclose([np.abs(array).sum() for array in own.networks.arrays], expected, rtol=1e-5)
    own = learner(contract("A", 2, 2, "gro", "sappo"))
    rounds(own, lambda row, x, action: -float(abs(action).sum()), 3)
    expected = [
        8.4163106,
        0.13199494,
        0.31216268,
        0.025770846,
        8.9768208,
        0.18983165,
        3.1613475,
        0.016412001,
        1.4322833,
    ]
    np.testing.assert_allclose([np.abs(array).sum() for array in own.networks.arrays], expected, rtol=1e-5)


@pytest.mark.slow
def test_target_kl_that_is_never_reached_changes_nothing():
    unset, unreached = (learner(contract("A", 2, 3), contract("B", 3, 2), target_kl=target) for target in (None, 10.0))
    for own in (unset, unreached):
        own.learn(decisions(own, 300), np.random.default_rng(1), 0.5)
    for a, b in zip(unset.networks.arrays, unreached.networks.arrays, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_target_kl_ends_the_update_of_a_row_alone():
    """The first row's advantages drive its policy away from the old one; the second row's policy does not change."""
    results = []
    for target in (None, 0.001):
        own = learner(
            contract("A", 2, 3), contract("B", 3, 2), target_kl=target, epochs=20, learning_rate=1e-2, entropy=0.0
        )
        first, second = decisions(own, 64)
        second.advantage[:] = 0
        statistics = own.learn([first, second], np.random.default_rng(1), 0)
        results.append(([array.copy() for array in own.networks.arrays], own.state()[-1], statistics))
    (free, free_steps, without), (stopped, stopped_steps, limited) = results
    assert free_steps.tolist() == [20, 20] and 1 <= stopped_steps[0] < 20 == stopped_steps[1]
    assert limited.approx_kl < without.approx_kl
    for a, b in zip(free, stopped, strict=True):
        np.testing.assert_allclose(a[1], b[1], atol=1e-6)
    assert not np.allclose(free[0][0], stopped[0][0])


@pytest.mark.parametrize("kind", ["categorical", "gro"])
def test_statistics_of_an_update_are_means_over_its_decisions(kind):
    """Two rows with unequal numbers of decisions, one step each: recomputed with NumPy."""
    dialects = ("A", 2, 3), ("B", 3, 2)
    own = learner(
        *(contract(*sizes, kind, "sumo-rl" if kind == "categorical" else "sappo") for sizes in dialects), epochs=1
    )
    first, second = decisions(own, 64)
    second = Batch(*(getattr(second, name)[:16] for name in second.__dataclass_fields__))
    parts = []
    for row, batch in enumerate((first, second)):
        # another policy has chosen the actions
        ratio = np.exp(np.random.default_rng(row).normal(0, 0.2, len(batch.log_p)))
        batch.log_p[:] -= np.log(ratio)
        rows = np.full(len(batch.x), row)
        y, value = own.networks.actor(rows, batch.x), own.networks.critic(rows, batch.x)
        if kind == "categorical":
            log_p = y - np.log(np.exp(y).sum(1, keepdims=True))
            entropy = -(np.exp(log_p) * log_p).sum(1).mean()
        else:
            entropy = dialects[row][2] * (-0.7 + 0.5 * np.log(2 * np.pi * np.e))
        gain = np.minimum(ratio * batch.advantage, np.clip(ratio, 0.8, 1.2) * batch.advantage)
        kl, share = (ratio - 1 - np.log(ratio)).mean(), (np.abs(ratio - 1) > 0.2).mean()
        parts.append([kl, share, -entropy, -gain.mean(), ((value - batch.target) ** 2).mean()])
    statistics = own.learn([first, second], np.random.default_rng(1), 0)
    kl, share, entropy_loss, policy_loss, value_loss = np.average(parts, 0, [64, 16])
    assert statistics.decisions == 80
    np.testing.assert_allclose(
        [statistics.approx_kl, statistics.clip_fraction, statistics.entropy_loss, statistics.policy_gradient_loss],
        [kl, share, entropy_loss, policy_loss],
        rtol=1e-3,
    )
    assert statistics.value_loss == pytest.approx(value_loss, rel=1e-4)
    assert statistics.actor_gradient_norm > 0 and statistics.critic_gradient_norm > 0


def test_explained_variance_is_1_of_a_perfect_critic_and_0_of_a_constant_one():
    target = np.array([1, 2, 4], np.float32)
    assert explained_variance([(target, target)]) == 1
    assert explained_variance([(np.ones(3, np.float32), target)]) == pytest.approx(0)
    assert explained_variance([(-target, target)]) == pytest.approx(-3)
    assert np.isnan(explained_variance([(target, np.ones(3, np.float32))]))
    # a network of small targets does not count more than its variance
    assert explained_variance([(target, target), (np.zeros(3, np.float32), 0.01 * target)]) == pytest.approx(
        1, abs=1e-3
    )


def test_statistics_of_several_networks_count_by_their_decisions():
    small, large = (UpdateStatistics(count, *[float(k)] * 8) for count, k in ((1, 1), (3, 2)))
    assert combined([small, large]) == dict.fromkeys(TRAIN, 1.75)
    undefined = replace(small, explained_variance=float("nan"))
    assert combined([undefined, large])["train/explained_variance"] == 2 and combined([]) == {}


def test_learning_rate_falls_linearly_or_is_constant():
    linear, constant = PpoConfig(), PpoConfig(learning_rate_schedule="constant")
    assert [linear.learning_rate_at(x) for x in (0, 0.5, 1)] == pytest.approx([1e-3, 0.525e-3, 0.05e-3])
    assert [constant.learning_rate_at(x) for x in (0, 0.5, 1)] == [1e-3] * 3
    assert linear.entropy_at(1) == constant.entropy_at(1) == pytest.approx(0.0005)
