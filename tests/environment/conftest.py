"""Environments of the sample city that the test closes."""

import pytest

import greenserve
from tests.conftest import GRID


@pytest.fixture
def parallel():
    """`greenserve.parallel_env` of the sample city."""
    made = []

    def make(target_tls=None, infer_tls=(), **options):
        made.append(greenserve.parallel_env(options.pop("city", GRID / "city.toml"), target_tls, infer_tls, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def single():
    """`greenserve.env` of the sample city."""
    made = []

    def make(target_tl="SA101", infer_tls=(), **options):
        made.append(greenserve.env(options.pop("city", GRID / "city.toml"), target_tl, infer_tls, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def play(env, policy=None, seed=1):
    """An episode of a parallel environment: [(observations, rewards, infos)], first that of the reset."""
    observations, infos = env.reset(seed=seed)
    for k, tl in enumerate(env.agents):
        env.action_space(tl).seed(k)
    steps = [(observations, {}, infos)]
    while env.agents:
        actions = policy(observations) if policy else {tl: env.action_space(tl).sample() for tl in env.agents}
        observations, rewards, _, _, infos = env.step(actions)
        steps.append((observations, rewards, infos))
    return steps
