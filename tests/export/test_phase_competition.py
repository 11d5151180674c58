"""Phase competition: TensorFlow against NumPy, the rules (late lanes, full exits, standing vehicles, demand), JSON,
fleets."""

import concurrent.futures
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from export.actors import Actor
from export.actors.phase_competition import (
    JUNCTION_RANKS,
    SHAPES,
    Padded,
    PhaseCompetition,
    _following,
    greens_allowed,
)
from export.actors.steps import SizeMismatch, from_json
from export.fleets import fleet_graph
from export.fleets.fleet_graph import FleetActor
from signals.approach_features import FEATURES
from tests.export.compared_fleets import Given, compare_fleet
from tests.export.phase_competition_models import random_junction, random_networks, random_observations, random_policy

HALTING, RED, NEAR = (FEATURES.index(name) for name in ("halting", "longest_red", "vehicles_near"))
EXIT_BLOCKED, EXIT_OCCUPANCY, SPEED = (
    FEATURES.index(name) for name in ("exit_blocked", "exit_occupancy", "relative_speed")
)
SOON = FEATURES.index("arriving_soon")

sizes = st.tuples(st.integers(1, 12), st.integers(1, 40))
seeds = st.integers(0, 2**32 - 1)


@functools.cache
def graph_of(greens, lanes, networks):
    """(session, placeholders by weight, observation, logits) of policies of a size."""
    step = random_policy(np.random.default_rng(0), greens, lanes, random_networks(np.random.default_rng(0), networks))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, step.inputs])
        weights = {w.name: tf.compat.v1.placeholder(tf.float32, w.values.shape) for w in step.weights}
        logits = step.build(x, lambda name, shape: tf.ensure_shape(weights[name], shape))
    return tf.compat.v1.Session(graph=graph), weights, x, logits


def built(actor, x):
    """The actor's logits as an exported model computes them: in a plain graph, where Python's operators on tensors differ
    from those of an eager computation."""
    (step,) = actor.steps
    session, weights, observation, logits = graph_of(step.greens, step.lanes, step.count)
    return session.run(logits, {observation: x, **{weights[w.name]: w.values for w in actor.weights}})


def in_numpy(actor, x):
    return actor.steps[0].evaluate(x.astype(np.float64), [])


@pytest.fixture(params=[built, in_numpy])
def evaluate(request):
    """The logits of an actor's greens, by either computation."""
    return request.param


@given(size=sizes, networks=st.integers(1, 3), rows=st.integers(1, 9), seed=seeds)
@settings(max_examples=20)
def test_operations_give_the_numpy_value_for_any_junction(size, networks, rows, seed):
    """For observations of a street, and for those of the parity check: negative counts, several current greens."""
    rng = np.random.default_rng(seed)
    actor = random_policy(rng, *size, random_networks(rng, networks))
    of_street = random_observations(rng, *size, rows, max_red_s=200)
    of_check = np.concatenate([rng.standard_normal((4, actor.inputs)), rng.random((4, actor.inputs))])
    # those of the check also so large that the rules for long times apply
    for x, tolerance in ((of_street, 1e-4), (of_check.astype(np.float32), 1e-4), (np.float32(200 * of_check), 1e-2)):
        expected = in_numpy(actor, x)
        assert expected.shape == (len(x), size[0]) == (len(x), actor.outputs) and x.shape[1] == actor.inputs
        np.testing.assert_allclose(built(actor, x), expected, rtol=tolerance, atol=tolerance)


def test_networks_count_alike():
    rng = np.random.default_rng(0)
    junction, networks = random_junction(rng, 4, 9), random_networks(rng, 3)
    x = random_observations(rng, 4, 9, 50).astype(np.float64)
    # no green has vehicles near that must be served, or to be left for
    x[:, 6:].reshape(50, 9, -1)[..., NEAR] = 0
    together = PhaseCompetition(networks, junction).evaluate(x, [])
    each = [
        PhaseCompetition({n: w[k : k + 1] for n, w in networks.items()}, junction).evaluate(x, []) for k in range(3)
    ]
    np.testing.assert_allclose(together, sum(each), rtol=1e-9)


