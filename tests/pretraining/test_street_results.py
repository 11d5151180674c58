"""Simulations of synthetic streets: the same again, and a policy for any junction in this process."""

import numpy as np
import pytest

from city import network
from evaluation.arms import MAX_PRESSURE, Arm
from export.actors.phase_competition import Junction, PhaseCompetition
from export.checkpoints import phase_networks
from pretraining.street_results import JunctionPolicies, StreetJob, run_job
from pretraining.streets import city_of
from pretraining.synthetic.streets import generate
from signals import contract
from tests.export.phase_competition_models import random_network, random_observations

SEED = 1000050
"""Results of a street with conflicts in junctions that SUMO decides by the addresses of its objects."""


def simulated(folder, seconds):
    return run_job(StreetJob("", folder, 50, 200.0, seconds, Arm(MAX_PRESSURE, MAX_PRESSURE)))


@pytest.mark.slow
def test_a_simulation_is_the_same_again_after_others_in_the_same_process(tmp_path):
    congested, other = (generate(tmp_path, seed) for seed in (SEED, 3))
    found = []
    for k in range(5):
        found.append(simulated(congested, 400.0))
        simulated(other, 50.0 * (k + 1))
    assert found == 5 * found[:1] and found[0].finished > 50


def test_junctions_of_any_size_are_asked_together(tmp_path):
    folder = generate(tmp_path, 4)
    city = city_of(folder)
    street = network.of_city(city)
    contracts = [contract.build(city, tl, street) for tl in city.tls.values()]
    policy, network_weights = tmp_path / "any.policy", random_network(np.random.default_rng(0))
    phase_networks.save(policy, network_weights, {}, {})
    steps = {c.tl: PhaseCompetition(network_weights, Junction.of_contract(c)) for c in contracts}
    assert len({step.junction.sizes for step in steps.values()}) > 1, "the junctions have different sizes"
    policies, rng = JunctionPolicies(contracts, policy), np.random.default_rng(1)
    actions = set()
    for _ in range(100):
        due = rng.permutation(list(steps))[: rng.integers(1, len(steps) + 1)].tolist()
        observations = {tl: random_observations(rng, *steps[tl].junction.sizes[:2], 1)[0] for tl in due}
        answers = policies.ask(observations)
        assert list(answers) == due
        for tl in due:
            (expected,) = steps[tl].evaluate(observations[tl][None].astype(np.float64), []).argmax(1)
            assert answers[tl].action.tolist() == [expected]
            actions.add((tl, expected))
    assert len(actions) >= 2 * len(steps)
    assert policies.ask({}) == {}
