"""Answers of a model server as the controller takes them."""

import itertools
import time

import numpy as np
import pytest

from city.errors import InputError, ProgramFailed
from controller.policies.served_policies import ServedPolicies
from protos import policy_pb2
from serving.client import Client, Prediction
from serving.errors import DeadlineExceeded, InvalidResponse, ModelNotFound, Unavailable
from tests.serving.fake_server import answer

X = np.zeros(17, np.float32)
KC = policy_pb2.PolicyContract(
    tl="a", action=policy_pb2.Action(kind="kc", size=1), origin=policy_pb2.Origin(model_number=1)
)


@pytest.fixture
def client(fake):
    made = Client(fake.address)
    yield made
    made.close()


def ask(client, deadline_s=1.0, clock=time.monotonic):
    return ServedPolicies(client, {"a": KC}, None, deadline_s, clock).ask({"a": X})["a"]


def test_answer_with_an_action_is_the_action(fake, client):
    fake.answer = lambda request, context: answer(action=[[0.5]])
    assert ask(client).action.tolist() == [[0.5]]


def test_answer_without_an_action_is_a_bad_answer(fake, client):
    fake.answer = lambda request, context: answer(actions=[[0.5]])
    assert isinstance(ask(client), InvalidResponse)


def test_late_answer_is_dropped(fake, client):
    fake.answer = lambda request, context: answer(action=[[0.5]])
    times = itertools.chain([0.0, 0.0], itertools.repeat(2.0))
    assert isinstance(ask(client, clock=lambda: next(times)), DeadlineExceeded)


def ask_a_new_version(fake, client, **changed):
    """The answer of version 2, whose contract has another action than at the start."""
    contract = policy_pb2.PolicyContract()
    contract.CopyFrom(KC)
    contract.origin.model_number = 2
    contract.action.MergeFrom(policy_pb2.Action(**changed))
    serialized = np.array([contract.SerializeToString()], object)
    fake.answer = lambda request, context: answer(version=2, action=[[0.5]], policy=serialized)
    return ask(client)


def test_new_version_with_the_same_contract_is_followed(fake, client):
    assert ask_a_new_version(fake, client).action.tolist() == [[0.5]]


def test_new_version_with_another_contract_is_refused(fake, client):
    assert "another contract" in str(ask_a_new_version(fake, client, actionp=0.9))


def test_slow_comparison_of_a_new_version_delays_no_other_tl():
    class Slow:
        def predict_many(self, observations, *_):
            outputs = {"action": np.array([[0.5]], np.float32)}
            return {tl: Prediction(outputs, 2 if tl == "a" else 1) for tl in observations}

        def contracts(self, versions, timeout_s):
            clock[0] += 5.0
            return dict.fromkeys(versions, DeadlineExceeded("slow"))

    clock = [0.0]
    contracts = dict.fromkeys("abc", KC)
    answers = ServedPolicies(Slow(), contracts, None, 1.0, lambda: clock[0]).ask(dict.fromkeys("abc", X))
    assert isinstance(answers["a"], Exception)
    assert answers["b"].action.tolist() == answers["c"].action.tolist() == [[0.5]]


def test_version_that_was_unloaded_after_it_answered_is_asked_again_in_the_same_step():
    class Server:
        newest = 2

        def predict_many(self, observations, *_):
            return dict.fromkeys(observations, Prediction({"action": np.array([[0.5]], np.float32)}, self.newest))

        def contracts(self, versions, timeout_s):
            if self.newest == 2:
                self.newest = 1
                return dict.fromkeys(versions, ModelNotFound("unloaded"))
            return dict.fromkeys(versions, KC)

    policies = ServedPolicies(Server(), {"a": KC}, "stable", 1.0)
    assert policies.ask({"a": X})["a"].action.tolist() == [[0.5]] and policies.model_numbers == {"a": 1}


@pytest.mark.parametrize("lost", ["unavailable", "silent"])
def test_contracts_are_requested_again_after_an_outage(lost, caplog):
    caplog.set_level("INFO", "controller")
    other = policy_pb2.PolicyContract(tl="b")
    errors = {"unavailable": Unavailable("gone"), "silent": DeadlineExceeded("late")}

    class Client:
        address = "there"

        def predict_many(self, observations, *_):
            good = Prediction({"action": np.array([[0.5]], np.float32)}, 1)
            return dict.fromkeys(observations, good if there else errors[lost])

        def contracts(self, versions, timeout_s):
            requested.append(versions)
            return {tl: serves.get(tl, DeadlineExceeded("slow")) for tl in versions}

        def reconnect(self):
            pass

    requested, now, there, serves = [], 0.0, True, {"a": KC, "b": other}
    policies = ServedPolicies(Client(), dict.fromkeys("abc", KC), None, 0.5, lambda: now)
    assert not any(isinstance(x, Exception) for x in policies.ask(dict.fromkeys("abc", X)).values()) and requested == []
    there = False
    for _ in range(3):
        policies.ask(dict.fromkeys("abc", X))
        now += 2.0
    there = True
    answers = policies.ask(dict.fromkeys("abc", X))
    assert requested == [{"a": 1, "b": 1, "c": 1}]
    assert answers["a"].action.tolist() == [[0.5]]
    assert "another contract" in str(answers["b"]) and "not known yet" in str(answers["c"])
    assert "b: the server now answers with version 1, with another contract; its actions are ignored" in caplog.text
    serves["c"] = KC
    answers = policies.ask(dict.fromkeys("abc", X))
    assert (
        requested[1:] == [{"c": 1}] and answers["c"].action.tolist() == [[0.5]] and isinstance(answers["b"], Exception)
    )


