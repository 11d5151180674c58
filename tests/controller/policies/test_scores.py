"""Scores of answers: probabilities and q-values of own models and of a fleet, if they are requested."""

import shutil

import numpy as np
import pytest

from controller.policies.served_policies import ServedPolicies
from protos import predict_pb2 as wire
from serving.client import Client, Fleet
from serving.contract import from_saved_model
from serving.embedded.config import ServerConfig
from tests.controller.policies.controlled_tls import ControlledTls, failed
from tests.export import mixed_fleet
from tests.export.mixed_fleet import ACTORS, CATEGORICAL
from tests.serving.conftest import running
from tests.serving.fake_server import answer


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return mixed_fleet.write_models(tmp_path_factory.mktemp("scores") / "models")


@pytest.fixture(params=["fleet", "old fleet"])
def served(request, models, tmp_path):
    """(client of an embedded server, whether its fleet has scores)."""
    folder = shutil.copytree(models, tmp_path / "models")
    if request.param == "old fleet":
        mixed_fleet.remove_scores(folder / "city" / "1")
    with running(ServerConfig(folder, port=0, poll_s=3600)) as server, Client(f"127.0.0.1:{server.port}") as client:
        yield client, request.param == "fleet"


def ask(client, observations, with_fleet, with_scores):
    started = ControlledTls(client, ACTORS, None, "city" if with_fleet else "", 30.0, with_scores)
    if started.fleet is not None:
        started.fleet.update()
        assert started.fleet.coverage.tls == set(ACTORS)
    answers = started.policies.ask(observations)
    assert not failed(answers), answers
    assert started.fleet is None or started.fleet.coverage is not None, "the fleet is not suspended"
    return answers


@pytest.fixture
def observations():
    rng = np.random.default_rng(0)
    return {tl: rng.standard_normal(actor.inputs).astype(np.float32) for tl, actor in ACTORS.items()}


@pytest.mark.parametrize("with_fleet", [False, True])
def test_answers_carry_the_scores_of_the_actors_in_numpy(served, observations, with_fleet):
    client, fleet_has_scores = served
    for tl, found in ask(client, observations, with_fleet, with_scores=True).items():
        assert (found.model, found.version) == ("city" if with_fleet else tl, 1)
        if tl not in CATEGORICAL or (with_fleet and not fleet_has_scores):
            assert found.scores is None
            continue
        assert found.scores.dtype == np.float32
        np.testing.assert_allclose(found.scores, mixed_fleet.expected_scores(tl, observations[tl]), atol=1e-5)
        assert found.scores.argmax() == found.action.item()


SCORES = np.array([[0.25, 0.5, 0.25]], np.float32)


@pytest.mark.parametrize(
    ("with_scores", "output_filter", "probabilities", "scores"),
    [
        (False, ["action"], SCORES, None),
        (True, [], SCORES, [0.25, 0.5, 0.25]),
        # scores that do not fit the contract cost no decision
        (True, [], np.zeros((1, 2), np.float32), None),
        (True, [], np.array([[b"a", b"b", b"c"]], object), None),
    ],
)
def test_own_models_are_asked_for_scores_if_they_are_wanted(
    fake, models, with_scores, output_filter, probabilities, scores
):
    requests = []

    def respond(request, context):
        requests.append(wire.PredictRequest.FromString(request))
        return answer(action=np.array([1]), probabilities=probabilities)

    fake.answer = respond
    with Client(fake.address) as client:
        contracts = {"SA101": from_saved_model(models / "SA101" / "1")}
        policies = ServedPolicies(client, contracts, None, 30.0, with_scores=with_scores)
        found = policies.ask({"SA101": np.zeros(9, np.float32)})["SA101"]
    assert [list(request.output_filter) for request in requests] == [output_filter]
    assert found.action.item() == 1 and (None if found.scores is None else found.scores.tolist()) == scores


@pytest.mark.parametrize("is_old", [False, True])
def test_fleet_is_asked_for_the_action_alone_without_scores(fake, models, tmp_path, is_old):
    version = shutil.copytree(models / "city" / "1", tmp_path / "1")
    if is_old:
        mixed_fleet.remove_scores(version)
    contract, filters = from_saved_model(version), []

    def respond(request, context):
        filters.append(list(wire.PredictRequest.FromString(request).output_filter))
        return answer(action=np.zeros((1, contract.action.size), np.float32))

    fake.answer = respond
    with Client(fake.address) as client:
        fleet, x = Fleet("city", contract), {"SA101": np.zeros(9, np.float32)}
        client.predict_fleet(fleet, x)
        scored = client.predict_fleet_with_scores(fleet, x)["SA101"]
    assert filters == [[] if is_old else ["action"], []]
    assert scored.scores is None, "the response has none"
