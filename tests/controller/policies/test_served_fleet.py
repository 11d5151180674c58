"""One call for all TLs while the fleet agrees with their own models."""

import shutil
import threading
import time

import numpy as np
import pytest

from city.errors import InputError
from controller.operator.page.exports import Exports
from controller.policies import served_fleet
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from export.__main__ import main as export
from protos import policy_pb2 as pb
from serving.client import Client, Fleet
from serving.embedded.config import ServerConfig
from serving.errors import InvalidResponse, ModelNotFound, Unavailable
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
    """A server with a fleet, its client, and the policies of a controller."""

    def __init__(self, server, client, pinned=None):
        self.server, self.client = server, client
        self.contracts = fetch_contracts(client, TLS, None)
        self.fleet = ServedFleet(client, "city", self.contracts, pinned)
        self.policies = ServedPolicies(client, self.contracts, pinned, 5.0, fleet=self.fleet)
        rng = np.random.default_rng(0)
        self.observations = {tl: rng.random(c.observation.size, np.float32) for tl, c in self.contracts.items()}

    def calls(self, model):
        labels = {"model_name": model, "status": "OK"}
        return self.server.metrics.registry.get_sample_value(":tensorflow:serving:request_count", labels) or 0

    def count_calls(self, ask):
        before = {model: self.calls(model) for model in ("city", *TLS)}
        answers = ask()
        return answers, {
            model: self.calls(model) - count for model, count in before.items() if self.calls(model) > count
        }


@pytest.fixture
def city(fleet_models, tmp_path):
    shutil.copytree(fleet_models, tmp_path / "models")
    server_config = ServerConfig(tmp_path / "models", port=0, poll_s=3600)
    with running(server_config) as server, Client(f"127.0.0.1:{server.port}", retries=0) as client:
        city = City(server, client)
        city.models = tmp_path / "models"
        yield city


def as_numbers(answers):
    return {tl: np.asarray(answer.action, np.float64).reshape(-1) for tl, answer in answers.items()}


def agree(a, b):
    a, b = as_numbers(a), as_numbers(b)
    return a.keys() == b.keys() and all(np.allclose(a[tl], b[tl], atol=1e-5) for tl in a)


def test_fleet_answers_for_all_tls_in_one_call_as_their_own_models(city):
    own, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert set(counts) == set(TLS)
    city.fleet.update()
    together, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert counts == {"city": 1} and agree(own, together)
    some = {tl: city.observations[tl] for tl in TLS[:2]}
    answers, counts = city.count_calls(lambda: city.policies.ask(some))
    assert counts == {"city": 1} and agree(answers, {tl: own[tl] for tl in some})


def test_single_tl_is_answered_by_its_own_model(city):
    city.fleet.update()
    _, counts = city.count_calls(lambda: city.policies.ask({"SA103": city.observations["SA103"]}))
    assert counts == {"SA103": 1}


def test_tl_whose_own_model_is_newer_is_excluded(city):
    shutil.copytree(city.models / "SA103" / "1", city.models / "SA103" / "2")
    city.server.poll_once()
    city.fleet.update()
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    # the contract of a new version is read by a Predict too
    assert counts == {"city": 1, "SA103": 2} and city.fleet.coverage.tls == set(TLS) - {"SA103"}
    assert city.count_calls(lambda: city.policies.ask(city.observations))[1] == {"city": 1, "SA103": 1}
    assert not any(isinstance(answer, Exception) for answer in answers.values())


def test_pinned_run_uses_only_a_fleet_of_the_pinned_versions(city):
    for pinned, tls in ((1, set(TLS)), (7, None)):
        fleet = ServedFleet(city.client, "city", city.contracts, pinned)
        fleet.update()
        assert (fleet.coverage and fleet.coverage.tls) == tls


