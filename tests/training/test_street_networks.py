"""The networks of a street: what is trained, what is written and what is exported decide alike."""

import csv
import re

import numpy as np
import pytest

from city import network
from export.actors import phase_competition
from export.actors.phase_competition import (
    MAX_RED_S,
    SHAPES,
    Padded,
    PhaseCompetition,
    greens_allowed,
    greens_in_training,
    log_softmax,
    scores,
)
from export.checkpoints import phase_networks
from greenserve.__main__ import main
from signals.approach_features import FEATURES
from tests.conftest import GRID
from tests.export.compared_fleets import is_clear
from tests.export.phase_competition_models import random_junction, random_networks, random_observations
from training.phase_competition import policy_file
from training.phase_competition.networks import (
    CRITIC_SHAPES,
    StreetActorCritic,
    StreetLayout,
    initial_arrays,
)
from training.phase_competition.policy_file import load, save

SIZES = {"A": (2, 5), "B": (4, 12), "C": (8, 20)}


@pytest.fixture
def layout():
    rng = np.random.default_rng(5)
    return StreetLayout(tuple(SIZES), tuple(random_junction(rng, *size) for size in SIZES.values()))


def random_arrays(networks):
    rng = np.random.default_rng(6)
    critics = [rng.standard_normal((networks, *shape)).astype(np.float32) for shape in CRITIC_SHAPES.values()]
    return [*random_networks(rng, networks).values(), *critics]


def observations(rows, max_red_s=119.0):
    """By TL, float32 [rows, O]; no exit is blocked."""
    rng = np.random.default_rng(7)
    x = {tl: random_observations(rng, *size, rows, max_red_s) for tl, size in SIZES.items()}
    for tl, (greens, _) in SIZES.items():
        x[tl][:, greens + 2 :].reshape(rows, -1, len(FEATURES))[..., FEATURES.index("exit_blocked")] = 0
    return x


def decided(networks, x, act):
    """By TL, what `act` returns for the rows and inputs of all TLs at once."""
    tls = [tl for tl in x for _ in x[tl]]
    rows = networks.rows_of(tls)
    found = act(rows, networks.inputs_of([row for tl in x for row in x[tl]], rows))
    return {tl: found[[k for k, other in enumerate(tls) if other == tl]] for tl in x}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("max_red_s", [119.0, 300.0])
def test_trained_networks_decide_as_the_policy_that_is_written(layout, count, max_red_s, tmp_path):
    arrays, sharpness = random_arrays(count), 3.0
    networks = StreetActorCritic(layout, arrays, sharpness)
    save(tmp_path / "x.policy", arrays, sharpness, {})
    written, _ = phase_networks.load(tmp_path / "x.policy")
    x = observations(100, max_red_s)
    actions = decided(networks, x, networks.greedy_actions)
    for tl, junction in zip(layout.tls, layout.junctions, strict=True):
        logits = PhaseCompetition(written, junction).evaluate(x[tl].astype(np.float64), [])
        clear = is_clear(logits, 1e-3)
        assert (actions[tl][:, 0] == logits.argmax(1))[clear].all() and clear.mean() > 0.9


def test_written_policy_is_where_another_training_starts(tmp_path):
    arrays = random_arrays(1)
    save(tmp_path / "x.policy", arrays, 1.0, {})
    np.testing.assert_equal(load(tmp_path / "x.policy"), arrays)


