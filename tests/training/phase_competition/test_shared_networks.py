"""Networks, batches and learner of the policy for any junction."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.actors.phase_competition import EXIT_BLOCKED, RED, Junction
from pretraining.cloning import clone
from signals.approach_features import FEATURES
from tests.training.traced_learners import street_learner
from training.learning import StreetLearning
from training.phase_competition import batch
from training.phase_competition.networks import StreetLayout, initial_arrays
from training.ppo_config import StreetPpo
from training.settings import Settings
from training.transitions import Transitions

NEAR_SIGHTED = StreetPpo(gamma=0.0001, gae_lambda=0.0)


def junction(greens, lanes, seed=0):
    rng = np.random.default_rng(seed)
    protected = (rng.random((greens, lanes)) < 0.5).astype(np.float32)
    protected[0] = 1
    permissive = np.where(protected > 0, 0, rng.random((greens, lanes)) < 0.3).astype(np.float32)
    square = rng.random((greens, greens)).astype(np.float32)
    following, limits = np.zeros((greens, lanes), np.float32), rng.random((lanes, 2)).astype(np.float32)
    return Junction(protected, permissive, square, square.T, following, limits, np.ones(1, np.float32))


def observation(greens, lanes, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(0, 5, greens + 2 + lanes * len(FEATURES)).astype(np.float32)
    values[:greens] = 0
    values[rng.integers(greens)] = 1
    return values


def arrays(seed=0):
    return initial_arrays(np.random.default_rng(seed))


def learner_with(**settings):
    return street_learner(arrays(), StreetPpo(**settings))


def learn(learner, data, seed=1, progress=0.0):
    """Learn from what `make_batch` returns."""
    decisions, junctions = data
    return learner.learn([decisions], np.random.default_rng(seed), progress, junctions)


def transitions(count, rng, width, greens):
    x = rng.uniform(0, 3, (count, width)).astype(np.float32)
    x[:, :greens] = np.eye(greens)[rng.integers(greens, size=count)]
    # no rule restricts the decisions
    x[:, -(x.shape[1] // len(FEATURES)) * len(FEATURES) :].reshape(count, -1, len(FEATURES))[..., EXIT_BLOCKED] = 0
    action = rng.integers(greens, size=(count, 1)).astype(np.float32)
    durations = np.append(5.0 * rng.integers(1, 4, count - 1), 0).astype(np.float32)
    value, reward = (rng.normal(size=count).astype(np.float32) for _ in range(2))
    return Transitions(x, action, np.full(count, -np.log(greens), np.float32), value, reward, durations)


def one_batch(count=200):
    tl = transitions(count, np.random.default_rng(0), 4 + 2 * len(FEATURES), 3)
    return batch.make_batch([((junction(3, 2),), (tl,))], StreetPpo(gae_lambda=0.9))


def test_a_forced_decision_is_certain_and_serves_the_lane():
    own = junction(3, 2)
    own.protected[:] = [[1, 0], [1, 0], [0, 1]]
    own.permissive[:] = 0
    networks = StreetLayout(("A",), (own,)).networks(arrays(), 1.0)
    values = observation(3, 2)
    values[:3], values[4] = [1, 0, 0], 0
    values[5 + len(FEATURES) + RED] = 130
    values[5 + len(FEATURES) + FEATURES.index("halting")] = 1
    values[5 + len(FEATURES) + FEATURES.index("exit_blocked")] = 0
    x = networks.inputs_of([values] * 20, np.zeros(20, np.intp))
    actions, log_p = networks.sample(np.zeros(20, np.intp), x, np.random.default_rng(0))
    assert (actions == 2).all() and (log_p == 0).all()


def test_several_networks_act_as_the_product_of_their_policies():
    layout = StreetLayout(("A",), (junction(4, 6),))
    first, second = arrays(1), arrays(2)
    both = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    row = np.array([0])
    x = layout.networks(first, 1.0).inputs_of([observation(4, 6)], row)
    log_p = [layout.networks(a, 5.0)._log_p(row, x, np.ones((1, 4), bool)) for a in (first, second, both)]
    expected = log_p[0] + log_p[1]
    np.testing.assert_allclose(log_p[2], expected - np.log(np.exp(expected).sum()), atol=1e-5)


def test_the_heuristic_takes_the_green_with_most_vehicles_and_keeps_equal_ones():
    own = junction(2, 2)
    own.protected[:], own.permissive[:] = np.eye(2), 0
    networks = StreetLayout(("A",), (own,)).networks([], 1.0)
    values = np.zeros(2 + 2 + 2 * len(FEATURES), np.float32)
    values[0] = 1
    near = FEATURES.index("vehicles_near")
    values[4 + near], values[4 + len(FEATURES) + near] = 4, 6
    row = np.array([0])
    assert networks.greedy_actions(row, networks.inputs_of([values], row)) == 0  # a change costs time
    values[4 + len(FEATURES) + near] = 8
    assert networks.greedy_actions(row, networks.inputs_of([values], row)) == 1


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=20))
def test_squashing_is_inverted(values):
    x = np.array(values)
    np.testing.assert_allclose(batch.unsquashed(batch.squashed(x)), x, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_advantages_are_sums_discounted_by_time(count, seed):
    tl = transitions(count, np.random.default_rng(seed), 20, 2)
    gamma, lam = 0.9, 0.8
    advantage, target = batch._advantages(tl, StreetPpo(gamma=gamma, gae_lambda=lam))
    value = batch.unsquashed(tl.value.astype(float))
    for k in range(count - 1):
        expected, weight = 0.0, 1.0
        for i in range(k, count - 1):
            ticks = round(tl.duration_s[i] / 5)
            reward = sum(gamma**j * tl.reward[i] * 20 / 5 for j in range(ticks))
            expected += weight * (reward + gamma**ticks * value[i + 1] - value[i])
            weight *= (gamma * lam) ** ticks
        assert advantage[k] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(target, batch.squashed(advantage + value[:-1]))


@pytest.mark.parametrize("is_difference", [True, False])
def test_a_difference_counts_as_much_in_one_decision_as_in_three(is_difference):
    """A mean counts as much too if it is the same in each of them."""

    def first_advantage(durations_s, rewards):
        zeros = np.zeros((len(rewards) + 1, 1), np.float32)
        reward, duration_s = (np.array([*own, 0.0], np.float32) for own in (rewards, durations_s))
        tl = Transitions(zeros, zeros, zeros[:, 0], zeros[:, 0], reward, duration_s, is_difference)
        return batch._advantages(tl, StreetPpo(gamma=0.97, gae_lambda=1.0))[0][0]

    whole = first_advantage([15.0], [3.0 if is_difference else 1.0])
    assert whole == pytest.approx(first_advantage([5.0] * 3, [1.0] * 3)) == pytest.approx(4 * (1 + 0.97 + 0.97**2))


def restricted_decisions(layout, learner):
    """200 decisions at which a late lane forbids the first of three greens (of the second junction), and their
    batch."""
    junctions, greens, lanes = layout.junctions, 4, 3
    x = np.zeros((200, greens + 1 + lanes * len(FEATURES)), np.float32)
    x[:, 0], features = 1, x[:, greens + 1 :].reshape(200, lanes, -1)
    for name, values in (("halting", [0, 1, 0]), ("longest_red", [0, 130, 0])):
        features[..., FEATURES.index(name)] = values
    rng = np.random.default_rng(0)
    actions, log_p = layout.networks(learner.arrays, 1.0).sample(np.ones(200, np.intp), x, rng)
    ones = np.ones(200, np.float32)
    tl = Transitions(x, actions, log_p, 0 * ones, (actions[:, 0] == 2).astype(np.float32), 5 * ones)
    return tl, batch.make_batch([(junctions, (transitions(1, rng, x.shape[1], 4), tl))], NEAR_SIGHTED)


def test_the_learner_sees_the_probabilities_among_the_greens_that_the_decision_was_made_among():
    small = junction(3, 3)
    small.protected[:], small.permissive[:] = [[1, 0, 0], [0, 1, 0], [0, 1, 1]], 0
    layout, learner = StreetLayout(("A", "B"), (junction(4, 3), small)), learner_with(entropy=0.0)
    tl, data = restricted_decisions(layout, learner)
    assert set(tl.action[:, 0]) == {1, 2}
    assert (data[0]["allowed"] == [False, True, True, False]).all()
    # two greens, nearly as likely, and the same policy that has decided
    assert -np.log(2) <= learn(learner, data)["entropy_loss"] < -0.6
    for _ in range(20):
        learn(learner, restricted_decisions(layout, learner)[1])
    assert (restricted_decisions(layout, learner)[0].action == 2).mean() > 0.9


def test_a_decision_on_a_quiet_street_counts_as_much_as_one_on_a_congested_street():
    own, rng = junction(3, 2), np.random.default_rng(0)
    quiet, congested = (transitions(1000, rng, 4 + 2 * len(FEATURES), 3) for _ in range(2))
    for tl, factor in ((quiet, 0.1), (congested, 10.0)):
        tl.value[:] = 0
        tl.reward[:] = factor * rng.standard_normal(len(tl.reward))
    data = batch.make_batch([((own,), (quiet,)), ((own,), (congested,))], StreetPpo(gae_lambda=0.9))
    of_quiet, of_congested = (data[0]["advantage"][data[0]["junction"] == k].std() for k in (0, 1))
    assert of_quiet == pytest.approx(of_congested, rel=0.15)


def test_in_an_episode_a_congested_junction_counts_for_more_by_the_square_root():
    noise, tl = np.random.default_rng(0).standard_normal(2000), np.repeat([0, 1], 1000)
    spread = np.where(tl, 4.5, 0.5)
    quiet, congested = (batch._scaled(noise * spread, spread, np.zeros(2000, int))[tl == k].std() for k in (0, 1))
    assert congested / quiet == pytest.approx(3, rel=0.1)


def test_a_batch_without_two_decisions_is_refused():
    with pytest.raises(ValueError, match="two decisions"):
        one_batch(1)


def test_one_policy_learns_to_serve_queues_at_junctions_of_any_size():
    rng = np.random.default_rng(3)
    own = (junction(2, 2), junction(4, 4))
    for of_tl in own:
        of_tl.protected[:], of_tl.permissive[:] = np.eye(len(of_tl.protected)), 0
    width, halting = 4 + 1 + 4 * len(FEATURES), FEATURES.index("halting")
    layout = StreetLayout(("A", "B"), own)

    def decisions(greens):
        x = np.zeros((200, width), np.float32)
        x[:, :4] = np.eye(4)[rng.integers(greens, size=200)]
        queues = rng.integers(0, 9, (200, greens))
        for lane in range(greens):
            x[:, 5 + lane * len(FEATURES) + halting] = queues[:, lane]
        return x, queues

    learner = learner_with(learning_rate=3e-3, minibatch=128, entropy=0.0, final_sharpness=1.0)
    for _ in range(12):
        parts = []
        networks = layout.networks(learner.arrays, 1.0)
        for row, greens in enumerate((2, 4)):
            x, queues = decisions(greens)
            actions, log_p = networks.sample(np.full(200, row), x, rng)
            served = queues[np.arange(200), actions[:, 0].astype(int)].astype(np.float32)
            parts.append(Transitions(x, actions, log_p, np.zeros(200, np.float32), served, np.full(200, 5, np.float32)))
        learn(learner, batch.make_batch([(own, tuple(parts))], NEAR_SIGHTED), rng)
    networks = layout.networks(learner.arrays, 1.0)
    for row, greens in enumerate((2, 4)):
        x, queues = decisions(greens)
        chosen = networks.greedy_actions(np.full(200, row), x)[:, 0].astype(int)
        assert (queues[np.arange(200), chosen] == queues.max(1)).mean() > 0.9


def test_cloning_imitates_the_actions_of_a_batch():
    own, rng = junction(3, 2), np.random.default_rng(0)
    tl = transitions(200, rng, 4 + 2 * len(FEATURES), 3)
    tl.action[:] = 2
    data = batch.make_batch([((own,), (tl,))], StreetPpo(gae_lambda=0.9))
    assert clone(learner_with(minibatch=64), *data, rng, 60) < 0.2


def test_a_restored_learner_continues_alike():
    data, results = one_batch(), []
    for restores in (False, True):
        learner = learner_with(epochs=1)
        learn(learner, data)
        if restores:
            state = learner.state()
            learner = learner_with(epochs=1)
            learner.restore(state)
        learn(learner, data, 2, 0.5)
        results.append(learner.arrays)
    np.testing.assert_equal(*results)


def test_the_critics_first_step_has_the_learning_rate_also_after_the_actor_was_cloned():
    """Adam's first step is as large as the learning rate: the actor's steps in cloning are not the critic's."""
    data, learner = one_batch(), learner_with(epochs=1, learning_rate=1e-3)
    clone(learner, *data, np.random.default_rng(0), 100)
    before = learner.arrays[-1]
    learn(learner, data)
    assert abs(learner.arrays[-1] - before) == pytest.approx(1e-3, rel=0.01)