def test_tl_that_was_exported_again_under_the_same_version_is_excluded(city, caplog):
    caplog.set_level("INFO", "controller")
    again = pb.PolicyContract()
    again.CopyFrom(city.contracts["SA104"])
    again.origin.sha256 = "another checkpoint"
    at_start = ServedFleet(city.client, "city", {**city.contracts, "SA104": again}, None)
    at_start.update()
    assert at_start.coverage.tls == set(TLS) - {"SA104"}
    assert "SA104 (was exported again since; build the fleet again)" in caplog.text
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)
    city.client.contracts = lambda versions, timeout_s: {"SA104": again}
    city.policies.contracts.check("SA104")
    assert city.fleet.coverage.tls == set(TLS) - {"SA104"}
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS) - {"SA104"}


def test_tl_whose_version_has_not_answered_yet_is_covered_once_it_has(city, caplog):
    caplog.set_level("INFO", "controller")
    before = pb.PolicyContract()
    before.CopyFrom(city.contracts["SA104"])
    before.origin.model_number = 7
    fleet = ServedFleet(city.client, "city", {**city.contracts, "SA104": before}, None)
    fleet.update()
    assert fleet.coverage.tls == set(TLS) - {"SA104"}
    assert "SA104 (has not answered with version 1 yet)" in caplog.text
    fleet.note_contract("SA104", 1, city.contracts["SA104"])
    fleet.update()
    assert fleet.coverage.tls == set(TLS)


def test_update_in_progress_does_not_cover_a_tl_that_was_exported_again_meanwhile(city, monkeypatch):
    again = pb.PolicyContract()
    again.CopyFrom(city.contracts["SA101"])
    again.origin.sha256 = "another checkpoint"
    city.fleet.update()
    status = city.client.status

    def exported_meanwhile(model, *_):
        if model == TLS[-1]:
            city.fleet.note_contract("SA101", 1, again)
        return status(model)

    monkeypatch.setattr(city.client, "status", exported_meanwhile)
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS) - {"SA101"}


def test_tl_with_another_contract_in_the_fleet_is_excluded(city):
    changed = pb.PolicyContract()
    changed.CopyFrom(city.contracts["SA104"])
    changed.timing.yellow_s += 1
    fleet = ServedFleet(city.client, "city", {**city.contracts, "SA104": changed}, None)
    fleet.update()
    assert fleet.coverage.tls == set(TLS) - {"SA104"}


def test_removed_fleet_costs_no_answer(city):
    city.fleet.update()
    shutil.rmtree(city.models / "city")
    city.server.poll_once()
    city.server.poll_once()
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert set(counts) == set(TLS) and not any(isinstance(answer, Exception) for answer in answers.values())
    assert city.fleet.coverage is None
    city.fleet.update()
    assert city.fleet.coverage is None


def test_unloaded_fleet_version_is_replaced_by_the_served_one_in_the_same_step(city):
    city.fleet.update()
    (city.models / "city" / "1").rename(city.models / "city" / "2")
    city.server.poll_once()
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    # the layout of the new version is read by a Predict too
    assert counts == {"city": 2} and city.fleet.coverage.version == 2
    assert not any(isinstance(answer, Exception) for answer in answers.values())


def test_hanging_fleet_leaves_time_for_the_tls_own_models(city, monkeypatch):
    city.fleet.update()
    find, go = city.server.manager.find, threading.Event()

    def hanging(spec):
        if spec.name == "city":
            assert go.wait(30)
        return find(spec)

    monkeypatch.setattr(city.server.manager, "find", hanging)
    policies = ServedPolicies(city.client, city.contracts, None, 2.0, fleet=city.fleet)
    try:
        answers = policies.ask(city.observations)
    finally:
        go.set()
    assert not any(isinstance(answer, Exception) for answer in answers.values())
    assert city.fleet.coverage is None


