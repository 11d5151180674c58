"""One call for all TLs while the fleet agrees with their own models."""

import shutil
import threading
from unittest.mock import Mock

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
from serving.client import Fleet
from serving.embedded.config import ServerConfig
from serving.errors import InvalidResponse, ModelNotFound, Unavailable
from tests.controller.policies.controlled_tls import ControlledTls, failed
from tests.serving.conftest import connected

TLS = ("SA101", "SA103", "SA104", "SA108")


@pytest.fixture(scope="module")
def fleet_models(grid_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "models"
    for tl in TLS:
        shutil.copytree(grid_models / tl, folder / tl)
    assert export(["fleet", "city", "--tl", ",".join(TLS), "--models-dir", str(folder)]) == 0
    return folder


class City(ControlledTls):
    """A server with a fleet, its client, and the policies of a controller."""

    def __init__(self, server, client, models):
        super().__init__(client, TLS, fleet="city")
        self.server, self.client, self.models = server, client, models

    def calls(self, model):
        labels = {"model_name": model, "status": "OK"}
        return self.server.metrics.registry.get_sample_value(":tensorflow:serving:request_count", labels) or 0

    def count_calls(self, policies=None, tls=TLS):
        """(the answers to these TLs, the calls that they took by model)."""
        before = {model: self.calls(model) for model in ("city", *TLS)}
        answers = (policies or self.policies).ask({tl: self.observations[tl] for tl in tls})
        after = {model: self.calls(model) for model in before}
        return answers, {model: after[model] - count for model, count in before.items() if after[model] > count}

    def remove(self, *models):
        """Stop serving models: the second look at the folder unloads what the first no longer finds."""
        for model in models:
            shutil.rmtree(self.models / model)
        self.server.poll_once()
        self.server.poll_once()

    def copy(self, source, target):
        shutil.copytree(self.models / source, self.models / target)
        self.server.poll_once()

    def rename(self, source, target):
        (self.models / source).rename(self.models / target)
        self.server.poll_once()

    def before_status(self, model, act):
        """Act whenever the version of a model is requested, before the answer."""
        status = self.client.status

        def acting(requested, *arguments):
            if requested == model:
                act()
            return status(requested, *arguments)

        self.client.status = acting
        return status

    def changed(self, tl, change):
        contract = pb.PolicyContract()
        contract.CopyFrom(self.contracts[tl])
        change(contract)
        return {**self.contracts, tl: contract}


@pytest.fixture
def covered(city):
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)
    return city


@pytest.fixture
def city(fleet_models, tmp_path):
    shutil.copytree(fleet_models, tmp_path / "models")
    with connected(ServerConfig(tmp_path / "models", port=0, poll_s=3600)) as (server, client):
        yield City(server, client, tmp_path / "models")


def agree(a, b):
    pairs = [(np.ravel(a[tl].action), np.ravel(b[tl].action)) for tl in a]
    return a.keys() == b.keys() and all(np.allclose(*pair, atol=1e-5) for pair in pairs)


def test_fleet_answers_for_all_tls_in_one_call_as_their_own_models(city):
    own, counts = city.count_calls()
    assert set(counts) == set(TLS)
    city.fleet.update()
    for tls in (TLS, TLS[:2]):
        answers, counts = city.count_calls(tls=tls)
        assert counts == {"city": 1} and agree(answers, {tl: own[tl] for tl in tls})
    assert city.count_calls(tls=["SA103"])[1] == {"SA103": 1}, "a single TL needs no fleet"


def test_tl_whose_own_model_is_newer_is_excluded(city):
    city.copy("SA103/1", "SA103/2")
    city.fleet.update()
    answers, counts = city.count_calls()
    # the contract of a new version is read by a Predict too
    assert counts == {"city": 1, "SA103": 2} and city.fleet.coverage.tls == set(TLS) - {"SA103"}
    assert city.count_calls()[1] == {"city": 1, "SA103": 1} and not failed(answers)