def test_no_network_of_several_forbids_a_green():
    rng = np.random.default_rng(1)
    networks = random_networks(rng, 2)
    networks["score_kernel_2"][0] *= 1e4
    actor = PhaseCompetition(networks, random_junction(rng, 4, 9))
    alone = PhaseCompetition({name: weight[1:] for name, weight in networks.items()}, actor.junction)
    x = random_observations(rng, 4, 9, 50).astype(np.float64)
    # the first network's log-probabilities are 0 and -30
    assert ((actor.evaluate(x, []) - alone.evaluate(x, [])) >= -30 - 1e-9).all()


# lanes that have waited for too long


NETWORKS = 6
"""Random networks, with 30 observations each, of which some must choose each green that is allowed."""


def waiting(
    rng, served, halting, red_s, near=0, full=0, current=-1, green_s=0.0, speed=0.0, soon=1, permissive=0, **parts
):
    """(policy of a junction whose greens serve the lanes of `served`, observations of lanes that wait at a current
    green).

    `parts`: of the junction; others are random.
    """
    protected = np.array(served, np.float32)
    greens, lanes = protected.shape
    parts = {"protected": protected, "permissive": np.zeros_like(protected) + np.float32(permissive), **parts}
    junction = replace(random_junction(rng, greens, lanes), **parts)
    x = random_observations(rng, greens, lanes, 30)
    x[:, :greens], x[:, greens + 1] = np.eye(greens)[current], green_s
    features = x[:, greens + 2 :].reshape(30, lanes, -1)
    features[..., HALTING], features[..., RED], features[..., NEAR] = halting, red_s, near
    features[..., EXIT_BLOCKED] = features[..., EXIT_OCCUPANCY] = full
    features[..., SPEED], features[..., SOON] = speed, soon
    return Actor("phase-competition", (PhaseCompetition(random_networks(rng), junction),)), x


def choices(evaluate, *args, **kwargs):
    """The greens that random networks choose. Further arguments: as for `waiting`."""
    found = set()
    for seed in range(NETWORKS):
        actor, x = waiting(np.random.default_rng(seed), *args, **kwargs)
        found |= set(evaluate(actor, x).argmax(1).tolist())
    return found


@pytest.mark.parametrize(
    ("halting", "red_s", "chosen"),
    [
        ([0, 1, 0], [0, 120, 0], {1}),
        ([0, 1, 0], [0, 119.9, 0], {0, 1, 2, 3}),
        ([0, 0, 0], [0, 500, 0], {0, 1, 2, 3}),
        ([1, 1, 0], [300, 200, 0], {0}),
        ([1, 1, 0], [200, 300, 0], {1}),
        # no green serves the last lane
        ([0, 0, 1], [0, 0, 3600], {0, 1, 2, 3}),
        ([0, 1, 1], [0, 130, 3600], {1}),
    ],
)
def test_a_lane_that_has_waited_two_minutes_is_served_next(evaluate, halting, red_s, chosen):
    assert choices(evaluate, [[1, 0, 0], [0, 1, 0], [0, 0.5, 0], [0, 0, 0]], halting, red_s) == chosen


@pytest.mark.parametrize(
    ("current", "red_s", "speed", "chosen"),
    [
        (0, [120], 0, {1}),
        (1, [120], 0, {3}),
        (3, [120], 0, {0}),
        # the lane has no green, so the fullest one is chosen
        (2, [120], 0, {1}),
        # the lane moves, or no link of it has waited for long
        (0, [120], 0.05, {0, 1, 2, 3}),
        (0, [119], 0, {0, 1, 2, 3}),
    ],
)
def test_a_lane_whose_green_is_not_that_of_the_waiting_link_gets_the_next_one(evaluate, current, red_s, speed, chosen):
    links = ["Grrr", "GGrr", "rrrG", "rrGr"]
    shares = [[sum(green[k] == "G" for k in range(3)) / 3] for green in links]
    following = np.array([[_following(links, range(3), k)] for k in range(4)], np.float32)
    assert choices(evaluate, shares, [4], red_s, current=current, speed=speed, following=following) == chosen


