"""Actions of a policy for several junctions at once are those of its actor for each of them."""

import numpy as np

from city import network
from export.actors.phase_competition import Junction, PhaseCompetition
from export.checkpoints import phase_networks
from pretraining.street_results import JunctionPolicies
from pretraining.streets import city_of
from pretraining.synthetic.streets import generate
from signals import contract
from tests.export.phase_competition_models import random_network, random_observations


def observation(step: PhaseCompetition, rng: np.random.Generator) -> np.ndarray:
    """A random observation of a junction."""
    return random_observations(rng, *step.junction.sizes[:2], 1)[0]


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
        observations = {tl: observation(steps[tl], rng) for tl in due}
        answers = policies.ask(observations)
        assert list(answers) == due
        for tl in due:
            (expected,) = steps[tl].evaluate(observations[tl][None].astype(np.float64), []).argmax(1)
            assert answers[tl].action.tolist() == [expected]
            actions.add((tl, expected))
    assert len(actions) >= 2 * len(steps)
    assert policies.ask({}) == {}
