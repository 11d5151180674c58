"""Set-up of the trainer's tests."""

import pytest

import training.mlp_learner
import training.phase_competition.street_learner
from tests.training import traced_learners


@pytest.fixture(scope="package", autouse=True)
def traced_once():
    """Let trainings use learners that were traced before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.mlp_learner, "MlpLearner", traced_learners.mlp_learner)
        patch.setattr(training.phase_competition.street_learner, "StreetLearner", traced_learners.street_learner)
        yield
