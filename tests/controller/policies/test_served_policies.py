"""Answers of a model server as the controller takes them."""

from unittest.mock import Mock

import numpy as np
import pytest

from city.errors import InputError, ProgramFailed
from controller.policies.served_policies import ServedPolicies
from protos import policy_pb2
from serving.client import Prediction
from serving.errors import DeadlineExceeded, InvalidResponse, ModelNotFound, Unavailable
from signals.policy import Answer

X = np.zeros(17, np.float32)
KC = policy_pb2.PolicyContract(
    tl="a", action=policy_pb2.Action(kind="kc", size=1), origin=policy_pb2.Origin(model_number=1)
)


GOOD = Prediction({"action": np.array([[0.5]], np.float32)}, 1)
LATE = DeadlineExceeded("late")


class FakeClient:
    """A client whose answers a test chooses, by model."""

    address = "there"

    def __init__(self, predict=lambda tl, version: GOOD, contract=lambda tl, version: KC):
        self.predict, self.contract_of = predict, contract
        self.requested, self.reconnected = [], 0

    def predict_many(self, observations, versions, *_):
        return {tl: self.predict(tl, versions[tl]) for tl in observations}

    def contracts(self, versions, timeout_s):
        self.requested.append(versions)
        return {tl: self.contract_of(tl, version) for tl, version in versions.items()}

    def contract(self, tl, version, timeout_s):
        result = self.contract_of(tl, version)
        if isinstance(result, Exception):
            raise result
        return result

    def reconnect(self):
        self.reconnected += 1


class Run:
    """The policies of TLs, each named by a letter, asked at seconds of a clock."""

    def __init__(self, client, tls="a", version=None, deadline_s=0.5):
        self.now, self.client, self.tls = 0.0, client, tls
        self.policies = ServedPolicies(client, dict.fromkeys(tls, KC), version, deadline_s, lambda: self.now)

    def ask(self, tls=None):
        return self.policies.ask(dict.fromkeys(tls or self.tls, X))


def action_of(answer):
    return answer.action.tolist()


@pytest.mark.parametrize(("name", "expected"), [("action", Answer), ("actions", InvalidResponse)])
def test_answer_without_an_action_is_a_bad_answer(name, expected):
    prediction = Prediction({name: np.array([[0.5]], np.float32)}, 1)
    assert isinstance(Run(FakeClient(lambda *_: prediction)).ask()["a"], expected)


def test_late_answer_is_dropped():
    def late(tl, version):
        run.now += 2.0
        return GOOD

    run = Run(FakeClient(late))
    assert isinstance(run.ask()["a"], DeadlineExceeded)
    run = Run(FakeClient())
    answers = [run.policies.ask({"a": X}, observed_s)["a"] for observed_s in (-0.5, -0.6)]
    assert [isinstance(answer, DeadlineExceeded) for answer in answers] == [False, True], "it counts from the readings"


def version_of_three(tl, version):
    """The contract of version 1 of the start, of 2 with the same contract, or of 3 with another one."""
    contract = policy_pb2.PolicyContract()
    contract.CopyFrom(KC)
    contract.origin.model_number = version
    contract.action.actionp = 0.9 if version == 3 else 0.0
    return contract


def test_new_version_is_followed_if_its_contract_is_the_same():
    client = FakeClient(lambda *_: GOOD._replace(version=2), version_of_three)
    run = Run(client)
    assert action_of(run.ask()["a"]) == [[0.5]]
    client.predict = lambda *_: GOOD._replace(version=3)
    assert "another contract" in str(run.ask()["a"])


def test_slow_comparison_of_a_new_version_delays_no_other_tl():
    def slow(tl, version):
        run.now += 5.0
        return DeadlineExceeded("slow")

    run = Run(FakeClient(lambda tl, _: GOOD._replace(version=2) if tl == "a" else GOOD, slow), "abc", deadline_s=1.0)
    answers = run.ask()
    assert isinstance(answers["a"], Exception)
    assert action_of(answers["b"]) == action_of(answers["c"]) == [[0.5]]


def test_version_that_was_unloaded_after_it_answered_is_asked_again_in_the_same_step():
    newest = [2]

    def unload(tl, version):
        if newest == [2]:
            newest[0] = 1
            return ModelNotFound("unloaded")
        return KC

    run = Run(FakeClient(lambda *_: GOOD._replace(version=newest[0]), unload), version="stable", deadline_s=1.0)
    assert action_of(run.ask()["a"]) == [[0.5]] and run.policies.model_numbers == {"a": 1}