def test_greens_that_serve_as_many_links_are_equal_in_spite_of_rounding(evaluate):
    # in float32, 1/6 + 4/6 is not 5/6
    assert np.float32(1 / 6) + np.float32(4 / 6) != np.float32(5 / 6)
    permissive = [[0], [4 / 6], [0], [0]]
    assert choices(evaluate, [[5 / 6], [1 / 6], [0.5], [0]], [4], [130], permissive=permissive) == {0, 1}


@given(data=st.data(), greens=st.integers(1, 8), links=st.integers(1, 5))
def test_every_link_of_a_lane_gets_its_green_in_turn(data, greens, links):
    states = data.draw(st.lists(st.text("Ggr", min_size=links, max_size=links), min_size=greens, max_size=greens))
    for waits in range(links):
        serving = [k for k, state in enumerate(states) if state[waits] in "Gg"]
        current = data.draw(st.integers(0, greens - 1))
        shown = [current]
        while serving and shown[-1] not in serving:
            shown.append(_following(states, range(links), shown[-1]))
            assert len(shown) <= greens, "it turns without the green of a link"


@pytest.mark.parametrize(
    ("near", "full", "red_s", "chosen"),
    [
        # all vehicles of the first green would enter full exits
        ([3, 1, 0], [1, 0, 0], [0, 0, 0], {1, 2}),
        ([3, 1, 0], [0.9, 0, 0], [0, 0, 0], {0, 1, 2}),
        # no green moves anything
        ([3, 1, 0], [1, 1, 0], [0, 0, 0], {0, 1, 2, 3}),
        ([3, 0, 0], [1, 0, 0], [0, 0, 0], {0, 1, 2, 3}),
        # no green serves the lane that has room ahead
        ([3, 0, 2], [1, 0, 0], [0, 0, 0], {0, 1, 2, 3}),
        # a lane that waits for long, but for full exits
        ([3, 1, 0], [1, 0, 0], [900, 0, 0], {1, 2}),
        ([3, 1, 0], [1, 1, 0], [900, 0, 0], {0, 1, 2, 3}),
        ([3, 1, 0], [0, 1, 0], [900, 950, 0], {0}),
    ],
)
def test_no_green_fills_full_exits_while_another_one_moves_vehicles(evaluate, near, full, red_s, chosen):
    assert choices(evaluate, [[1, 0, 0], [0, 1, 0], [0, 0.5, 0], [0, 0, 0]], near, red_s, near, full) == chosen


