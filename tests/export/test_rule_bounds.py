"""Parity observations reach every branch of the rules of phase competition: changes of each one are found."""

import functools
import inspect
import itertools

import numpy as np
import pytest

from export.actors import Actor, phase_competition, phase_competition_graph
from export.actors.phase_competition import (
    EXIT_BLOCKED,
    EXIT_OCCUPANCY,
    FIRST_WAIT,
    HALTING,
    MAX_RED_S,
    NEAR,
    RED_CAP,
    RED_SCALE_S,
    SHAPES,
    SOON,
    STOOD_S,
    Junction,
    Observed,
    Padded,
    PhaseCompetition,
    observation_size,
)
from export.saved_model import verify, write
from serving.contract import CATEGORICAL
from signals.dialects.street import DIALECT
from tests.export.phase_competition_models import contract_of, random_network
from tests.export.test_phase_competition import graph_rules, numpy_rules

SIGNALS = {
    # lefts that yield, then lefts with a green of their own, on lanes of their own
    "four greens": (
        ["GGgrrrGGgrrr", "rrGrrrrrGrrr", "rrrGGgrrrGGg", "rrrrrGrrrrrG"],
        [[0, 1], [2], [3, 4], [5], [6, 7], [8], [9, 10], [11]],
    ),
    # each green serves a part of a lane; a link of the last one has no green
    "arrows on shared lanes": (
        ["GGrrrrGGrrrrr", "rrGrrrrrGrrrr", "rrrGGrrrrGGrr", "rrrrrGrrrrrGr"],
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11, 12]],
    ),
    # shares that are equal but for rounding; the last lane has no green
    "six links": (["rrrrrrGr", "GGGGGrrr", "Gggggrrr", "GGGGrGrr"], [[0, 1, 2, 3, 4, 5], [6], [7]]),
}


def street_contract(name):
    """A contract of dialect street as an export has it."""
    greens, lanes = SIGNALS[name]
    contract = contract_of(greens, lanes)
    contract.observation.dialect, contract.observation.size = DIALECT.name, observation_size(len(greens), len(lanes))
    contract.action.size, contract.action.kind, contract.tl = len(greens), CATEGORICAL, "A"
    return contract


@functools.cache
def observed_at(name):
    """(junctions, observations) of the parity check of a signal's model."""
    contract = street_contract(name)
    (x,) = verify.at_bounds(contract)
    return Padded.of([Junction.of_contract(contract)] * len(x)), x


@functools.cache
def expected_at(name, compute):
    """The results of one side without a change."""
    return compute(*observed_at(name))