def test_updates_find_a_fleet_that_is_published_later(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "UPDATE_INTERVAL_S", 0.01)
    (city.models / "city").rename(city.models.parent / "away")
    city.server.poll_once()
    city.server.poll_once()
    fleet = ServedFleet(city.client, "city", city.contracts, None)
    fleet.update()
    assert fleet.coverage is None
    fleet.updating.start()
    try:
        (city.models.parent / "away").rename(city.models / "city")
        city.server.poll_once()
        for _ in range(1000):
            if fleet.coverage is not None:
                break
            time.sleep(0.01)
        assert fleet.coverage.tls == set(TLS)
    finally:
        fleet.updating.stop()


def test_failed_update_leaves_nothing_covered(city, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    city.fleet.update()
    monkeypatch.setattr(city.client, "status", broken)
    with pytest.raises(RuntimeError, match="broken"):
        city.fleet.updating.task()
    assert city.fleet.coverage is None


def test_update_that_is_stopped_halfway_covers_nothing(city):
    city.fleet.updating.stop()
    city.fleet.update()
    assert city.fleet.coverage is None


def test_deadline_counts_from_the_observation(city):
    policies = ServedPolicies(city.client, city.contracts, None, 1.0, lambda: 100.0)
    answers = policies.ask(city.observations, 98.0)
    assert all("deadline" in str(answer).lower() for answer in answers.values())


def test_version_replaced_under_its_number_is_not_followed(city, caplog):
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)
    (city.models / "SA103" / "1").rename(city.models.parent / "old")
    shutil.copytree(city.models / "SA101" / "1", city.models / "SA103" / "1")
    city.server.poll_once()
    for tl in TLS:
        city.policies.contracts.check(tl)
    assert "SA103: the server now answers with version 1, with another contract; its actions are ignored" in caplog.text
    answers = city.policies.ask(city.observations)
    assert {tl for tl, answer in answers.items() if isinstance(answer, Exception)} == {"SA103"}


def replace_action(monkeypatch, change):
    """Let the fleet's answers carry another action."""
    split = Fleet.split
    monkeypatch.setattr(
        Fleet, "split", lambda self, action, observations: split(self, change(np.array(action)), observations)
    )


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_only_the_tl_whose_numbers_are_not_finite_has_no_answer(city, number, monkeypatch):
    city.fleet.update()
    own = city.policies.ask(city.observations)
    columns = city.fleet.coverage.fleet.actions["SA103"]

    def spoil(action):
        action = action.astype(np.float32)
        action.reshape(-1)[columns] = number
        return action

    replace_action(monkeypatch, spoil)
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert isinstance(answers.pop("SA103"), InvalidResponse)
    assert agree(answers, {tl: own[tl] for tl in answers})
    assert counts == {"city": 1} and city.fleet.coverage.tls == set(TLS), "the fleet is not suspended"


@pytest.mark.parametrize("change", [lambda action: action.astype(str).astype(object), lambda action: action[:, :-1]])
def test_fleet_answer_without_numbers_or_of_another_size_suspends_the_fleet(city, change, monkeypatch):
    city.fleet.update()
    replace_action(monkeypatch, change)
    answers = city.policies.ask(city.observations)
    monkeypatch.undo()
    assert city.fleet.coverage is None
    assert agree(answers, city.policies.ask(city.observations))


def test_update_in_progress_does_not_re_enable_a_suspended_fleet(city, monkeypatch):
    city.fleet.update()
    status = city.client.status

    def suspend_meanwhile(model, *_):
        if model == "SA104" and city.fleet.coverage is not None:
            city.fleet.suspend("no answer")
        return status(model)

    monkeypatch.setattr(city.client, "status", suspend_meanwhile)
    city.fleet.update()
    assert city.fleet.coverage is None
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS), "an update that begins after the suspension may"


def without_own_models(city, tls):
    """Stop serving the own models of TLs; the policies of a controller that starts then."""
    for tl in tls:
        shutil.rmtree(city.models / tl)
    city.server.poll_once()
    city.server.poll_once()
    contracts = fetch_contracts(city.client, TLS, None, "city")
    fleet = ServedFleet(city.client, "city", contracts, None)
    fleet.update()
    return contracts, ServedPolicies(city.client, contracts, None, 5.0, fleet=fleet), fleet