@pytest.mark.parametrize(
    ("green_s", "speed", "near", "full", "chosen"),
    [
        (20, [0, 0, 0], [3, 0, 2], [0, 0, 0], {2}),
        (19.9, [0, 0, 0], [3, 0, 2], [0, 0, 0], {0, 1, 2}),
        (20, [0.05, 0, 0], [3, 0, 2], [0, 0, 0], {0, 1, 2}),
        (20, [0.049, 0, 0.5], [3, 0, 2], [0, 0, 0], {2}),
        # vehicles arrive on the second of its lanes
        (20, [0, 0.3, 0], [3, 0, 2], [0, 0, 0], {0, 1, 2}),
        # the second of its lanes moves
        (20, [0, 0.3, 0], [3, 1, 2], [0, 0, 0], {0, 1, 2}),
        # no vehicle waits at the current green, or at another one
        (900, [0, 0, 0], [0, 0, 2], [0, 0, 0], {0, 1, 2}),
        (900, [0, 0, 0], [3, 0, 0], [0, 0, 0], {0, 1, 2}),
        # the other green serves a lane that stands now, too
        (900, [0, 0, 0], [3, 2, 0], [0, 0, 0], {0, 1, 2}),
        # the other green would only fill the junction
        (900, [0, 0, 0], [3, 0, 2], [0, 0, 1], {0, 1}),
        (900, [0, 0, 0], [3, 0, 2], [1, 0, 1], {0, 1, 2, 3}),
    ],
)
def test_a_green_whose_lanes_all_stand_is_left_for_others(evaluate, green_s, speed, near, full, chosen):
    served = [[1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert choices(evaluate, served, near, [0, 0, 0], near, full, current=0, green_s=green_s, speed=speed) == chosen


@pytest.mark.parametrize(
    ("near", "soon", "full", "red_s", "chosen"),
    [
        ([3, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], {0}),
        ([0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], {1, 2}),
        ([3, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], {0, 1, 2}),
        # no vehicle waits, no green serves the vehicle, or it has no room ahead
        ([0, 0, 0], [3, 0, 0], [0, 0, 0], [0, 0, 0], {0, 1, 2, 3}),
        ([0, 0, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0], {0, 1, 2, 3}),
        ([3, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], {0, 1, 2, 3}),
        ([3, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], {0}),
        # a lane that waits for long has priority, also behind the first 50 m
        ([3, 0, 0], [0, 0, 0], [0, 0, 0], [0, 130, 0], {1}),
    ],
)
def test_no_green_without_demand_is_chosen_while_another_serves_vehicles(evaluate, near, soon, full, red_s, chosen):
    served = [[1, 0, 0], [0, 1, 0], [0, 0.5, 0], [0, 0, 0]]
    halting = [1, 1, 0] if max(red_s) else near
    assert choices(evaluate, served, halting, red_s, near, full, soon=soon) == chosen


def allowed_greens(actor, x):
    greens = actor.outputs
    junctions = Padded.of([actor.steps[0].junction] * len(x))
    return greens_allowed(
        junctions, x[:, :greens], x[:, greens + 1], x[:, greens + 2 :].reshape(len(x), -1, len(FEATURES))
    )


def test_a_green_with_room_ahead_of_one_of_its_lanes_is_allowed():
    actor, x = waiting(np.random.default_rng(3), [[1, 0], [0, 1], [1, 1]], [1, 1], [0, 0], [2, 2], [1, 0])
    assert (allowed_greens(actor, x) == [False, True, True]).all()


def test_a_green_of_the_padding_is_never_the_next_one():
    """Two current greens, which only random observations have: the sum of their next greens may be any number."""
    actor, x = waiting(np.random.default_rng(3), [[0.5], [0.5], [0], [0]], [4], [130], current=0)
    x[:, 1] = 1
    (step,) = actor.steps
    own = replace(step.junction, following=np.array([[3], [3], [0], [0]], np.float32))
    padded = Padded.of([own] * len(x), greens=8)
    current = np.pad(x[:, :4], ((0, 0), (0, 4)))
    assert not greens_allowed(padded, current, x[:, 5], x[:, 6:].reshape(len(x), -1, len(FEATURES)))[:, 4:].any()


def test_the_best_green_that_serves_the_lane_is_chosen():
    actor, x = waiting(np.random.default_rng(3), [[1, 0], [0, 1], [1, 1]], [1, 0], [150, 0], current=1)
    free = x.copy()
    # without a vehicle that halts the rule does not apply; the input differs too, so the networks ignore it here
    free[:, 5:].reshape(len(x), 2, -1)[..., HALTING] = 0
    (step,) = actor.steps
    networks = {name: weight.copy() for name, weight in step.networks.items()}
    networks["lane_kernel_1"][:, HALTING] = 0
    step = PhaseCompetition(networks, step.junction)
    logits, expected = (step.evaluate(rows.astype(np.float64), []) for rows in (x, free))
    np.testing.assert_allclose(logits[:, [0, 2]], expected[:, [0, 2]])
    assert (logits[:, 1] < expected.min(1) - 29).all()


def test_greens_allowed_are_those_of_the_lane_that_waits_longest():
    actor, x = waiting(np.random.default_rng(3), [[1, 0], [0, 1], [1, 1]], [1, 2], [150, 130], current=1)
    assert (allowed_greens(actor, x) == [True, False, True]).all()


# JSON


@pytest.mark.parametrize(
    "change",
    [
        {"features": FEATURES[:-1]},
        {"features": [*FEATURES[1:], FEATURES[0]]},
        {"features": None},
        {"networks": 3},
        {"greens": 4},
        {"lanes": 12},
        {"lanes": None},
    ],
    ids=str,
)
def test_description_that_does_not_fit_the_weights_is_refused(change):
    step = random_policy(np.random.default_rng(2), 5, 11).steps[0]
    description = step.to_json()["phase_competition"]
    for damage in ({**description, **change}, {k: v for k, v in description.items() if k not in change}, None, "x", []):
        with pytest.raises((ValueError, LookupError, TypeError)):
            from_json({"phase_competition": damage}, step.weights)


@pytest.mark.parametrize("part", [*SHAPES, *(part for part in JUNCTION_RANKS if not part.endswith("mask"))])
def test_weights_that_are_missing_or_of_another_shape_are_refused(part):
    step = random_policy(np.random.default_rng(2), 5, 11).steps[0]
    values = step.weights[part]
    for damage in ({}, {part: values[..., :-1]}, {part: values[None]}, {part: np.zeros(0, np.float32)}):
        weights = {**{name: other for name, other in step.weights.items() if name != part}, **damage}
        with pytest.raises((ValueError, LookupError, TypeError)):
            from_json(step.to_json(), weights)


def test_networks_of_several_counts_are_refused():
    rng = np.random.default_rng(2)
    networks = {**random_networks(rng, 2), "green_bias": random_networks(rng, 1)["green_bias"]}
    with pytest.raises(SizeMismatch, match=r"green_bias has shape \[1, 32\], not \[2, 32\]"):
        _ = random_policy(rng, 3, 4, networks).outputs


# fleets


def test_weights_of_a_policy_are_stored_once_per_group():
    rng = np.random.default_rng(0)
    networks = [random_networks(rng), random_networks(rng)]
    sizes = [(2, 5), (4, 12), (8, 20), (3, 5)]
    members, x = [], {}
    for policy, (k, size) in itertools.product(range(2), enumerate(sizes)):
        members.append(FleetActor(f"TL{policy}{k}", random_policy(rng, *size, networks[policy]), True))
        x[members[-1].tl] = random_observations(rng, *size, 3)
    groups = compare_fleet(members, x)
    assert [sorted(member.tl for member in group.members) for group in groups] == [
        [f"TL{policy}{k}" for k in range(4)] for policy in range(2)
    ]
    kernels = [weight for weight in fleet_graph.weights(groups) if weight.name.endswith("lane_kernel_2")]
    assert [weight.values.shape for weight in kernels] == [(1, 1, 32, 32)] * 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e30, 1e30])