def test_pinned_run_uses_only_a_fleet_of_the_pinned_versions(city):
    for pinned, tls in ((1, set(TLS)), (7, None)):
        fleet = ServedFleet(city.client, "city", city.contracts, pinned)
        fleet.update()
        assert (fleet.coverage and fleet.coverage.tls) == tls


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: setattr(c.origin, "sha256", "other"), "was exported again since; build the fleet again"),
        (lambda c: setattr(c.origin, "model_number", 7), "has not answered with version 1 yet"),
        (lambda c: setattr(c.timing, "yellow_s", c.timing.yellow_s + 1), "has another contract in the fleet"),
    ],
)
def test_tl_with_another_contract_than_that_of_the_fleet_is_excluded(city, caplog, change, reason):
    caplog.set_level("INFO", "controller")
    fleet = ServedFleet(city.client, "city", city.changed("SA104", change), None)
    fleet.update()
    assert fleet.coverage.tls == set(TLS) - {"SA104"} and f"SA104 ({reason})" in caplog.text
    fleet.note_contract("SA104", 1, city.contracts["SA104"])
    fleet.update()
    assert (fleet.coverage.tls == set(TLS)) is ("another contract" not in reason), "once that version has answered"


def test_tl_that_was_exported_again_under_the_same_version_is_excluded(covered):
    again = covered.changed("SA104", lambda c: setattr(c.origin, "sha256", "other"))["SA104"]
    covered.client.contracts = lambda versions, timeout_s: {"SA104": again}
    covered.policies.contracts.check("SA104")
    assert covered.fleet.coverage.tls == set(TLS) - {"SA104"}
    covered.fleet.update()
    assert covered.fleet.coverage.tls == set(TLS) - {"SA104"}


def test_update_in_progress_does_not_cover_what_was_exported_again_or_suspended_meanwhile(covered):
    again = covered.changed("SA101", lambda c: setattr(c.origin, "sha256", "other"))["SA101"]
    status = covered.before_status(TLS[-1], lambda: covered.fleet.note_contract("SA101", 1, again))
    covered.fleet.update()
    assert covered.fleet.coverage.tls == set(TLS) - {"SA101"}
    covered.client.status = status
    covered.before_status(TLS[-1], lambda: covered.fleet.suspend("no answer"))
    covered.fleet.update()
    assert covered.fleet.coverage is None
    covered.client.status = status
    covered.fleet.note_contract("SA101", 1, covered.contracts["SA101"])
    covered.fleet.update()
    assert covered.fleet.coverage.tls == set(TLS), "an update that begins after the suspension may"


def test_unloaded_fleet_version_is_replaced_by_the_served_one_and_a_removed_fleet_costs_no_answer(covered):
    covered.rename("city/1", "city/2")
    answers, counts = covered.count_calls()
    # the layout of the new version is read by a Predict too
    assert counts == {"city": 2} and covered.fleet.coverage.version == 2 and not failed(answers)
    covered.remove("city")
    answers, counts = covered.count_calls()
    assert set(counts) == set(TLS) and not failed(answers) and covered.fleet.coverage is None
    covered.fleet.update()
    assert covered.fleet.coverage is None


def test_hanging_fleet_leaves_time_for_the_tls_own_models(covered, monkeypatch):
    find, go = covered.server.manager.find, threading.Event()

    def hanging(spec):
        if spec.name == "city":
            assert go.wait(30)
        return find(spec)

    monkeypatch.setattr(covered.server.manager, "find", hanging)
    policies = ServedPolicies(covered.client, covered.contracts, None, 2.0, fleet=covered.fleet)
    try:
        answers = policies.ask(covered.observations)
    finally:
        go.set()
    assert not failed(answers) and covered.fleet.coverage is None