def test_fleet_answers_alone_for_tls_whose_own_models_are_not_served(city):
    own = city.policies.ask(city.observations)
    contracts, policies, fleet = without_own_models(city, TLS)
    assert contracts == city.contracts and fleet.coverage.only_in_fleet == set(TLS)
    answers, counts = city.count_calls(lambda: policies.ask(city.observations))
    assert counts == {"city": 1} and agree(own, answers)
    one = policies.ask({"SA103": city.observations["SA103"]})
    assert agree(one, {"SA103": own["SA103"]})
    assert policies.model_numbers == dict.fromkeys(TLS, 1)


def test_fleet_alone_answers_over_a_publication_without_an_update(city):
    _, policies, fleet = without_own_models(city, TLS)
    for before, after in (("1", "2"), ("2", "3")):
        (city.models / "city" / before).rename(city.models / "city" / after)
        city.server.poll_once()
        answers = policies.ask(city.observations)
        assert not any(isinstance(answer, Exception) for answer in answers.values())
        assert fleet.coverage.version == int(after) and fleet.coverage.only_in_fleet == set(TLS)


def test_fleet_answers_at_once_for_a_tl_whose_own_model_was_removed(city):
    city.fleet.update()
    shutil.rmtree(city.models / "SA103")
    city.server.poll_once()
    city.server.poll_once()
    answers = city.policies.ask({"SA103": city.observations["SA103"]})
    assert not isinstance(answers["SA103"], Exception)
    assert city.fleet.coverage.only_in_fleet == {"SA103"}


def test_model_that_is_nowhere_served_does_not_end_a_suspension(city):
    city.fleet.update()
    shutil.rmtree(city.models / "SA103")
    city.server.poll_once()
    city.server.poll_once()
    city.fleet.suspend("no answer")
    city.fleet._contracts["SA103"] = pb.PolicyContract(tl="SA103")  # the fleet's one differs
    answers = city.policies.ask(city.observations)
    assert {tl for tl, answer in answers.items() if isinstance(answer, ModelNotFound)} == {"SA103"}
    assert city.fleet.coverage is None


def test_fleet_that_fails_is_asked_again_by_tls_without_own_models(city, monkeypatch):
    _, policies, fleet = without_own_models(city, TLS[:2])
    replace_action(monkeypatch, lambda action: action[:, :-1])
    answers = policies.ask(city.observations)
    assert {tl for tl, answer in answers.items() if isinstance(answer, InvalidResponse)} == set(TLS[:2])
    assert fleet.coverage is not None, "it is not suspended"
    monkeypatch.undo()
    assert not any(isinstance(answer, Exception) for answer in policies.ask(city.observations).values())


def test_missing_model_is_an_error_unless_the_fleet_holds_the_wanted_version(city):
    without_own_models(city, TLS[:1])
    assert fetch_contracts(city.client, TLS, 1, "city").keys() == set(TLS)
    for number, fleet in ((None, ""), (None, "other"), (7, "city")):
        with pytest.raises(InputError, match="serves no model SA101"):
            fetch_contracts(city.client, TLS[:1], number, fleet)


def not_found(model):
    raise ModelNotFound(model)


def test_fleet_that_is_not_served_is_logged_once(city, caplog):
    caplog.set_level("INFO", "controller")
    never = ServedFleet(city.client, "never", city.contracts, None)
    for _ in range(2):
        never.update()
    city.fleet.update()
    status = city.client.status
    city.client.status = lambda model, *_: not_found(model) if model == "city" else status(model)
    for _ in range(2):
        city.fleet.update()
    lines = [record.message for record in caplog.records if record.name == "controller"]
    assert lines == [
        "fleet never is not served (optional); every TL's own model is queried",
        "fleet city version 1 answers for 4 of 4 TLs",
        "fleet city is not served (optional); every TL's own model is queried",
    ]