# old and new text of NumPy's function, and of the graph's
CHANGES = {
    "stood at the bound": ("service_of", "first_s >= since", "first_s > since", "first_s >= since_s +", "first_s > since_s +"),
    "stood for less": ("service_of", "np.float32(STOOD_S)", "np.float32(3.5)", "since_s + STOOD_S", "since_s + 3.5"),
    "the current green's time at the bound": ("service_of", "green_s >= STOOD_S", "green_s > STOOD_S"),
    "the current green's time": ("service_of", "green_s >= STOOD_S", "green_s >= -1"),
    "the time of other greens": ("service_of", "~is_current | ", "~is_current & True & "),
    "g excludes links": (
        "service_of",
        "@ junction.protected) > 0",
        "@ (junction.protected + junction.permissive)) > 0",
        'tf.float32), junction["protected"]',
        'tf.float32), junction["protected"] + junction["permissive"]',
    ),
    "no link is excluded": ("service_of", "junction.links * ~not_its", "junction.links", "tf.where(not_its", "(lambda *a: a[2])(not_its"),
    "all links excluded": (
        "service_of",
        "links = np.where(links.any(2, keepdims=True), links, junction.links)",
        "",
        'links = tf.where(tf.reduce_any(links > 0, 2, keepdims=True), links, junction["links"])',
        "",
    ),
    "red of g": ("service_of", "(junction.protected + junction.permissive) > 0", "junction.protected > 0", 'junction["protected"] + junction["permissive"]\n', 'junction["protected"]\n'),
    "red since the first green": ("service_of", "LONGEST_RED_S)).min(1)", "LONGEST_RED_S)).max(1)", "red_s = tf.reduce_min", "red_s = tf.reduce_max"),
    "red of all links": ("service_of", "links * red_s[:, None]", "junction.links * red_s[:, None]", "links * red_s,", 'junction["links"] * red_s,'),
    "red of any of the lanes": ("greens_allowed", "waits[..., None]).max(1)", "waits[..., None]).min(1)", "waiting_s = tf.reduce_max(", "waiting_s = tf.reduce_min("),
    "stands at any green": ("service_of", "stands = np.any(is_current[:, :, None] & serves", "stands = np.any(serves", "tf.expand_dims(is_current, 2) & serves & stood", "serves & stood"),
    "stands without being served": ("service_of", " & serves & stood", " & stood"),
    "stands whenever it is served": ("service_of", " & serves & stood", " & serves"),
    "blocked exits": ("greens_allowed", "(features[EXIT_BLOCKED] > MIN_BLOCKED_SHARE) & ", ""),
    "blocked exits at the bound": ("greens_allowed", "> MIN_BLOCKED_SHARE", ">= MIN_BLOCKED_SHARE"),
    "occupied exits": ("greens_allowed", " & (features[EXIT_OCCUPANCY] > FULL_OCCUPANCY)", ""),
    "occupied exits at the bound": ("greens_allowed", "> FULL_OCCUPANCY", ">= FULL_OCCUPANCY"),
    "late lanes without vehicles": ("greens_allowed", "(features[HALTING] > 0) & ", ""),
    "late lanes with one vehicle": ("greens_allowed", "[HALTING] > 0", "[HALTING] > 1"),
    "late lanes without a green": ("greens_allowed", "serves.any(1) & ", "", "tf.reduce_any(serves, 1) & ", ""),
    "late lanes that are served": ("greens_allowed", " & (~served_now | service.stands)", ""),
    "late lanes that stand": ("greens_allowed", "(~served_now | service.stands)", "~served_now"),
    "late lanes with full exits": ("greens_allowed", "service.stands) & ~is_full", "service.stands)"),
    "another late lane": ("greens_allowed", "waiting_s.argmax(1)", "waiting_s.argmin(1)", "tf.argmax(waiting_s", "tf.argmin(waiting_s"),
    "any green for a late link": ("greens_allowed", "[rows, :, longest] > 0", "[rows, :, longest] > -1", "batch_dims=1) > 0", "batch_dims=1) > -1"),
    "late at the bound": ("greens_allowed", ">= MAX_RED_S", "> MAX_RED_S"),
    "late too soon": ("greens_allowed", ">= MAX_RED_S", ">= 110"),
    "no lane is late": ("greens_allowed", ">= MAX_RED_S", ">= 1e9"),
    "full exits move": ("greens_allowed", "serves & ~is_full[:, None]", "serves", "serves & ~tf.expand_dims(is_full, 1)", "serves"),
    "standing lanes move": ("greens_allowed", " & ~(is_current[:, :, None] & service.stands[:, None])", "", " & ~(is_current & tf.expand_dims(service.stands, 1))", ""),
    "standing lanes move under no green": ("greens_allowed", "~(is_current[:, :, None] & service.stands[:, None])", "~service.stands[:, None]", "~(is_current & tf.expand_dims(service.stands, 1))", "~tf.expand_dims(service.stands, 1)"),
    "near vehicles alone": ("greens_allowed", "(is_near | arrives)", "is_near"),
    "arriving vehicles alone": ("greens_allowed", "(is_near | arrives)", "arrives"),
    "arriving vehicles suffice": ("greens_allowed", "can_move & is_near, 2)", "can_move & (is_near | arrives), 2)"),
    "nothing moves": ("greens_allowed", "(has_demand | ", "((allowed & has_demand) | False & "),
    "greens that are not allowed move": ("greens_allowed", "(allowed & moves)", "moves", "allowed & moves", "moves"),
    "demand is no matter": ("greens_allowed", "has_demand | ~", "allowed | ~"),
}  # fmt: skip


def changed(module, name, old, new):
    """A module's function with a changed text."""
    source = inspect.getsource(getattr(module, name))
    assert old in source, f"{old} is not in {name} of {module.__name__}"
    namespace = dict(vars(module))
    exec(source.replace(old, new), namespace)
    return namespace[name]


def differ(one, other):
    """True if two results of the rules give other logits."""
    (service, allowed), (own, others) = one, other
    if (allowed != others).any() or (service.stands != own.stands).any():
        return True
    red_s, own_red_s = (np.minimum(each.red_s, RED_CAP * RED_SCALE_S) for each in (service, own))
    pairs = (red_s, own_red_s), (service.protected, own.protected), (service.permissive, own.permissive)
    return any(np.abs(a - b).max() > 1e-3 for a, b in pairs)


