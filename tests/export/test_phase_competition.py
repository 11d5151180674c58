"""Phase competition: TensorFlow against NumPy, what a green can move, the two rules, JSON, fleets."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from export.actors import phase_competition, phase_competition_graph
from export.actors.phase_competition import (
    JUNCTION_RANKS,
    MAX_RED_S,
    SHAPES,
    Observed,
    Padded,
    PhaseCompetition,
    Service,
    greens_allowed,
    observation_size,
    observations_at_bounds,
)
from export.actors.steps import from_json
from signals.approach_features import FEATURES
from tests.export.phase_competition_models import (
    junction_of,
    random_junction,
    random_network,
    random_observations,
    random_policy,
)

seeds = st.integers(0, 2**32 - 1)
FULL = {"exit_blocked": 1, "exit_occupancy": 1}


@functools.cache
def graph_of(greens, lanes, links):
    """(session, placeholders by weight, observation, logits) of policies of a size."""
    step = PhaseCompetition(
        random_network(np.random.default_rng(0)), random_junction(np.random.default_rng(0), greens, lanes, links=links)
    )
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, step.inputs])
        weights = {name: tf.compat.v1.placeholder(tf.float32, values.shape) for name, values in step.weights.items()}
        logits = step.build(x, weights.get, [])
    return tf.compat.v1.Session(graph=graph), weights, x, logits


def built(step, x):
    """The logits as an exported model computes them: in a plain graph, where Python's operators on tensors differ from
    those of an eager computation."""
    session, weights, observation, logits = graph_of(*step.junction.sizes)
    return session.run(logits, {observation: x, **{weights[name]: values for name, values in step.weights.items()}})


def in_numpy(step, x):
    return step.evaluate(x.astype(np.float64), [])


# greens, lanes, links: few, because each makes a graph
sizes = st.sampled_from([(1, 1, 1), (2, 4, 3), (4, 9, 14), (7, 20, 31), (12, 40, 25)])


@given(size=sizes, rows=st.integers(1, 9), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_operations_give_the_numpy_value_for_any_junction(size, rows, seed):
    """For observations of a street, at the bounds of the rules, and for random numbers: negative counts, several
    current greens."""
    rng = np.random.default_rng(seed)
    greens, lanes, links = size
    step = PhaseCompetition(random_network(rng), random_junction(rng, greens, lanes, links=links))
    numbers = np.concatenate([rng.standard_normal((4, step.inputs)), rng.random((4, step.inputs))]).astype(np.float32)
    # the last ones are so large that the rules for long times apply
    own = (random_observations(rng, greens, lanes, rows, 200), observations_at_bounds(greens, lanes, 4 * rows, rng))
    for x, tolerance in (*((x, 1e-4) for x in (*own, numbers)), (200 * numbers, 1e-2)):
        expected = in_numpy(step, x)
        assert expected.shape == (len(x), greens) and x.shape[1] == step.inputs
        np.testing.assert_allclose(built(step, x), expected, rtol=tolerance, atol=tolerance)


# what a green can move, and the rules


def numpy_rules(junction, x):
    observed = Observed.of(x, junction.sizes[0])
    service = phase_competition.service_of(junction, observed)
    return service, greens_allowed(junction, observed, service)


@functools.lru_cache(maxsize=20)
def rules_graph(shapes, *functions):
    """(session, placeholders, results) of the graph's two functions for a junction's parts and an observation's."""
    with tf.Graph().as_default() as graph:
        junction, observed = (
            {name: tf.compat.v1.placeholder(dtype, shape) for name, dtype, shape in parts} for parts in shapes
        )
        service_of, greens_allowed = functions
        service = service_of(junction, Observed(**observed))
        results = service, greens_allowed(junction, Observed(**observed), service)
    return tf.compat.v1.Session(graph=graph), junction | observed, results


