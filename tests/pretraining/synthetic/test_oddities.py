"""Oddities of streets, found in their files."""

import numpy as np

from pretraining.synthetic import oddities, street_kinds, streets
from pretraining.synthetic.oddities import Oddity
from pretraining.synthetic.street_kinds import Shape

SEEDS = (0, 3, 4, 5, 10, 101)


def test_each_oddity_is_on_a_street_and_not_on_all_and_roundabouts_are_known_by_their_kind(tmp_path):
    found = {seed: oddities.of_street(streets.generate(tmp_path, seed)) for seed in SEEDS}
    for oddity in Oddity:
        assert 0 < sum(oddity in own for own in found.values()) < len(SEEDS), oddity
    for seed, own in found.items():
        kind = street_kinds.draw(np.random.default_rng([seed, 0]))
        assert (Oddity.ROUNDABOUT in own) is (kind.shape is Shape.ROUNDABOUT)