def test_any_failure_becomes_an_exception_in_the_answers():
    class Broken:
        def predict_many(self, *_):
            raise RuntimeError("broken")

    answers = ServedPolicies(Broken(), {"a": KC}, None, 1.0).ask({"a": X})
    assert isinstance(answers["a"], RuntimeError)


@pytest.mark.parametrize(
    ("answers", "reconnected_s"),
    [
        ("sssss", [2, 4]),  # at most every other time, so that a new connection has time to answer
        ("sgsgs", []),
        ("sbsss", [4]),  # a server that refuses is reachable
        ("mmmmm", []),  # so is one that answers some TLs
    ],
)
def test_silent_server_gets_a_new_connection(answers, reconnected_s):
    kinds = {
        "s": DeadlineExceeded("late"),
        "b": InvalidResponse("bad"),
        "g": Prediction({"action": np.array([[0.5]], np.float32)}, 1),
    }

    class Client:
        address = "there"

        def predict_many(self, *_):
            kind = answers[int(now[0])]
            return {"a": kinds["s"], "b": kinds["g"]} if kind == "m" else dict.fromkeys("ab", kinds[kind])

        def reconnect(self):
            reconnected.append(now[0])

    now, reconnected = [0.0], []
    policies = ServedPolicies(Client(), dict.fromkeys("ab", KC), None, 0.5, lambda: now[0])
    for _ in answers:
        policies.ask(dict.fromkeys("ab", X))
        now[0] += 1.0
    assert reconnected == reconnected_s


def test_hanging_model_does_not_cause_a_new_connection():
    class Client:
        address = "there"

        def predict_many(self, observations, *_):
            good = Prediction({"action": np.array([[0.5]], np.float32)}, 1)
            return {tl: good if tl in answering else DeadlineExceeded("late") for tl in observations}

        def contracts(self, versions, timeout_s):
            return dict.fromkeys(versions, KC)

        def reconnect(self):
            reconnected.append(now)

    reconnected, now, answering = [], 0.0, "b"
    policies = ServedPolicies(Client(), dict.fromkeys("ab", KC), None, 0.5, lambda: now)

    def ask(*rounds):
        nonlocal now
        for tls in rounds:
            policies.ask(dict.fromkeys(tls, X))
            now += 2.0

    ask("ab", "a", "a", "a", "ab", "a", "a")
    assert reconnected == []
    answering = ""
    ask("ab", "a", "ab")
    assert reconnected == [18.0], "the silence of the other TLs counts"
    answering = "ab"
    ask("ab")
    answering = ""
    ask("a", "a")
    assert reconnected == [18.0, 24.0], "so does its own after it has answered again"


class Versions:
    """A server with version 1 of the start, 2 with the same contract and 3 with another one; 1 is the newest and
    labelled."""

    address = "there"

    error = None

    def contract(self, tl, version, timeout_s):
        if self.error is not None:
            raise self.error
        contract = policy_pb2.PolicyContract()
        contract.CopyFrom(KC)
        contract.origin.model_number = version
        contract.action.actionp = 0.9 if version == 3 else 0.0
        return contract

    def contracts(self, versions, timeout_s):
        return {tl: self.contract(tl, version, timeout_s) for tl, version in versions.items()}

    def predict_many(self, observations, versions, *_):
        outputs = {"action": np.array([[0.5]], np.float32)}
        return {tl: Prediction(outputs, versions[tl] if isinstance(versions[tl], int) else 1) for tl in observations}


def test_a_pinned_tl_is_asked_by_number_and_the_others_as_before():
    client = Versions()
    policies = ServedPolicies(client, dict.fromkeys("ab", KC), "stable", 1.0)
    policies.check_pin("a", 2)
    policies.pin("a", 2)
    answers = policies.ask(dict.fromkeys("ab", X))
    assert {tl: answer.version for tl, answer in answers.items()} == {"a": 2, "b": 1} == policies.model_numbers
    policies.pin("a", None)
    assert policies.ask({"a": X})["a"].version == 1


def test_a_pin_with_another_contract_is_refused_and_leaves_the_run_as_it_was():
    policies = ServedPolicies(Versions(), {"a": KC}, None, 1.0)
    with pytest.raises(InputError, match=r"version 3 of a has another contract .*--model-number 3"):
        policies.check_pin("a", 3)
    assert policies.contracts.is_unchanged("a") and policies.ask({"a": X})["a"].version == 1


def test_a_pin_that_cannot_be_checked_now_is_told_apart_from_a_wrong_one():
    client = Versions()
    client.error = Unavailable("refused")
    with pytest.raises(ProgramFailed, match=r"no contract can be read .*refused"):
        ServedPolicies(client, {"a": KC}, None, 1.0).check_pin("a", 2)


def test_comparing_all_contracts_tells_changed_and_failed_ones():
    class Client(Versions):
        def contracts(self, versions, timeout_s):
            other = policy_pb2.PolicyContract(tl="b")
            return {"a": KC, "b": other, "c": DeadlineExceeded("slow"), "d": ModelNotFound("in the fleet alone")}

    policies = ServedPolicies(Client(), dict.fromkeys("abcd", KC), None, 1.0)
    assert policies.compare_contracts() == (("a",), ("b",), ("c",))
