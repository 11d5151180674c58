"""One call for all TLs where a fleet is what their own models are, and never anything else."""

import shutil
import time

import numpy as np
import pytest

from controller.policies import served_fleet
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from export.__main__ import main as export
from protos import policy_pb2 as pb
from serving.client import Client
from serving.embedded.config import ServerConfig
from tests.serving.conftest import running

TLS = ("SA101", "SA103", "SA104", "SA108")


@pytest.fixture(scope="module")
def fleet_models(grid_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "models"
    for tl in TLS:
        shutil.copytree(grid_models / tl, folder / tl)
    assert export(["fleet", "city", "--tl", ",".join(TLS), "--models-dir", str(folder)]) == 0
    return folder


class City:
    """A server with a fleet, its client, and what a controller asks with."""

    def __init__(self, server, client, pinned=None):
        self.server, self.client = server, client
        self.contracts = fetch_contracts(client, TLS, None)
        self.fleet = ServedFleet(client, "city", self.contracts, pinned)
        self.policies = ServedPolicies(client, self.contracts, pinned, 5.0, fleet=self.fleet)
        rng = np.random.default_rng(0)
        self.observations = {tl: rng.random(c.observation.size, np.float32) for tl, c in self.contracts.items()}

    def calls(self, model):
        labels = {"model_name": model, "version": "1", "API": "Predict", "entrypoint": "GRPC", "status": "OK"}
        return self.server.metrics.registry.get_sample_value(":tensorflow:serving:request_count", labels) or 0

    def counted(self, ask):
        before = {model: self.calls(model) for model in ("city", *TLS)}
        found = ask()
        return found, {model: self.calls(model) - count for model, count in before.items() if self.calls(model) > count}


@pytest.fixture
def city(fleet_models, tmp_path):
    shutil.copytree(fleet_models, tmp_path / "models")
    server_config = ServerConfig(tmp_path / "models", port=0, poll_s=3600)
    with running(server_config) as server, Client(f"127.0.0.1:{server.port}", retries=0) as client:
        city = City(server, client)
        city.models = tmp_path / "models"
        yield city


def plain(answers):
    return {tl: np.asarray(answer, np.float64).reshape(-1) for tl, answer in answers.items()}


def same(one, other):
    one, other = plain(one), plain(other)
    return one.keys() == other.keys() and all(np.allclose(one[tl], other[tl], atol=1e-5) for tl in one)


def test_one_call_answers_for_all_as_their_own_models_do(city):
    own, counts = city.counted(lambda: city.policies.ask(city.observations))
    assert set(counts) == set(TLS)
    city.fleet.update()
    together, counts = city.counted(lambda: city.policies.ask(city.observations))
    assert counts == {"city": 1} and same(own, together)
    some = {tl: city.observations[tl] for tl in TLS[:2]}
    found, counts = city.counted(lambda: city.policies.ask(some))
    assert counts == {"city": 1} and same(found, {tl: own[tl] for tl in some})


def test_a_tl_alone_is_asked_by_itself(city):
    city.fleet.update()
    _, counts = city.counted(lambda: city.policies.ask({"SA103": city.observations["SA103"]}))
    assert counts == {"SA103": 1}


def test_a_tl_whose_own_model_is_newer_is_asked_by_itself(city):
    shutil.copytree(city.models / "SA103" / "1", city.models / "SA103" / "2")
    city.server.update()
    city.fleet.update()
    found, counts = city.counted(lambda: city.policies.ask(city.observations))
    assert counts == {"city": 1} and city.fleet.coverage.tls == set(TLS) - {"SA103"}
    assert not any(isinstance(answer, Exception) for answer in found.values())


def test_a_pinned_run_asks_the_fleet_only_for_the_version_it_is_pinned_to(city):
    for pinned, tls in ((1, set(TLS)), (7, None)):
        fleet = ServedFleet(city.client, "city", city.contracts, pinned)
        fleet.update()
        assert (fleet.coverage and fleet.coverage.tls) == tls


def test_a_tl_with_another_contract_in_the_fleet_is_asked_by_itself(city):
    changed = pb.PolicyContract()
    changed.CopyFrom(city.contracts["SA104"])
    changed.timing.yellow_s += 1
    fleet = ServedFleet(city.client, "city", {**city.contracts, "SA104": changed}, None)
    fleet.update()
    assert fleet.coverage.tls == set(TLS) - {"SA104"}


def test_a_fleet_that_has_gone_costs_no_answer(city):
    city.fleet.update()
    shutil.rmtree(city.models / "city")
    city.server.update()
    city.server.update()
    found, counts = city.counted(lambda: city.policies.ask(city.observations))
    assert set(counts) == set(TLS) and not any(isinstance(answer, Exception) for answer in found.values())
    assert city.fleet.coverage is None
    city.fleet.update()
    assert city.fleet.coverage is None


def test_another_version_of_the_fleet_is_not_asked_before_it_is_looked_at(city):
    city.fleet.update()
    (city.models / "city" / "1").rename(city.models / "city" / "2")
    city.server.update()
    _, counts = city.counted(lambda: city.policies.ask(city.observations))
    assert "city" not in counts
    city.fleet.update()
    assert city.fleet.coverage.version == 2


def test_a_fleet_that_hangs_leaves_time_for_the_tls_own_models(city, monkeypatch):
    city.fleet.update()
    find = city.server.manager.find

    def slow(spec):
        if spec.name == "city":
            import time

            time.sleep(1.0)
        return find(spec)

    monkeypatch.setattr(city.server.manager, "find", slow)
    policies = ServedPolicies(city.client, city.contracts, None, 0.6, fleet=city.fleet)
    found = policies.ask(city.observations)
    assert not any(isinstance(answer, Exception) for answer in found.values())
    assert city.fleet.coverage is None


def test_a_watched_fleet_is_found_when_it_comes(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "LOOK_S", 0.01)
    (city.models / "city").rename(city.models.parent / "away")
    city.server.update()
    city.server.update()
    fleet = ServedFleet(city.client, "city", city.contracts, None)
    fleet.update()
    assert fleet.coverage is None
    fleet.updating.start()
    try:
        (city.models.parent / "away").rename(city.models / "city")
        city.server.update()
        for _ in range(1000):
            if fleet.coverage is not None:
                break
            time.sleep(0.01)
        assert fleet.coverage.tls == set(TLS)
    finally:
        fleet.updating.stop()


def test_a_look_that_breaks_leaves_nothing_covered(city, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    city.fleet.update()
    monkeypatch.setattr(city.client, "status", broken)
    with pytest.raises(RuntimeError, match="broken"):
        city.fleet._look_again()
    assert city.fleet.coverage is None


def test_a_look_that_is_ended_on_its_way_covers_nothing_that_it_has_not_seen(city):
    city.fleet.updating.stop()
    city.fleet.update()
    assert city.fleet.coverage is None


def test_the_deadline_counts_from_the_observation(city):
    policies = ServedPolicies(city.client, city.contracts, None, 1.0, lambda: 100.0)
    found = policies.ask(city.observations, 98.0)
    assert all("deadline" in str(answer).lower() for answer in found.values())


def test_a_version_that_is_replaced_under_its_number_is_followed_no_more(city, caplog):
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)
    (city.models / "SA103" / "1").rename(city.models.parent / "old")
    shutil.copytree(city.models / "SA101" / "1", city.models / "SA103" / "1")
    city.server.update()
    for tl in TLS:
        city.policies.contracts.look(tl)
    assert "SA103: the server now answers with version 1, with another contract: not followed" in caplog.text
    found = city.policies.ask(city.observations)
    assert {tl for tl, answer in found.items() if isinstance(answer, Exception)} == {"SA103"}


@pytest.mark.parametrize("action", [np.nan, np.inf, "0"])
def test_a_fleet_that_answers_no_numbers_is_left_alone_and_every_tl_is_asked_by_itself(city, action, monkeypatch):
    city.fleet.update()
    size = city.fleet.coverage.fleet.policy.action.size
    garbage = np.array([[action] * size], object if action == "0" else np.float32)
    asked = Client._asked
    monkeypatch.setattr(Client, "_asked", lambda self, request, timeout_s: {**asked(self, request, timeout_s), "action": garbage})
    found = city.policies.ask(city.observations)
    monkeypatch.undo()
    assert city.fleet.coverage is None
    assert same(found, city.policies.ask(city.observations))