def test_fleet_without_a_version_is_logged_as_not_used(city, caplog):
    caplog.set_level("INFO", "controller")
    city.client.status = lambda model, *_: []
    city.fleet.update()
    lines = [record.message for record in caplog.records if record.name == "controller"]
    assert lines == ["fleet city is not used: no version of it is available"]


def test_own_models_take_turns_in_being_asked_for_their_versions(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "MAX_STATUS_CALLS", 1)
    asked, status = [], city.client.status
    city.client.status = lambda model, *arguments: asked.append(model) or status(model, *arguments)
    city.fleet.update()
    assert sorted(asked) == sorted(["city", *TLS]), "every TL at first"
    shutil.copytree(city.models / "SA104" / "1", city.models / "SA104" / "2")
    city.server.poll_once()
    asked.clear()
    covered = []
    for _ in TLS:
        city.fleet.update()
        covered.append(len(city.fleet.coverage.tls))
    assert asked == ["city", "SA103", "city", "SA104", "city", "SA108", "city", "SA101"]
    assert covered == [4, 3, 3, 3], "the newer model is noticed in its turn"


def test_update_that_ends_early_is_completed_by_the_next_one(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "MAX_STATUS_CALLS", 1)
    status = city.client.status

    def unavailable(model, *arguments):
        if model == "SA104":
            raise Unavailable("restarting")
        return status(model, *arguments)

    city.client.status = unavailable
    city.fleet.update()
    assert city.fleet.coverage is None
    city.client.status = status
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)


def test_a_pinned_tl_is_answered_by_its_own_model_until_the_pin_is_taken_back(city):
    city.fleet.update()
    city.policies.check_pin("SA103", 1)
    city.policies.pin("SA103", 1)
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert counts == {"city": 1, "SA103": 1} and answers["SA103"].model == "SA103" and answers["SA101"].model == "city"
    city.policies.pin("SA103", None)
    answers, counts = city.count_calls(lambda: city.policies.ask(city.observations))
    assert counts == {"city": 1} and answers["SA103"].model == "city"


def test_a_pinned_version_that_is_unloaded_is_not_answered_by_the_fleet(city):
    city.fleet.update()
    city.policies.pin("SA103", 7)
    answers = city.policies.ask(city.observations)
    assert isinstance(answers["SA103"], ModelNotFound)
    assert not any(isinstance(answer, Exception) for tl, answer in answers.items() if tl != "SA103")


def test_a_version_that_the_server_lacks_is_refused_in_words(city):
    with pytest.raises(
        InputError, match=r"serves no version 7 of SA103 .*it serves version 1; pass a served one, or latest"
    ):
        city.policies.check_pin("SA103", 7)
    assert city.policies.pins == {}


def test_comparing_contracts_on_request_covers_every_tl(city):
    city.policies.ask(city.observations)
    compared = city.policies.compare_contracts()
    assert (set(compared.same), compared.changed, compared.failed) == (set(TLS), (), ())
    assert city.fleet.coverage.tls == set(TLS)


def test_contracts_of_answered_versions_are_known_for_own_models_and_fleets(city):
    exports, tl = Exports(city.policies, city.models, lambda: 0.0), "SA101"
    for model in (tl, "city"):
        answer = city.policies.ask(city.observations)[tl]
        assert answer.model == model
        assert city.policies.contract_of(tl, model, answer.version) == city.contracts[tl]
        assert exports.of(tl, model, answer.version)["manifest"]["path"] == f"models/{tl}/1/assets.extra/export.json"
        city.fleet.update()
    for model, version in ((tl, 9), ("city", 9), ("other", 1)):
        assert city.policies.contract_of(tl, model, version) is None
    city.fleet.suspend("no answer")
    assert city.policies.contract_of(tl, "city", 1) is None
    assert exports.of(tl, "city", 2)["why"] == "the contract of this version is not known yet"
