"""What the controller makes of a server's answers."""

import itertools
import time

import numpy as np
import pytest

from controller.policies.served_policies import ServedPolicies
from protos import policy_pb2
from serving.client import Client, Prediction
from serving.errors import BadAnswer, DeadlineExceeded, Unavailable
from tests.serving.fake_server import answer

X = np.zeros(17, np.float32)
KC = policy_pb2.PolicyContract(tl="a", action=policy_pb2.Action(kind="kc", size=1), origin=policy_pb2.Origin(model_number=1))


@pytest.fixture
def client(fake):
    made = Client(fake.address)
    yield made
    made.close()


def ask(client, deadline_s=1.0, clock=time.monotonic):
    return ServedPolicies(client, {"a": KC}, None, deadline_s, clock).ask({"a": X})["a"]


def test_an_action_is_an_action(fake, client):
    fake.answer = lambda request, context: answer(action=[[0.5]])
    assert ask(client).tolist() == [[0.5]]


def test_an_answer_without_an_action_is_none(fake, client):
    fake.answer = lambda request, context: answer(actions=[[0.5]])
    assert isinstance(ask(client), BadAnswer)


def test_a_late_answer_is_thrown_away(fake, client):
    fake.answer = lambda request, context: answer(action=[[0.5]])
    times = itertools.chain([0.0, 0.0], itertools.repeat(2.0))
    assert isinstance(ask(client, clock=lambda: next(times)), DeadlineExceeded)


def ask_a_new_version(fake, client, **changed):
    """What is made of version 2, whose contract differs in its action from the one of the beginning."""
    policy = policy_pb2.PolicyContract()
    policy.CopyFrom(KC)
    policy.origin.model_number = 2
    policy.action.MergeFrom(policy_pb2.Action(**changed))
    told = np.array([policy.SerializeToString()], object)
    fake.answer = lambda request, context: answer(version=2, action=[[0.5]], policy=told)
    return ask(client)


def test_a_new_version_of_the_same_contract_is_followed(fake, client):
    assert ask_a_new_version(fake, client).tolist() == [[0.5]]


def test_a_new_version_of_another_contract_is_refused(fake, client):
    assert "another contract" in str(ask_a_new_version(fake, client, actionp=0.9))


def test_a_slow_look_at_one_new_version_makes_no_other_late():
    class Slow:
        def predict_many(self, observations, *_):
            outputs = {"action": np.array([[0.5]], np.float32)}
            return {tl: Prediction(outputs, 2 if tl == "a" else 1) for tl in observations}

        def policies(self, versions, timeout_s):
            clock[0] += 5.0
            return dict.fromkeys(versions, DeadlineExceeded("slow"))

    clock = [0.0]
    contracts = dict.fromkeys("abc", KC)
    found = ServedPolicies(Slow(), contracts, None, 1.0, lambda: clock[0]).ask(dict.fromkeys("abc", X))
    assert isinstance(found["a"], Exception)
    assert found["b"].tolist() == found["c"].tolist() == [[0.5]]


@pytest.mark.parametrize("lost", ["unavailable", "silent"])
def test_after_an_outage_a_version_must_tell_its_contract_though_its_number_is_known(lost, caplog):
    caplog.set_level("INFO", "controller")
    other = policy_pb2.PolicyContract(tl="b")
    errors = {"unavailable": Unavailable("gone"), "silent": DeadlineExceeded("late")}

    class Client:
        address = "there"

        def predict_many(self, observations, *_):
            good = Prediction({"action": np.array([[0.5]], np.float32)}, 1)
            return dict.fromkeys(observations, good if there else errors[lost])

        def policies(self, versions, timeout_s):
            asked.append(versions)
            return {tl: serves.get(tl, DeadlineExceeded("slow")) for tl in versions}

        def renew(self):
            pass

    asked, now, there, serves = [], 0.0, True, {"a": KC, "b": other}
    policies = ServedPolicies(Client(), dict.fromkeys("abc", KC), None, 0.5, lambda: now)
    assert not any(isinstance(x, Exception) for x in policies.ask(dict.fromkeys("abc", X)).values()) and asked == []
    there = False
    for _ in range(3):
        policies.ask(dict.fromkeys("abc", X))
        now += 2.0
    there = True
    found = policies.ask(dict.fromkeys("abc", X))
    assert asked == [{"a": 1, "b": 1, "c": 1}]
    assert found["a"].tolist() == [[0.5]]
    assert "another contract" in str(found["b"]) and "not told" in str(found["c"])
    assert "b: the server now answers with version 1, with another contract: not followed" in caplog.text
    serves["c"] = KC
    found = policies.ask(dict.fromkeys("abc", X))
    assert asked[1:] == [{"c": 1}] and found["c"].tolist() == [[0.5]] and isinstance(found["b"], Exception)


def test_whatever_breaks_is_an_exception_in_the_answers():
    class Broken:
        def predict_many(self, *_):
            raise RuntimeError("broken")

    found = ServedPolicies(Broken(), {"a": KC}, None, 1.0).ask({"a": X})
    assert isinstance(found["a"], RuntimeError)


@pytest.mark.parametrize(
    ("answers", "renewed_s"),
    [
        ("sssss", [2, 4]),  # every other one: a new connection has its chance
        ("sgsgs", []),
        ("sbsss", [4]),  # whoever refuses is there
        ("mmmmm", []),  # so is who answers some
    ],
)
def test_a_server_that_says_nothing_is_asked_over_a_new_connection(answers, renewed_s):
    kinds = {"s": DeadlineExceeded("late"), "b": BadAnswer("bad"), "g": Prediction({"action": np.array([[0.5]], np.float32)}, 1)}

    class Client:
        address = "there"

        def predict_many(self, *_):
            kind = answers[int(now[0])]
            return {"a": kinds["s"], "b": kinds["g"]} if kind == "m" else dict.fromkeys("ab", kinds[kind])

        def renew(self):
            renewed.append(now[0])

    now, renewed = [0.0], []
    policies = ServedPolicies(Client(), dict.fromkeys("ab", KC), None, 0.5, lambda: now[0])
    for _ in answers:
        policies.ask(dict.fromkeys("ab", X))
        now[0] += 1.0
    assert renewed == renewed_s


def test_a_model_that_hangs_says_nothing_of_the_connection():
    class Client:
        address = "there"

        def predict_many(self, observations, *_):
            good = Prediction({"action": np.array([[0.5]], np.float32)}, 1)
            return {tl: good if tl in answering else DeadlineExceeded("late") for tl in observations}

        def policies(self, versions, timeout_s):
            return dict.fromkeys(versions, KC)

        def renew(self):
            renewed.append(now)

    renewed, now, answering = [], 0.0, "b"
    policies = ServedPolicies(Client(), dict.fromkeys("ab", KC), None, 0.5, lambda: now)

    def ask(*rounds):
        nonlocal now
        for tls in rounds:
            policies.ask(dict.fromkeys(tls, X))
            now += 2.0

    ask("ab", "a", "a", "a", "ab", "a", "a")
    assert renewed == []
    answering = ""
    ask("ab", "a", "ab")
    assert renewed == [18.0], "the others' silence counts"
    answering = "ab"
    ask("ab")
    answering = ""
    ask("a", "a")
    assert renewed == [18.0, 24.0], "so does its own once it has answered again"
