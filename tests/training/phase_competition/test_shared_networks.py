"""Networks, batches and learner of the policy for any junction."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.actors.phase_competition import Observed, observation_size
from pretraining.streets_trainer import clone
from signals.approach_features import FEATURES
from tests.export.phase_competition_models import junction_of
from training.learning import StreetLearning
from training.phase_competition import street_learner
from training.phase_competition.networks import StreetLayout, initial_arrays
from training.phase_competition.street_learner import StreetLearner
from training.settings import Settings, StreetPpo
from training.transitions import Transitions

NEAR_SIGHTED = StreetPpo(gamma=0.0001, gae_lambda=0.0)


def junction(greens, lanes, seed=0):
    """A junction whose lanes have a link each; the first green serves all of them."""
    rng = np.random.default_rng(seed)
    states = ["G" * lanes, *("".join(row) for row in rng.choice(list("GGgr"), (greens - 1, lanes)))]
    return junction_of(states, [[lane] for lane in range(lanes)], rng)


def plain_junction(lanes, greens=None):
    """A junction with a green for each lane, or with these greens."""
    greens = greens or ["".join("G" if k == lane else "r" for k in range(lanes)) for lane in range(lanes)]
    return junction_of(greens, [[lane] for lane in range(lanes)])


def nothing_restricts(x, greens):
    """Let no rule restrict the decisions: no vehicle halts, all lanes have vehicles, and none stands."""
    parts = Observed.of(x, greens)
    parts.since_s[:] = 10
    for name, value in (("exit_blocked", 0), ("first_wait", 0), ("vehicles_near", 1)):
        parts.features[..., FEATURES.index(name)] = value
    return x


def arrays(seed=0):
    return initial_arrays(np.random.default_rng(seed))


@functools.cache
def traced(**in_graph):
    """(learner, its first state): the graph of an update is traced once for all tests."""
    own = StreetLearner(arrays(), StreetPpo(**in_graph))
    return own, own.state()


def learner_with(**settings):
    """A learner in its first state."""
    ppo = StreetPpo(**settings)
    own, state = traced(**{key: getattr(ppo, key) for key in ("clip_range", "target_kl", "vf_coef", "max_grad_norm")})
    own.restore(state)
    own.ppo = ppo
    return own


def learn(learner, data, rng, progress):
    """Learn from what `make_batch` returns."""
    decisions, junctions = data
    return learner.learn([decisions], rng, progress, junctions)


def transitions(count, rng, greens, lanes, own_greens=None):
    """Decisions at a junction of greens and lanes with padding, of which `own_greens` are its own."""
    x = rng.uniform(0, 3, (count, observation_size(greens, lanes))).astype(np.float32)
    own_greens = own_greens or greens
    x[:, :greens] = np.eye(greens)[rng.integers(own_greens, size=count)]
    action = rng.integers(own_greens, size=(count, 1)).astype(np.float32)
    durations = np.append(5.0 * rng.integers(1, 4, count - 1), 0).astype(np.float32)
    value, reward = (rng.normal(size=count).astype(np.float32) for _ in range(2))
    log_p = np.full(count, -np.log(own_greens), np.float32)
    return Transitions(nothing_restricts(x, greens), action, log_p, value, reward, durations)


def one_batch(count=200):
    tl = transitions(count, np.random.default_rng(0), 3, 2)
    return street_learner.make_batch([((junction(3, 2),), (tl,))], StreetPpo(gae_lambda=0.9))


def test_a_forced_decision_is_certain_and_serves_the_lane():
    networks = StreetLayout(("A",), (plain_junction(2, ["Gr", "Gr", "rG"]),)).networks(arrays(), 1.0)
    x = np.zeros((20, observation_size(3, 2)), np.float32)
    parts = Observed.of(x, 3)
    parts.current[:, 0], parts.since_s[:, 1:] = 1, 130
    parts.features[:, 1, FEATURES.index("halting")] = 1
    rows = np.zeros(20, np.intp)
    actions, log_p = networks.sample(rows, networks.inputs_of(list(x), rows), np.random.default_rng(0))
    assert (actions == 2).all() and (log_p == 0).all()


def test_the_heuristic_takes_the_green_with_most_vehicles_and_keeps_equal_ones():
    networks = StreetLayout(("A",), (plain_junction(2),)).networks([], 1.0)
    x = np.zeros((1, observation_size(2, 2)), np.float32)
    parts = Observed.of(x, 2)
    parts.current[:, 0], parts.since_s[:, 1] = 1, 20
    near = parts.features[..., FEATURES.index("vehicles_near")]
    row = np.array([0])
    near[:] = 4, 6
    assert networks.greedy_actions(row, networks.inputs_of(list(x), row)) == 0  # a change costs time
    near[:] = 4, 8
    assert networks.greedy_actions(row, networks.inputs_of(list(x), row)) == 1
    # what the rules forbid is not chosen: a late lane
    near[:] = 8, 0
    parts.features[:, 1, FEATURES.index("halting")], parts.since_s[:, 1] = 1, 130
    assert networks.greedy_actions(row, networks.inputs_of(list(x), row)) == 1


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=20))
def test_squashing_is_inverted(values):
    x = np.array(values)
    np.testing.assert_allclose(street_learner.unsquashed(street_learner.squashed(x)), x, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_advantages_are_sums_discounted_by_time(count, seed):
    tl = transitions(count, np.random.default_rng(seed), 2, 1)
    gamma, lam = 0.9, 0.8
    advantage, target = street_learner._advantages(tl, StreetPpo(gamma=gamma, gae_lambda=lam))
    value = street_learner.unsquashed(tl.value.astype(float))
    for k in range(count - 1):
        expected, weight = 0.0, 1.0
        for i in range(k, count - 1):
            ticks = round(tl.duration_s[i] / 5)
            reward = sum(gamma**j * tl.reward[i] * 20 / 5 for j in range(ticks))
            expected += weight * (reward + gamma**ticks * value[i + 1] - value[i])
            weight *= (gamma * lam) ** ticks
        assert advantage[k] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(target, street_learner.squashed(advantage + value[:-1]))


@pytest.mark.parametrize("is_difference", [True, False])
def test_a_difference_counts_as_much_in_one_decision_as_in_three(is_difference):
    """A mean counts as much too if it is the same in each of them."""

    def first_advantage(durations_s, rewards):
        zeros = np.zeros((len(rewards) + 1, 1), np.float32)
        reward, duration_s = (np.array([*own, 0.0], np.float32) for own in (rewards, durations_s))
        tl = Transitions(zeros, zeros, zeros[:, 0], zeros[:, 0], reward, duration_s, is_difference)
        return street_learner._advantages(tl, StreetPpo(gamma=0.97, gae_lambda=1.0))[0][0]

    whole = first_advantage([15.0], [3.0 if is_difference else 1.0])
    assert whole == pytest.approx(first_advantage([5.0] * 3, [1.0] * 3)) == pytest.approx(4 * (1 + 0.97 + 0.97**2))


def restricted_decisions(layout, learner):
    """200 decisions at which a late lane forbids the first of three greens (of the second junction), and their
    batch."""
    x = np.zeros((200, observation_size(4, 3)), np.float32)
    parts = Observed.of(x, 4)
    parts.current[:, 0], parts.since_s[:, 1:3] = 1, 130
    parts.features[:, 1, FEATURES.index("halting")] = 1
    rng = np.random.default_rng(0)
    actions, log_p = layout.networks(learner.arrays, 1.0).sample(np.ones(200, np.intp), x, rng)
    ones = np.ones(200, np.float32)
    tl = Transitions(x, actions, log_p, 0 * ones, (actions[:, 0] == 2).astype(np.float32), 5 * ones)
    return tl, street_learner.make_batch([(layout.junctions, (transitions(1, rng, 4, 3), tl))], NEAR_SIGHTED)


def test_the_learner_sees_the_probabilities_among_the_greens_that_the_decision_was_made_among():
    small = plain_junction(3, ["Grr", "rGr", "rGG"])
    layout, learner = StreetLayout(("A", "B"), (junction(4, 3), small)), learner_with(ent_coef=0.0)
    tl, data = restricted_decisions(layout, learner)
    assert set(tl.action[:, 0]) == {1, 2}
    assert (data[0]["allowed"] == [False, True, True, False]).all()
    statistics = learn(learner, data, np.random.default_rng(0), 0.0)
    # two greens, nearly as likely, and the same policy that has decided
    assert -np.log(2) <= statistics["entropy_loss"] < -0.6
    for _ in range(20):
        learn(learner, restricted_decisions(layout, learner)[1], np.random.default_rng(0), 0.0)
    assert (restricted_decisions(layout, learner)[0].action == 2).mean() > 0.9


def test_a_decision_on_a_quiet_street_counts_as_much_as_one_on_a_congested_street():
    own, rng = junction(3, 2), np.random.default_rng(0)
    quiet, congested = (transitions(1000, rng, 3, 2) for _ in range(2))
    for tl, factor in ((quiet, 0.1), (congested, 10.0)):
        tl.value[:] = 0
        tl.reward[:] = factor * rng.standard_normal(len(tl.reward))
    data = street_learner.make_batch([((own,), (quiet,)), ((own,), (congested,))], StreetPpo(gae_lambda=0.9))
    of_quiet, of_congested = (data[0]["advantage"][data[0]["junction"] == k].std() for k in (0, 1))
    assert of_quiet == pytest.approx(of_congested, rel=0.15)


def test_in_an_episode_a_congested_junction_counts_for_more_by_the_square_root():
    noise, tl = np.random.default_rng(0).standard_normal(2000), np.repeat([0, 1], 1000)
    spread = np.where(tl, 4.5, 0.5)
    quiet, congested = (
        street_learner._scaled(noise * spread, spread, np.zeros(2000, int))[tl == k].std() for k in (0, 1)
    )
    assert congested / quiet == pytest.approx(3, rel=0.1)


def test_a_batch_without_two_decisions_is_refused():
    with pytest.raises(ValueError, match="two decisions"):
        one_batch(1)


def test_the_learner_computes_junctions_of_any_size_as_the_networks_do():
    """Before its first step every ratio is 1, and the values are those of the episodes."""
    rng, own, parts = np.random.default_rng(3), (junction(2, 2), junction(4, 4)), []
    learner = learner_with(n_epochs=1, minibatch=1000)
    networks = StreetLayout(("A", "B"), own).networks(learner.arrays, 1.0)
    for row, greens in enumerate((2, 4)):
        tl, rows = transitions(50, rng, 4, 4, own_greens=greens), np.full(50, row)
        actions, log_p = networks.sample(rows, tl.x, rng)
        parts.append(replace(tl, action=actions, log_p=log_p, value=networks.critic(rows, tl.x)))
    data = decisions, _ = street_learner.make_batch([(own, parts)], StreetPpo())
    statistics = learn(learner, data, rng, 0.0)
    assert statistics["clip_fraction"] == 0 and abs(statistics["approx_kl"]) < 1e-6
    assert statistics["value_loss"] == pytest.approx(np.mean((decisions["value"] - decisions["target"]) ** 2), rel=1e-4)


def test_cloning_imitates_the_actions_of_a_batch():
    own, rng = junction(3, 2), np.random.default_rng(0)
    tl = transitions(200, rng, 3, 2)
    tl.action[:] = 2
    data = street_learner.make_batch([((own,), (tl,))], StreetPpo(gae_lambda=0.9))
    assert clone(learner_with(minibatch=64), *data, rng, 60) < 0.2


def test_the_critics_first_step_has_the_learning_rate_also_after_the_actor_was_cloned():
    """Adam's first step is as large as the learning rate: the actor's steps in cloning are not the critic's."""
    data, learner = one_batch(), learner_with(n_epochs=1, learning_rate=1e-3)
    clone(learner, *data, np.random.default_rng(0), 100)
    before = learner.arrays[-1]
    learn(learner, data, np.random.default_rng(1), 0.0)
    assert abs(learner.arrays[-1] - before) == pytest.approx(1e-3, rel=0.01)