def test_values_that_are_no_readings_give_a_valid_choice(value):
    rng = np.random.default_rng(0)
    sizes = [(2, 5), (4, 12), (8, 20)]
    networks = random_networks(rng, 2)
    for size in sizes:
        actor = random_policy(rng, *size, networks)
        x = random_observations(rng, *size, 6)
        x[rng.random(x.shape) < 0.3] = value
        x[0] = value
        logits = built(actor, x)
        assert logits.shape == (6, size[0]) and ((logits.argmax(1) >= 0) & (logits.argmax(1) < size[0])).all()


@pytest.mark.parametrize("count", [1, 3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 8, 17))])
def test_fleet_of_any_size_runs_in_two_threads(count):
    """A graph with products of other ranks crashed TensorFlow 2.20 (oneDNN)."""
    rng = np.random.default_rng(count)
    networks = random_networks(rng, 3)
    sizes = {f"TL{k}": (int(rng.integers(2, 9)), int(rng.integers(2, 25))) for k in range(count)}
    members = [FleetActor(tl, random_policy(rng, *size, networks), True) for tl, size in sizes.items()]
    groups = fleet_graph.group_members(members)
    weights = fleet_graph.weights(groups)
    act = tf.function(lambda x: fleet_graph.build(groups, x, Given(weights))["action"], reduce_retracing=True)
    ordered = [sizes[member.tl] for group in groups for member in group.members]
    batches = [
        tf.constant(np.concatenate([random_observations(rng, *size, rows) for size in ordered], 1))
        for rows in (1, 256, 1, 256, 7, 256)
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        results = list(threads.map(act, batches))
    for x, actions in zip(batches, results, strict=True):
        assert actions.shape == (len(x), count)
        np.testing.assert_array_equal(actions, act(x))