@pytest.mark.parametrize("side", ["NumPy", "graph"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_parity_check_finds_a_change_of_a_rule_on_either_side(change, side, monkeypatch):
    name, *texts = CHANGES[change]
    module, compute, other = {
        "NumPy": (phase_competition, numpy_rules, graph_rules),
        "graph": (phase_competition_graph, graph_rules, numpy_rules),
    }[side]
    old, new = texts[:2] if side == "NumPy" else texts[-2:]
    expected = {signal: expected_at(signal, other) for signal in SIGNALS}
    function = changed(module, name, old, new)
    monkeypatch.setattr(module, name, function)
    if name == "greens_allowed":
        monkeypatch.setattr("tests.export.test_phase_competition.greens_allowed", phase_competition.greens_allowed)
    assert any(differ(compute(*observed_at(signal)), results) for signal, results in expected.items())


@pytest.mark.parametrize("name", SIGNALS)
def test_the_rules_of_both_sides_agree_on_parity_observations(name):
    assert not differ(expected_at(name, numpy_rules), expected_at(name, graph_rules))


def masks(junction, x):
    """By name, [n] whether a mask is on for an observation: somewhere, or everywhere."""
    observed = Observed.of(x, junction.sizes[0])
    service, allowed = numpy_rules(junction, x)
    features, current = observed.features, observed.current > 0
    first_s = features[..., FIRST_WAIT]
    serves = service.protected + service.permissive > 0
    is_full = (features[..., EXIT_BLOCKED] > np.float32(0.99)) & (features[..., EXIT_OCCUPANCY] > np.float32(0.8))
    bound_s = observed.since_s[:, :, None] + np.float32(STOOD_S)
    stood = first_s[:, None] >= bound_s
    served_now = (current[:, :, None] & serves).any(1)
    late = (service.red_s >= MAX_RED_S).any(2) & serves.any(1) & (features[..., HALTING] > 0)
    moves = serves & ~is_full[:, None] & ~(current[:, :, None] & service.stands[:, None])
    near, soon = features[:, None, :, NEAR] > 0, features[:, None, :, SOON] > 0
    return {
        "stood at another green": (stood & ~current[:, :, None]).any((1, 2)),
        "stood at the bound": (first_s[:, None] == bound_s).any((1, 2)),
        "the current green is younger": observed.green_s < STOOD_S,
        "the current green is as young": observed.green_s == STOOD_S,
        "a lane stands": service.stands.any(1),
        "all lanes stand that are served": (service.stands | ~served_now).all(1),
        "a full exit": is_full.any(1),
        "all exits are full": is_full.all(1),
        "late": (late & ~served_now & ~is_full).any(1),
        "late and served": (late & served_now).any(1),
        "late and full": (late & ~served_now & is_full).any(1),
        "several late": (late & ~served_now & ~is_full).sum(1) > 1,
        "a lane is near": near.any((1, 2)),
        "only arriving": (soon & ~near).any((1, 2)) & ~near.any((1, 2)),
        "moves somewhere": (moves & near).any((1, 2)),
        "moves everywhere": (moves & near).any(2).all(1),
        "restricted": ~allowed.all(1),
        "one green is left": allowed.sum(1) == 1,
    }  # fmt: skip


def test_every_mask_is_on_and_off_alone_and_together():
    """Each in one of 30 observations of a signal at least, and each pair at least once in the ways it can be."""
    by_name = masks(*observed_at("arrows on shared lanes"))
    for name, is_on in by_name.items():
        assert 1 / 30 < is_on.mean() < 29 / 30, f"{name}: on in {is_on.mean():.3f}"
    never = {
        frozenset(pair)
        for pair in itertools.combinations(by_name, 2)
        if not (by_name[pair[0]] & by_name[pair[1]]).any()
    }
    excluded = [
        ("the current green is younger", "the current green is as young"),
        ("the current green is younger", "a lane stands"),
        ("a lane is near", "only arriving"),
        ("only arriving", "moves somewhere"),
        ("only arriving", "moves everywhere"),
        ("all exits are full", "late"),
        ("all exits are full", "restricted"),
        ("all exits are full", "one green is left"),
        ("all lanes stand that are served", "the current green is younger"),
        ("all lanes stand that are served", "moves everywhere"),
        ("all exits are full", "several late"),
        ("all exits are full", "moves somewhere"),
        ("all exits are full", "moves everywhere"),
    ]
    assert never <= set(map(frozenset, excluded)), never - set(map(frozenset, excluded))


@pytest.mark.parametrize("change", ["late at the bound", "red of all links", "no lane is late", None])
def test_a_model_with_another_rule_is_not_published(change, tmp_path, monkeypatch):
    contract = street_contract("arrows on shared lanes")
    actor = Actor(
        "phase-competition",
        (PhaseCompetition(random_network(np.random.default_rng(0)), Junction.of_contract(contract)),),
    )
    if change:
        name, *texts = CHANGES[change]
        monkeypatch.setattr(phase_competition_graph, name, changed(phase_competition_graph, name, *texts[-2:]))
    # graphs are made once
    monkeypatch.setattr(write, "_templates", {})
    write.write(tmp_path, actor, contract)
    if change:
        with pytest.raises(verify.ParityError, match="differ from the checkpoint's"):
            verify.compare_with_checkpoint(tmp_path, actor, contract, None)
    else:
        checked = verify.compare_with_checkpoint(tmp_path, actor, contract, None)
        assert checked.observations == 256 + verify.MAX_OBSERVATIONS_AT_BOUNDS
        assert SHAPES.keys() <= actor.steps[0].weights.keys()
