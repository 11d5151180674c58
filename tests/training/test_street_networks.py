"""The networks of a street: what is trained, what is written and what is exported decide alike."""

import csv
import re

import numpy as np
import pytest

from city import network
from export.actors.phase_competition import (
    SHAPES,
    Observed,
    Padded,
    PhaseCompetition,
    greens_allowed,
    inputs,
    log_softmax,
    observations_at_bounds,
    scores,
    service_of,
)
from export.checkpoints import phase_networks
from greenserve.__main__ import main
from tests.conftest import GRID
from tests.export.phase_competition_models import random_junction, random_network, random_observations
from training.phase_competition.networks import (
    ACTOR,
    CRITIC_SHAPES,
    StreetActorCritic,
    StreetLayout,
    load_policy,
    save_policy,
)

SIZES = {"A": (2, 5), "B": (4, 12), "C": (8, 20)}


@pytest.fixture
def layout():
    rng = np.random.default_rng(5)
    return StreetLayout(tuple(SIZES), tuple(random_junction(rng, *size) for size in SIZES.values()))


def random_arrays():
    rng = np.random.default_rng(6)
    critic = [rng.standard_normal(shape).astype(np.float32) for shape in CRITIC_SHAPES.values()]
    return [*random_network(rng).values(), *critic]


def observations(rows, at_bounds=False):
    """By TL, float32 [rows, O]."""
    rng = np.random.default_rng(7)
    draw = observations_at_bounds if at_bounds else lambda *size, rng: random_observations(rng, *size)
    return {tl: draw(*size, rows, rng=rng) for tl, size in SIZES.items()}


def decided(networks, x, act):
    """By TL, what `act` returns for the rows and inputs of all TLs at once."""
    tls = [tl for tl in x for _ in x[tl]]
    rows = networks.rows_of(tls)
    found = act(rows, networks.inputs_of([row for tl in x for row in x[tl]], rows))
    return {tl: found[[k for k, other in enumerate(tls) if other == tl]] for tl in x}


@pytest.mark.parametrize("at_bounds", [False, True])
def test_a_written_policy_decides_as_the_networks_and_is_where_another_training_starts(layout, at_bounds, tmp_path):
    arrays, sharpness = random_arrays(), 3.0
    networks = StreetActorCritic(layout, arrays, sharpness)
    save_policy(tmp_path / "x.policy", arrays, sharpness, {})
    for k, (stored, array) in enumerate(zip(load_policy(tmp_path / "x.policy"), arrays, strict=True)):
        np.testing.assert_array_equal(stored, sharpness * array if k in (ACTOR - 2, ACTOR - 1) else array)
    written, _ = phase_networks.load(tmp_path / "x.policy")
    x = observations(100, at_bounds)
    actions = decided(networks, x, networks.greedy_actions)
    for tl, junction in zip(layout.tls, layout.junctions, strict=True):
        logits = PhaseCompetition(written, junction).evaluate(x[tl].astype(np.float64), [])
        top = np.sort(logits, 1)
        is_clear = top[:, -1] - top[:, -2] > 1e-3
        assert (actions[tl][:, 0] == logits.argmax(1))[is_clear].all() and is_clear.mean() > 0.9


def test_greens_are_sampled_with_the_probabilities_among_those_that_the_rules_allow(layout):
    arrays = random_arrays()
    networks = StreetActorCritic(layout, arrays)
    x = observations(200, at_bounds=True)

    def sample(rows, inputs):
        actions, log_p = networks.sample(rows, inputs, np.random.default_rng(8))
        return np.column_stack([actions[:, 0], log_p])

    found = decided(networks, x, sample)
    for tl, junction in zip(layout.tls, layout.junctions, strict=True):
        own = Padded.of([junction] * len(x[tl]))
        observed = Observed.of(x[tl], junction.sizes[0])
        service = service_of(own, observed)
        allowed = greens_allowed(own, observed, service)
        is_restricted = ~allowed.all(1)
        assert is_restricted.any() and not is_restricted.all()
        rows, actions = np.arange(len(allowed)), found[tl][:, 0].astype(int)
        assert allowed[rows, actions].all()
        y = scores(arrays[: len(SHAPES)], own, service, *inputs(own, observed, service))
        expected = log_softmax(np.where(allowed, y, -1e9))
        np.testing.assert_allclose(found[tl][:, 1], expected[rows, actions], rtol=1e-3, atol=1e-3)


def test_tls_of_a_street_decide_as_each_alone(layout):
    networks = StreetActorCritic(layout, random_arrays())
    x = observations(20)
    values, actions = (decided(networks, x, act) for act in (networks.critic, networks.greedy_actions))
    for k, tl in enumerate(layout.tls):
        alone = StreetActorCritic(StreetLayout((tl,), (layout.junctions[k],)), random_arrays())
        rows = alone.rows_of([tl] * len(x[tl]))
        inputs = alone.inputs_of(list(x[tl]), rows)
        np.testing.assert_allclose(alone.critic(rows, inputs), values[tl], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(alone.greedy_actions(rows, inputs), actions[tl])


def test_a_training_from_a_policy_is_not_worse_than_its_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = min(network.of_sumocfg(GRID / "grid.sumocfg").signals)
    (tmp_path / "city.toml").write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.A]\nsignals = ["{name}"]\ndialect = "street"\n'
    )
    flags = "--episodes 1 --episodes-per-update 1 --seconds 120 --held-out 1 --learning-rate 0.9"
    assert main(["train", "--start-from", "pretrained", *flags.split()]) == 0
    output = capsys.readouterr()
    start_s = float(re.search(r"before the first update: validation ([\d.]+) s", output.err)[1])
    curve = list(csv.DictReader((tmp_path / "checkpoints" / "trial_1_curve.csv").open()))
    found = re.search(
        r"mean delay ([\d.]+) s on 5 fresh demands; ([\d.]+) s with the policy of --start-from; the trained one is better "
        r"on (\d) of 5",
        output.out,
    )
    rows = list(csv.DictReader((tmp_path / "checkpoints" / "trial_1_evaluation.csv").open()))
    pairs = [(float(row["delay_s"]), float(row["start_delay_s"])) for row in rows]
    assert int(found[3]) == sum(own < other for own, other in pairs)
    assert [float(text) for text in found.groups()[:2]] == pytest.approx(np.mean(pairs, 0), abs=0.06)
    if float(curve[-1]["validation_delay_s"]) >= start_s:
        assert all(own == other for own, other in pairs), "the start is what was written"