def test_weights_are_those_of_the_release_without_statistics():
    """Sums of some arrays' absolute values after two updates with the defaults of then, before target_kl and masks were
    added."""
    data, learner = one_batch(40), learner_with(epochs=6, minibatch=1024)
    learn(learner, data)
    learn(learner, data, 2, 0.5)
    sums = [np.abs(array.astype(float)).sum() for array in learner.arrays]
    np.testing.assert_allclose(sums[:4], [126.4700191, 0.1485679154, 204.6515006, 0.1221028922], rtol=1e-5)
    np.testing.assert_allclose(sums[-4:], [816.2717441, 0.254311683, 6.598577902, 0.005088039208], rtol=1e-5)


def test_statistics_of_the_first_step_are_those_of_the_old_policy():
    data = decisions, _ = one_batch()
    statistics = learn(learner_with(epochs=1), data)
    assert statistics["decisions"] == len(decisions["target"]) and -np.log(3) <= statistics["entropy_loss"] < 0
    target = decisions["target"].astype(float)
    expected = 1 - np.var(target - decisions["value"]) / np.var(target)
    assert statistics["explained_variance"] == pytest.approx(expected)


def test_a_tl_of_one_decision_in_an_episode_is_left_out_and_the_others_keep_their_columns():
    """The TL with most greens may decide once: the observations of the others are padded to its greens."""
    layout, rng = StreetLayout(("A", "B"), (junction(4, 2), junction(2, 2))), np.random.default_rng(0)
    width = 4 + 1 + 2 * len(FEATURES)
    large, small = (transitions(count, rng, width, greens) for count, greens in ((1, 4), (50, 2)))
    (decisions,), _ = StreetLearning(layout, Settings(Path()), rng)._batches([{"A": large, "B": small}, {}])
    assert len(decisions["target"]) == 49
    np.testing.assert_array_equal(decisions["green_x"][:, :2, 0], small.x[:-1, :2])