def test_greens_are_sampled_with_the_probabilities_among_those_that_the_rules_of_a_training_allow(layout):
    arrays = random_arrays(1)
    networks = StreetActorCritic(layout, arrays)
    x = observations(200, 150.0)

    def sample(rows, inputs):
        actions, log_p = networks.sample(rows, inputs, np.random.default_rng(8))
        return np.column_stack([actions[:, 0], log_p])

    found = decided(networks, x, sample)
    for tl, junction in zip(layout.tls, layout.junctions, strict=True):
        greens = len(junction.protected)
        features = x[tl][:, greens + 2 :].reshape(len(x[tl]), -1, len(FEATURES))
        own, current, green_s = Padded.of([junction] * len(x[tl])), x[tl][:, :greens], x[tl][:, greens + 1]
        allowed = greens_in_training(own, current, features)
        is_restricted = ~allowed.all(1)
        assert is_restricted.any() and not is_restricted.all()
        rows, actions = np.arange(len(allowed)), found[tl][:, 0].astype(int)
        assert allowed[rows, actions].all()
        y = log_softmax(
            scores(
                [array[0] for array in arrays[: len(SHAPES)]],
                own,
                *phase_competition.inputs(own, current, green_s, features),
            )
        )
        expected = log_softmax(np.where(allowed, y, -np.inf))
        np.testing.assert_allclose(found[tl][:, 1], expected[rows, actions], rtol=1e-3, atol=1e-3)
        # a lane that waits alone, at a green that does not serve it
        serves = junction.protected + junction.permissive > 0
        late = (features[..., FEATURES.index("longest_red")] >= MAX_RED_S) & (
            features[..., FEATURES.index("halting")] > 0
        )
        for k in np.flatnonzero(late.sum(1) == 1):
            lane = late[k].argmax()
            if serves[:, lane].any() and not serves[current[k].argmax(), lane]:
                assert serves[int(found[tl][k, 0]), lane]


def test_the_rules_of_a_training_allow_what_all_rules_allow_without_full_exits_and_standing_greens(layout):
    x = observations(300, 150.0)
    for tl, junction in zip(layout.tls, layout.junctions, strict=True):
        greens = len(junction.protected)
        features = x[tl][:, greens + 2 :].reshape(len(x[tl]), -1, len(FEATURES))
        own, current = Padded.of([junction] * len(x[tl])), x[tl][:, :greens]
        trained = greens_in_training(own, current, features)
        np.testing.assert_array_equal(trained, greens_allowed(own, current, np.zeros(len(trained)), features))
        features[..., FEATURES.index("exit_blocked")] = 1
        features[..., FEATURES.index("exit_occupancy")] = np.random.default_rng(9).uniform(0.7, 0.9, features.shape[:2])
        restricted = greens_allowed(own, current, np.zeros(len(trained)), features)
        trained = greens_in_training(own, current, features)
        assert (trained >= restricted).all() and (trained > restricted).any()


def test_tls_of_a_street_decide_as_each_alone(layout):
    networks = StreetActorCritic(layout, random_arrays(2))
    x = observations(20)
    values, actions = (decided(networks, x, act) for act in (networks.critic, networks.greedy_actions))
    for k, tl in enumerate(layout.tls):
        alone = StreetActorCritic(StreetLayout((tl,), (layout.junctions[k],)), random_arrays(2))
        rows = alone.rows_of([tl] * len(x[tl]))
        inputs = alone.inputs_of(list(x[tl]), rows)
        np.testing.assert_allclose(alone.critic(rows, inputs), values[tl], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(alone.greedy_actions(rows, inputs), actions[tl])


@pytest.mark.parametrize("start", ["x.policy", pytest.param("pretrained", marks=pytest.mark.slow)])
def test_a_training_from_a_policy_is_not_worse_than_its_start(start, tmp_path, capsys, in_tmp_path):
    name = min(network.of_sumocfg(GRID / "grid.sumocfg").signals)
    (tmp_path / "city.toml").write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.A]\nsignals = ["{name}"]\ndialect = "street"\n'
    )
    policy_file.save(tmp_path / "x.policy", initial_arrays(np.random.default_rng(0)), 1.0, {})
    flags = "--episodes 1 --episodes-per-update 1 --seconds 120 --held-out 1 --learning-rate 0.9"
    assert main(["train", "--start-from", start, *flags.split()]) == 0
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