def test_advantages_stay_as_they_are_without_normalisation():
    tl = transitions(200, np.random.default_rng(0), 3, 2)
    parts = [((junction(3, 2),), (tl,))]
    scaled, raw = (
        street_learner.make_batch(parts, StreetPpo(normalize_advantage=on))[0]["advantage"] for on in (True, False)
    )
    assert abs(scaled.mean()) < 1e-3 and abs(scaled.std() - 1) < 0.05 and abs(raw.std() - 1) > 0.1
    assert np.corrcoef(scaled, raw)[0, 1] > 0.95


def test_two_updates_give_the_weights_that_they_gave_before():
    """Sums of some arrays' absolute values: who changes them changes how a policy is trained."""
    data, learner = one_batch(40), learner_with(n_epochs=6, minibatch=1024)
    learn(learner, data, np.random.default_rng(1), 0.0)
    learn(learner, data, np.random.default_rng(2), 0.5)
    sums = [np.abs(array.astype(float)).sum() for array in learner.arrays]
    np.testing.assert_allclose(sums[:4], [141.8267124, 0.1389838613, 204.0109981, 0.08632162763], rtol=1e-5)
    np.testing.assert_allclose(sums[-4:], [816.7702235, 0.2966703484, 6.346439791, 0.006489456166], rtol=1e-5)


def test_statistics_of_the_first_step_are_those_of_the_old_policy():
    data = decisions, _ = one_batch()
    learner = learner_with(n_epochs=1)
    statistics = learn(learner, data, np.random.default_rng(1), 0.0)
    assert statistics["decisions"] == len(decisions["target"]) and -np.log(3) <= statistics["entropy_loss"] < 0
    target = decisions["target"].astype(float)
    expected = 1 - np.var(target - decisions["value"]) / np.var(target)
    assert statistics["explained_variance"] == pytest.approx(expected)


def test_a_tl_of_one_decision_in_an_episode_is_left_out_and_the_others_keep_their_columns():
    """The TL with most greens may decide once: the observations of the others are padded to its greens."""
    layout, rng = StreetLayout(("A", "B"), (junction(4, 2), junction(2, 2))), np.random.default_rng(0)
    large, small = transitions(1, rng, 4, 2), transitions(50, rng, 4, 2, own_greens=2)
    (decisions,), _ = StreetLearning(layout, Settings(Path()), rng)._batches([{"A": large, "B": small}, {}])
    assert len(decisions["target"]) == 49
    np.testing.assert_array_equal(decisions["green_x"][:, :2, 0], small.x[:-1, :2])
