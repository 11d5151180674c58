"""Oddities of streets, found in their files."""

import numpy as np
import pytest

from pretraining.synthetic import oddities, street_kinds, streets
from pretraining.synthetic.oddities import Oddity
from pretraining.synthetic.street_kinds import Shape


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By seed, (kind, oddities)."""
    folder = tmp_path_factory.mktemp("streets")
    kinds = {seed: street_kinds.draw(np.random.default_rng([seed, 0])) for seed in SEEDS}
    return {seed: (kinds[seed], oddities.of_street(streets.generate(folder, seed))) for seed in SEEDS}


SEEDS = (0, 3, 4, 5, 10, 101)


def test_a_roundabout_is_found_by_its_kind(found):
    for kind, own in found.values():
        assert (Oddity.ROUNDABOUT in own) is (kind.shape is Shape.ROUNDABOUT)


def test_each_oddity_is_on_a_street_and_not_on_all(found):
    for oddity in Oddity:
        count = sum(oddity in own for _, own in found.values())
        assert 0 < count < len(SEEDS), oddity