@pytest.mark.parametrize("error", [Unavailable("gone"), LATE])
def test_contracts_are_requested_again_after_an_outage(error, caplog):
    caplog.set_level("INFO", "controller")
    serves = {"a": KC, "b": policy_pb2.PolicyContract(tl="b"), "c": DeadlineExceeded("slow")}
    client = FakeClient(contract=lambda tl, _: serves[tl])
    run = Run(client, "abc")
    assert not any(isinstance(answer, Exception) for answer in run.ask().values()) and client.requested == []
    client.predict = lambda *_: error
    for _ in range(3):
        run.ask()
        run.now += 2.0
    client.predict = lambda *_: GOOD
    answers = run.ask()
    assert client.requested == [{"a": 1, "b": 1, "c": 1}] and action_of(answers["a"]) == [[0.5]]
    assert "another contract" in str(answers["b"]) and "not known yet" in str(answers["c"])
    assert "b: the server now answers with version 1, with another contract; its actions are ignored" in caplog.text
    serves["c"] = KC
    answers = run.ask()
    assert client.requested[1:] == [{"c": 1}] and action_of(answers["c"]) == [[0.5]]
    assert isinstance(answers["b"], Exception)


def test_any_failure_becomes_an_exception_in_the_answers():
    assert isinstance(Run(FakeClient(Mock(side_effect=RuntimeError("broken")))).ask()["a"], RuntimeError)


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
    kinds = {"s": LATE, "b": InvalidResponse("bad"), "g": GOOD}
    client = FakeClient()
    run, reconnected = Run(client, "ab"), []
    for kind in answers:
        # m: one of the two TLs has an answer
        client.predict = lambda tl, _, kind=kind: kinds["sg"["ab".index(tl)] if kind == "m" else kind]
        before = client.reconnected
        run.ask()
        reconnected += [run.now] * (client.reconnected - before)
        run.now += 1.0
    assert reconnected == reconnected_s


def test_hanging_model_does_not_cause_a_new_connection():
    client = FakeClient(lambda tl, _: GOOD if tl in answering else LATE)
    run = Run(client, "ab")

    def ask(*rounds):
        for tls in rounds:
            run.ask(tls)
            run.now += 2.0
        return client.reconnected

    answering = "b"
    assert ask("ab", "a", "a", "a", "ab", "a", "a") == 0
    answering = ""
    assert ask("ab", "a", "ab") == 1, "the silence of the other TLs counts"
    answering = "ab"
    ask("ab")
    answering = ""
    assert ask("a", "a") == 2, "so does its own after it has answered again"


def labelled_one(tl, version):
    return GOOD._replace(version=version if isinstance(version, int) else 1)


def test_a_pinned_tl_is_asked_by_number_and_the_others_as_before():
    run = Run(FakeClient(labelled_one, version_of_three), "ab", "stable")
    run.policies.check_pin("a", 2)
    run.policies.pin("a", 2)
    assert {tl: answer.version for tl, answer in run.ask().items()} == {"a": 2, "b": 1} == run.policies.model_numbers
    run.policies.pin("a", None)
    assert run.ask("a")["a"].version == 1


def test_a_pin_is_refused_with_another_contract_or_without_one_and_leaves_the_run_as_it_was():
    run = Run(FakeClient(labelled_one, version_of_three))
    with pytest.raises(InputError, match=r"version 3 of a has another contract .*--model-number 3"):
        run.policies.check_pin("a", 3)
    assert run.policies.contracts.is_unchanged("a") and run.ask()["a"].version == 1
    run.client.contract_of = lambda *_: Unavailable("refused")
    with pytest.raises(ProgramFailed, match=r"no contract can be read .*refused"):
        run.policies.check_pin("a", 2)


def test_comparing_all_contracts_tells_changed_and_failed_ones():
    other = policy_pb2.PolicyContract(tl="b")
    results = {"a": KC, "b": other, "c": DeadlineExceeded("slow"), "d": ModelNotFound("in the fleet alone")}
    run = Run(FakeClient(contract=lambda tl, _: results[tl]), "abcd")
    assert run.policies.compare_contracts() == (("a",), ("b",), ("c",))