def test_update_that_fails_or_ends_early_covers_nothing_and_the_next_one_completes_it(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "MAX_STATUS_CALLS", 1)
    status = city.before_status("SA104", Mock(side_effect=Unavailable("restarting")))
    city.fleet.update()
    assert city.fleet.coverage is None
    city.client.status = status
    city.fleet.update()
    assert city.fleet.coverage.tls == set(TLS)
    city.before_status("city", Mock(side_effect=RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        city.fleet.updating.task()
    assert city.fleet.coverage is None
    city.client.status = status
    stopped = ServedFleet(city.client, "city", city.contracts, None)
    stopped.updating.stop()
    stopped.update()
    assert stopped.coverage is None, "it was stopped halfway"


def test_version_replaced_under_its_number_is_not_followed(covered, caplog):
    shutil.rmtree(covered.models / "SA103" / "1")
    covered.copy("SA101/1", "SA103/1")
    for tl in TLS:
        covered.policies.contracts.check(tl)
    assert "SA103: the server now answers with version 1, with another contract; its actions are ignored" in caplog.text
    assert failed(covered.ask()) == {"SA103"}


def replace_action(monkeypatch, change):
    split = Fleet.split
    monkeypatch.setattr(
        Fleet, "split", lambda self, action, observations: split(self, change(np.array(action)), observations)
    )


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_only_the_tl_whose_numbers_are_not_finite_has_no_answer(covered, number, monkeypatch):
    own = covered.ask()
    columns = covered.fleet.coverage.fleet.actions["SA103"]

    def spoil(action):
        action = action.astype(np.float32)
        action.reshape(-1)[columns] = number
        return action

    replace_action(monkeypatch, spoil)
    answers, counts = covered.count_calls()
    assert isinstance(answers.pop("SA103"), InvalidResponse)
    assert agree(answers, {tl: own[tl] for tl in answers})
    assert counts == {"city": 1} and covered.fleet.coverage.tls == set(TLS), "the fleet is not suspended"


@pytest.mark.parametrize("change", [lambda action: action.astype(str).astype(object), lambda action: action[:, :-1]])
def test_fleet_answer_without_numbers_or_of_another_size_suspends_the_fleet(covered, change, monkeypatch):
    replace_action(monkeypatch, change)
    answers = covered.ask()
    monkeypatch.undo()
    assert covered.fleet.coverage is None
    assert agree(answers, covered.ask())


def without_own_models(city, tls):
    """Stop serving the own models of TLs; what a controller has that starts then."""
    city.remove(*tls)
    started = ControlledTls(city.client, TLS, fleet="city")
    started.fleet.update()
    return started


def test_fleet_answers_alone_for_tls_whose_own_models_are_not_served(city):
    own = city.ask()
    started = without_own_models(city, TLS)
    assert started.contracts == city.contracts and started.fleet.coverage.only_in_fleet == set(TLS)
    for tls in (TLS, ["SA103"]):
        answers, counts = city.count_calls(started.policies, tls)
        assert counts == {"city": 1} and agree(answers, {tl: own[tl] for tl in tls})
    assert started.policies.model_numbers == dict.fromkeys(TLS, 1)


def test_fleet_alone_answers_over_a_publication_without_an_update(city):
    started = without_own_models(city, TLS)
    city.rename("city/1", "city/2")
    assert not failed(started.ask())
    assert started.fleet.coverage.version == 2 and started.fleet.coverage.only_in_fleet == set(TLS)


def test_fleet_answers_at_once_for_a_tl_whose_own_model_was_removed_unless_it_holds_another_contract(covered):
    covered.remove("SA103")
    assert not failed(covered.count_calls(tls=["SA103"])[0])
    assert covered.fleet.coverage.only_in_fleet == {"SA103"}
    covered.fleet.suspend("no answer")
    covered.fleet._contracts["SA103"] = pb.PolicyContract(tl="SA103")
    answers = covered.ask()
    assert failed(answers) == {"SA103"} and isinstance(answers["SA103"], ModelNotFound)
    assert covered.fleet.coverage is None, "the suspension goes on"


def test_fleet_that_fails_is_asked_again_by_tls_without_own_models(city, monkeypatch):
    started = without_own_models(city, TLS[:2])
    replace_action(monkeypatch, lambda action: action[:, :-1])
    assert failed(started.ask()) == set(TLS[:2])
    assert started.fleet.coverage is not None, "it is not suspended"
    monkeypatch.undo()
    assert not failed(started.ask())


def test_missing_model_is_an_error_unless_the_fleet_holds_the_wanted_version(city):
    without_own_models(city, TLS[:1])
    assert fetch_contracts(city.client, TLS, 1, "city").keys() == set(TLS)
    for number, fleet in ((None, ""), (None, "other"), (7, "city")):
        with pytest.raises(InputError, match="serves no model SA101"):
            fetch_contracts(city.client, TLS[:1], number, fleet)


def test_changes_of_a_fleet_are_logged_once(city, caplog):
    caplog.set_level("INFO", "controller")
    never = ServedFleet(city.client, "never", city.contracts, None)
    for fleet in (never, never, city.fleet):
        fleet.update()
    status = city.before_status("city", Mock(side_effect=ModelNotFound("city")))
    for _ in range(2):
        city.fleet.update()
    city.client.status = lambda model, *_: [] if model == "city" else status(model)
    city.fleet.update()
    lines = [record.message for record in caplog.records if record.name == "controller"]
    assert lines == [
        "fleet never is not served (optional); every TL's own model is queried",
        "fleet city version 1 answers for 4 of 4 TLs",
        "fleet city is not served (optional); every TL's own model is queried",
        "fleet city is not used: no version of it is available",
    ]


def test_own_models_take_turns_in_being_asked_for_their_versions(city, monkeypatch):
    monkeypatch.setattr(served_fleet, "MAX_STATUS_CALLS", 1)
    asked, status = [], city.client.status
    city.client.status = lambda model, *arguments: asked.append(model) or status(model, *arguments)
    city.fleet.update()
    assert sorted(asked) == sorted(["city", *TLS]), "every TL at first"
    city.copy("SA104/1", "SA104/2")
    asked.clear()
    covered = []
    for _ in TLS:
        city.fleet.update()
        covered.append(len(city.fleet.coverage.tls))
    assert asked == ["city", "SA103", "city", "SA104", "city", "SA108", "city", "SA101"]
    assert covered == [4, 3, 3, 3], "the newer model is noticed in its turn"


def test_a_pinned_tl_is_answered_by_its_own_model_until_the_pin_is_taken_back(covered):
    with pytest.raises(InputError, match=r"serves no version 7 of SA103 .*it serves version 1; pass a served one"):
        covered.policies.check_pin("SA103", 7)
    covered.policies.check_pin("SA103", 1)
    covered.policies.pin("SA103", 1)
    answers, counts = covered.count_calls()
    assert counts == {"city": 1, "SA103": 1} and answers["SA103"].model == "SA103" and answers["SA101"].model == "city"
    covered.policies.pin("SA103", None)
    answers, counts = covered.count_calls()
    assert counts == {"city": 1} and answers["SA103"].model == "city"
    covered.policies.pin("SA103", 7)  # unloaded since
    answers = covered.ask()
    assert failed(answers) == {"SA103"} and isinstance(answers["SA103"], ModelNotFound)
    covered.before_status("SA103", Mock(side_effect=ModelNotFound("Could not find any versions of model SA103")))
    with pytest.raises(InputError, match=r"serves no version 7 of SA103 .*beside the fleet .*config --all-models"):
        covered.policies.check_pin("SA103", 7)


def test_contracts_of_answered_versions_are_known_for_own_models_and_fleets(city):
    exports, tl = Exports(city.policies, city.models, lambda: 0.0), "SA101"
    for model in (tl, "city"):
        answer = city.ask()[tl]
        assert answer.model == model
        assert city.policies.contract_of(tl, model, answer.version) == city.contracts[tl]
        assert exports.of(tl, model, answer.version)["manifest"]["path"] == f"models/{tl}/1/assets.extra/export.json"
        compared = city.policies.compare_contracts()  # which updates the fleet
        assert (set(compared.same), compared.changed, compared.failed) == (set(TLS), (), ())
    for model, version in ((tl, 9), ("city", 9), ("other", 1)):
        assert city.policies.contract_of(tl, model, version) is None
    city.fleet.suspend("no answer")
    assert city.policies.contract_of(tl, "city", 1) is None
    assert exports.of(tl, "city", 2)["why"] == "the contract of this version is not known yet"
