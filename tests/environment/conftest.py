"""Environments of the sample city that the test closes."""

import contextlib

import pytest

import greenserve
from tests.conftest import GRID


@pytest.fixture
def parallel():
    """`greenserve.parallel_env` of the sample city."""
    yield from _closing(greenserve.parallel_env, None)


@pytest.fixture
def single():
    """`greenserve.env` of the sample city."""
    yield from _closing(greenserve.env, "SA101")


def _closing(factory, default_targets):
    """Yield a function that makes environments; close them afterwards."""
    with contextlib.ExitStack() as stack:

        def make(targets=default_targets, infer_tls=(), city=GRID / "city.toml", **options):
            return stack.enter_context(contextlib.closing(factory(city, targets, infer_tls, **options)))

        yield make


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