def graph_rules(junction, x):
    """As an exported model computes them: in a plain graph."""
    parts = vars(junction), Observed.of(x, junction.sizes[0])._asdict()
    shapes = tuple(tuple((name, array.dtype.name, array.shape) for name, array in part.items()) for part in parts)
    functions = phase_competition_graph.service_of, phase_competition_graph.greens_allowed
    session, placeholders, results = rules_graph(shapes, *functions)
    values = parts[0] | parts[1]
    service, allowed = session.run(results, {tensor: values[name] for name, tensor in placeholders.items()})
    return Service(*service), allowed


@pytest.fixture(params=[numpy_rules, graph_rules])
def rules(request):
    """(junctions, observations) -> (Service, allowed greens [n, P]), by either computation."""
    return request.param


def seen(greens, lanes, current=0, green_s=20.0, since_s=50.0, **features):
    """(junction, observation) of a signal as the policy sees it.

    Args:
        greens: states.
        lanes: the links of each lane.
        current: index of the current green.
        green_s: its time.
        since_s: time since each green, or each one, was left; that of the current green is 0.
        features: of the lanes, or of each lane; others are 0.
    """
    junction = Padded.of([junction_of(greens, lanes)])
    x = np.zeros((1, observation_size(len(greens), len(lanes))), np.float32)
    x[0, current], x[0, len(greens) + 1] = 1, green_s
    x[0, len(greens) + 2 : 2 * len(greens) + 2] = since_s
    x[0, len(greens) + 2 + current] = 0
    of_lanes = x[:, 2 * len(greens) + 2 :].reshape(len(lanes), len(FEATURES))
    for name, values in features.items():
        of_lanes[:, FEATURES.index(name)] = values
    return junction, x


def service_of(rules, *args, **kwargs):
    """The service of one observation. Further arguments: as for `seen`."""
    return Service(*(part[0] for part in rules(*seen(*args, **kwargs))[0]))


def allowed(rules, *args, **kwargs):
    """The allowed greens of one observation. Further arguments: as for `seen`."""
    return set(np.flatnonzero(rules(*seen(*args, **kwargs))[1][0]).tolist())


SPLIT = ["Grr", "rGr", "rrg"]
"""Greens that serve a link each of a lane with three."""


