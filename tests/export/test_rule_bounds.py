"""Parity observations reach every branch of the rules of phase competition: changes of each one are found."""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf

from export.actors import Actor, phase_competition, phase_competition_graph
from export.actors.phase_competition import (
    RED_CAP,
    RED_SCALE_S,
    Junction,
    Padded,
    PhaseCompetition,
    observation_size,
)
from export.saved_model import read, verify, write
from serving.contract import CATEGORICAL
from signals.dialects.street import DIALECT
from tests.export.exporting import run
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


@pytest.fixture
def no_graphs(monkeypatch):
    """A process that has made no graph yet."""
    monkeypatch.setattr(write, "_templates", {})


def written(folder, name):
    """(folder, actor, contract) of the written model of a signal."""
    contract = street_contract(name)
    step = PhaseCompetition(random_network(np.random.default_rng(0)), Junction.of_contract(contract))
    actor = Actor("phase-competition", (step,))
    folder.mkdir()
    write.write(folder, actor, contract)
    return folder, actor, contract


@pytest.mark.parametrize(
    ("change", "name"),
    [
        *(("late at the bound", name) for name in SIGNALS),
        *((change, "arrows on shared lanes") for change in ("red of all links", "no lane is late")),
    ],
)
def test_a_model_with_another_rule_is_not_published(change, name, tmp_path, monkeypatch, no_graphs):
    rule, *texts = CHANGES[change]
    monkeypatch.setattr(phase_competition_graph, rule, changed(phase_competition_graph, rule, *texts[-2:]))
    model = written(tmp_path / "wrong", name)
    with pytest.raises(verify.ParityError, match="differ from the checkpoint's"):
        verify.compare_with_checkpoint(*model, None)


def test_junctions_of_any_size_have_one_graph_and_their_own_sizes(tmp_path, no_graphs):
    for name in SIGNALS:
        folder, actor, contract = written(tmp_path / name, name)
        checked = verify.compare_with_checkpoint(folder, actor, contract, None)
        assert checked.observations == 256 + verify.MAX_OBSERVATIONS_AT_BOUNDS
        meta_graph = read.meta_graph(folder)
        signature = meta_graph.signature_def["serving_default"]
        (placeholder,) = (node for node in meta_graph.graph_def.node if node.name == "observation")
        shapes = placeholder.attr["shape"].shape, signature.inputs["observation"].tensor_shape
        shapes += (signature.outputs["probabilities"].tensor_shape,)
        assert [shape.dim[1].size for shape in shapes] == [actor.inputs, actor.inputs, actor.outputs]
        # 16 is the number of a lane's features
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            run(folder, "serving_default", observation=np.zeros((2, actor.inputs + 16)))
    assert len(write._templates) == 1