@pytest.mark.parametrize(
    ("current", "green_s", "since_s", "first_wait", "left"),
    [
        pytest.param(0, 20, 50, 0, [1, 1, 1], id="no vehicle waits"),
        pytest.param(0, 20, 50, 3.9, [1, 1, 1], id="not for long under the current green"),
        pytest.param(0, 20, 50, 4, [0, 1, 1], id="stood under the current green"),
        pytest.param(0, 4, 50, 4, [0, 1, 1], id="a current green that is as young as that"),
        pytest.param(0, 3.9, 50, 4, [1, 1, 1], id="a current green that is younger"),
        pytest.param(2, 3.9, [50, 10, 0], 14, [1, 0, 1], id="its youth is no matter of others"),
        pytest.param(0, 20, [0, 10, 50], 13.9, [0, 1, 1], id="came when another green ended"),
        pytest.param(0, 20, [0, 10, 50], 14, [0, 0, 1], id="stood under another green"),
        pytest.param(2, 20, [0, 10, 0], 900, [0, 0, 1], id="a link that yields waits for a gap"),
        pytest.param(0, 20, [0, 3600, 50], 3603, [0, 1, 1], id="a green of long ago"),
    ],
)
def test_a_green_that_the_first_vehicle_stood_through_does_not_serve_it(
    rules, current, green_s, since_s, first_wait, left
):
    service = service_of(
        rules, SPLIT, [[0, 1, 2]], current=current, green_s=green_s, since_s=since_s, first_wait=first_wait
    )
    shares = np.array(left) / sum(left)
    np.testing.assert_allclose(service.protected[:, 0], shares * [1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(service.permissive[:, 0], shares * [0, 0, 1], rtol=1e-6)


def test_all_links_are_left_again_if_none_is(rules):
    service = service_of(rules, ["Gr", "rG"], [[0, 1], [0]], since_s=10, first_wait=[14, 4])
    np.testing.assert_allclose(service.protected, [[0.5, 1], [0.5, 0]])


def test_a_vehicle_stands_for_its_own_lane_alone(rules):
    service = service_of(rules, ["GrGr", "rGrG"], [[0, 1], [2, 3]], first_wait=[4, 0])
    np.testing.assert_allclose(service.protected, [[0, 0.5], [1, 0.5]])
    assert service.stands.tolist() == [True, False]


def test_a_green_excludes_all_links_that_it_shows_g_protected(rules):
    service = service_of(rules, ["GGr", "rGG"], [[0, 1, 2]], first_wait=4)
    np.testing.assert_allclose(service.protected[:, 0], [0, 1])


def test_links_that_no_green_serves_do_not_count(rules):
    service = service_of(rules, ["Grr", "gGr"], [[0, 1, 2], [2], []], since_s=60)
    np.testing.assert_allclose(service.protected, [[0.5, 0, 0], [0.5, 0, 0]])
    np.testing.assert_allclose(service.permissive, [[0, 0, 0], [0.5, 0, 0]])
    assert service.red_s.max(1).tolist() == [60, 3600, 0]


@pytest.mark.parametrize(
    ("since_s", "first_wait", "red_s"),
    [
        pytest.param([0, 60, 90], 0, 90, id="the longest of all links"),
        pytest.param([0, 60, 90], 70, 90, id="of the links that are left"),
        pytest.param([0, 90, 60], 94, 60, id="not of a link that is excluded"),
        pytest.param([0, 90, 90], 95, 90, id="g is not excluded"),
    ],
)
def test_red_is_that_of_the_links_that_are_left(rules, since_s, first_wait, red_s):
    assert service_of(rules, SPLIT, [[0, 1, 2]], since_s=since_s, first_wait=first_wait).red_s.max() == red_s


def test_red_of_a_link_is_the_time_since_any_green_that_serves_it(rules):
    service = service_of(rules, ["rrG", "Grr", "gGr"], [[0], [1]], since_s=[0, 60, 90])
    assert service.red_s.max(1).tolist() == [60, 90]


@pytest.mark.parametrize(
    ("first_wait", "green_s", "current", "stands"),
    [
        (4, 20, 0, [True, False]), (3.9, 20, 0, [False, False]), (4, 3.9, 0, [False, False]),
        (30, 4, 0, [True, False]), (30, 4, 1, [False, True]),
    ],
)  # fmt: skip
def test_a_lane_stands_that_the_current_green_serves(rules, first_wait, green_s, current, stands):
    own = {"first_wait": first_wait, "green_s": green_s, "current": current}
    assert service_of(rules, ["gr", "rG"], [[0], [1]], **own).stands.tolist() == stands


def test_a_lane_that_stood_under_another_green_does_not_stand_under_a_young_one(rules):
    assert not service_of(rules, ["Gr", "rG"], [[0, 1]], first_wait=60, green_s=3.9).stands.any()


CROSSING = ["Grr", "rGr", "rgr", "rrr"]
"""Three lanes with a link each: two greens for the second one, none for the third."""
LANES = [[0], [1], [2]]


@pytest.mark.parametrize(
    ("halting", "since_s", "full", "green"),
    [
        pytest.param([0, 1, 0], 120, [0, 0, 0], {1, 2}, id="at the bound"),
        pytest.param([0, 1, 0], 119.9, [0, 0, 0], {0, 1, 2, 3}, id="before it"),
        pytest.param([0, 0.1, 0], [0, 130, 200, 0], [0, 0, 0], {1, 2}, id="the least vehicle"),
        pytest.param([0, 1, 0], [0, 130, 20, 0], [0, 0, 0], {0, 1, 2, 3}, id="it had one of its greens"),
        pytest.param([0, 0, 0], 500, [0, 0, 0], {0, 1, 2, 3}, id="no vehicle halts"),
        pytest.param([0, 1, 0], 500, [0, 1, 0], {0, 1, 2, 3}, id="full exits"),
        pytest.param([1, 0, 0], 500, [0, 0, 0], {0, 1, 2, 3}, id="served now"),
        pytest.param([0, 0, 1], 500, [0, 0, 0], {0, 1, 2, 3}, id="no green serves it"),
        pytest.param([0, 1, 1], 500, [0, 0, 0], {1, 2}, id="beside one that no green serves"),
    ],
)
def test_a_lane_that_has_waited_two_minutes_is_served_next(rules, halting, since_s, full, green):
    exits = {"exit_blocked": full, "exit_occupancy": full}
    assert allowed(rules, CROSSING, LANES, since_s=since_s, halting=halting, **exits) == green


def test_a_lane_that_the_current_green_serves_is_not_late(rules):
    # of its other links, which may have no vehicle, nothing is known
    assert allowed(rules, ["Grr", "rGG"], [[0, 1, 2]], since_s=500, halting=1) == {0, 1}
    assert allowed(rules, ["rrr", "rGG"], [[0, 1, 2]], since_s=500, halting=1) == {1}


@pytest.mark.parametrize(
    ("since_s", "green"), [([0, 130, 140], {2}), ([0, 140, 130], {1}), ([0, 140, 119], {1}), ([0, 119, 140], {2})]
)
def test_of_several_lanes_the_one_with_the_longest_red_is_served(rules, since_s, green):
    assert allowed(rules, ["Grr", "rGr", "rrG"], LANES, since_s=since_s, halting=1) == green


@pytest.mark.parametrize(
    ("since_s", "green"), [([0, 150, 160, 170], {3}), ([0, 170, 160, 150], {1}), ([0, 119, 119, 120], {3})]
)
def test_a_late_lane_is_served_by_a_green_for_its_longest_red(rules, since_s, green):
    greens, links = ["rrrG", "Grrr", "rGrr", "rrGr"], [[0, 1, 2], [3]]
    assert allowed(rules, greens, links, since_s=since_s, halting=[1, 0]) == green


def test_a_lane_that_stands_under_its_green_is_late(rules):
    """Its first vehicle may wait for the link with red."""
    greens = ["ggr", "rrG"]
    own = {"since_s": [0, 130], "halting": 1, "green_s": 30}
    assert allowed(rules, greens, [[0, 1, 2]], first_wait=3.9, **own) == {0, 1}
    assert allowed(rules, greens, [[0, 1, 2]], first_wait=4, **own) == {1}


@pytest.mark.parametrize(
    ("near", "soon", "green"),
    [
        pytest.param([3, 0, 0], [0, 0, 0], {0}, id="one lane"),
        pytest.param([0, 0.1, 0], [0, 0, 0], {1, 2}, id="two greens for it"),
        pytest.param([3, 0, 0], [0, 0.1, 0], {0, 1, 2}, id="vehicles arrive on another lane"),
        pytest.param([0, 0, 0], [3, 0, 0], {0, 1, 2, 3}, id="no vehicle is near"),
        pytest.param([0, 0, 0], [0, 0, 0], {0, 1, 2, 3}, id="no vehicle at all"),
        pytest.param([0, 0, 2], [0, 0, 2], {0, 1, 2, 3}, id="only where no green serves"),
    ],
)
def test_a_green_that_moves_nothing_is_not_chosen_while_another_moves_something(rules, near, soon, green):
    assert allowed(rules, CROSSING, LANES, vehicles_near=near, arriving_soon=soon) == green


BLOCKED, OCCUPANCY = (np.float32(bound) for bound in (0.99, 0.8))


@pytest.mark.parametrize(
    ("blocked", "occupancy", "is_full"),
    [
        (1, 1, True),
        (BLOCKED, 1, False),
        (np.nextafter(BLOCKED, np.float32(1)), 1, True),
        (1, OCCUPANCY, False),
        (1, np.nextafter(OCCUPANCY, np.float32(1)), True),
        (0, 1, False),
        (1, 0, False),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exits_are_full_above_both_bounds(rules, blocked, occupancy, is_full, dtype):
    exits = {"exit_blocked": [blocked, 0, 0], "exit_occupancy": [occupancy, 0, 0]}
    junction, x = seen(CROSSING, LANES, vehicles_near=[3, 1, 0], **exits)
    # the parity check evaluates the NumPy side in float64, a training in float32
    _, found = rules(junction, x.astype(dtype) if rules is numpy_rules else x)
    assert set(np.flatnonzero(found[0])) == ({1, 2} if is_full else {0, 1, 2})


def test_full_exits_do_not_count_if_no_green_moves_anything(rules):
    assert allowed(rules, CROSSING, LANES, vehicles_near=[3, 1, 0], **FULL) == {0, 1, 2, 3}


def test_a_green_with_room_ahead_of_one_of_its_lanes_is_allowed(rules):
    exits = {"exit_blocked": [1, 0], "exit_occupancy": [1, 0]}
    assert allowed(rules, ["Gr", "rG", "GG"], [[0], [1]], vehicles_near=1, **exits) == {1, 2}


@pytest.mark.parametrize(
    ("first_wait", "near", "green_s", "green"),
    [
        pytest.param([4, 0, 0], [3, 0, 1], 4, {1}, id="its only vehicles stand"),
        pytest.param([3.9, 0, 0], [3, 0, 1], 4, {0, 1}, id="not for long yet"),
        pytest.param([4, 0, 0], [3, 0, 1], 3.9, {0, 1}, id="the green is young"),
        pytest.param([4, 0, 0], [3, 1, 1], 4, {0, 1}, id="another of its lanes moves"),
        pytest.param([4, 4, 0], [3, 1, 1], 4, {1}, id="both stand"),
        pytest.param([4, 0, 0], [3, 0, 0], 4, {0, 1}, id="nothing moves anywhere"),
    ],
)
def test_a_green_under_which_the_first_vehicles_stand_is_left_for_others(rules, first_wait, near, green_s, green):
    own = {"vehicles_near": near, "first_wait": first_wait, "green_s": green_s}
    assert allowed(rules, ["Ggr", "rrG"], LANES, **own) == green


def test_another_green_may_serve_a_lane_that_stands_under_the_current_one(rules):
    # the first vehicle waits for the second link
    own = {"vehicles_near": [3, 1], "first_wait": [4, 0]}
    assert allowed(rules, ["Grr", "rGr", "rrG", "Grr"], [[0, 1], [2]], **own) == {1, 2}


def test_a_late_lane_goes_before_vehicles_that_move(rules):
    own = {"vehicles_near": [3, 0, 0], "halting": [0, 1, 0]}
    assert allowed(rules, CROSSING, LANES, since_s=130, **own) == {1, 2}


def test_among_greens_for_a_late_lane_one_that_moves_something_is_chosen(rules):
    # lanes that are late and have room; the second of their greens serves the vehicles that are near too
    own = {"vehicles_near": [0, 1, 1], "halting": [0, 1, 0], "first_wait": 0, "since_s": 130}
    assert allowed(rules, ["Grr", "rGr", "rGG"], LANES, **own) == {1, 2}
    assert allowed(rules, ["Grr", "rGr", "rGG"], LANES, **{**own, "vehicles_near": [0, 0, 1]}) == {2}


def test_padding_is_never_allowed_and_changes_nothing(rules):
    rng = np.random.default_rng(1)
    small, large = random_junction(rng, 3, 4), random_junction(rng, 8, 20)
    first, *_ = steps = [PhaseCompetition(random_network(rng), junction) for junction in (small, large)]
    x = observations_at_bounds(3, 4, 200, rng)
    padded = np.pad(x, ((0, 0), (0, 1)))[:, first.fleet_columns(steps)]
    _, found = rules(Padded.of([small, large]).take(np.zeros(len(x), np.intp)), padded)
    _, own = rules(Padded.of([small] * len(x)), x)
    np.testing.assert_array_equal(found[:, :3], own)
    assert not found[:, 3:].any() and own.any(1).all()


def test_a_green_that_must_not_be_chosen_is_below_all_others_and_the_others_keep_their_order():
    rng = np.random.default_rng(3)
    step = PhaseCompetition(random_network(rng), random_junction(rng, 5, 9, links=14))
    x = observations_at_bounds(5, 9, 400, rng)
    _, may = numpy_rules(Padded.of([step.junction] * len(x)), x)
    for logits in (in_numpy(step, x), built(step, x)):
        lowest = np.where(may, logits, np.inf).min(1)
        is_masked = ~may & np.ones_like(logits, bool)
        assert is_masked.any() and (logits[is_masked] <= np.repeat(lowest[:, None], 5, 1)[is_masked] - 29.9).all()
        assert may[np.arange(len(x)), logits.argmax(1)].all()


# the head of a lane is served


def served_after(greens, waits_for, current, since_s, decisions=None):
    """Number of decisions until the first vehicle of a lane has its green; None after so many (default: two rounds).

    Of the allowed greens, the one that serves the largest share of the lane is chosen. All other lanes are empty.
    """
    since_s, green_s, first_wait = np.array(since_s), 5.0, 0.0
    since_s[current] = 0
    for decision in range(decisions or 2 * len(greens)):
        if greens[current][waits_for] in "Gg":
            return decision
        own = {"first_wait": first_wait, "vehicles_near": 1, "halting": 1, "green_s": green_s, "since_s": since_s}
        lane = list(range(len(greens[0])))
        service, may = numpy_rules(*seen(greens, [lane], current=current, **own))
        # a change costs time: equal greens are kept
        score = (service.protected + service.permissive)[0, :, 0] + 0.01 * (np.arange(len(greens)) == current)
        chosen = int(np.where(may[0], score, -1).argmax())
        passed_s = 5.0 if chosen == current else 8.0
        since_s += passed_s
        green_s = green_s + 5.0 if chosen == current else 5.0
        since_s[current], since_s[chosen] = 8.0, 0
        current, first_wait = chosen, first_wait + passed_s
    return None


@st.composite
def heads(draw, states):
    """(greens that together serve every link of a lane, the link that its first vehicle waits for, the current green,
    times since the greens)."""
    links = draw(st.integers(1, 5))
    greens = draw(st.lists(st.text(states, min_size=links, max_size=links), min_size=1, max_size=6))
    served = [any(green[k] in "Gg" for green in greens) for k in range(links)]
    greens += ["".join("G" if k == link else "r" for k in range(links)) for link in range(links) if not served[link]]
    times_s = st.lists(st.sampled_from([5.0, 60.0, 110.0]), min_size=len(greens), max_size=len(greens))
    return greens, draw(st.integers(0, links - 1)), draw(st.integers(0, len(greens) - 1)), draw(times_s)


@given(heads("Gr"))
@settings(max_examples=300, deadline=None)
def test_the_first_vehicle_of_a_lane_is_served_within_two_rounds_of_greens(head):
    """On any signal whose greens together serve every link; no detector sees the link that the vehicle waits for."""
    assert served_after(*head) is not None


@given(heads("Ggr"))
@example((["rrg", "rrg", "rGr"], 1, 0, [5.0] * 3))
@example((["GGGrg", "GGgrg", "rrrGr"], 3, 0, [5.0] * 3))
@settings(max_examples=300, deadline=None)
def test_the_first_vehicle_is_served_two_minutes_later_if_another_link_of_its_lane_is_g(head):
    """It may wait for a gap, so greens that show another link g are not excluded, and may stand in turns."""
    late = int(MAX_RED_S / 5)
    assert served_after(*head, decisions=late + 2 * len(head[0])) is not None


# JSON


@pytest.mark.parametrize(
    "change",
    [
        {"features": FEATURES[:-1]},
        {"features": [*FEATURES[1:], FEATURES[0]]},
        {"features": None},
        {"links": 4},
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


# fleets


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e30, 1e30])
def test_values_that_are_no_readings_give_a_valid_choice(value):
    rng = np.random.default_rng(0)
    for size in ((2, 5), (4, 12), (8, 20)):
        (step,) = random_policy(rng, *size).steps
        x = random_observations(rng, *size, 6)
        x[rng.random(x.shape) < 0.3] = value
        x[0] = value
        logits = built(step, x)
        assert logits.shape == (6, size[0]) and ((logits.argmax(1) >= 0) & (logits.argmax(1) < size[0])).all()
