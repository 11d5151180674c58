"""Which versions may be followed, while two threads ask."""

import threading

import pytest

from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_contracts import ServedContracts
from protos import policy_pb2 as pb

A = pb.PolicyContract(tl="a", origin=pb.Origin(model_number=1))


class Serves:
    """Answers every question with one contract; `meanwhile` is called while it is under way."""

    def __init__(self, policy, meanwhile=lambda: None):
        self.policy, self.meanwhile, self.asked = policy, meanwhile, []

    def policies(self, versions, timeout_s):
        self.asked.append(dict(versions))
        self.meanwhile()
        return dict.fromkeys(versions, self.policy)


def test_what_was_asked_before_an_outage_is_forgotten_with_it():
    client = Serves(A, lambda: contracts.forget())
    contracts = ServedContracts(client, {"a": A})
    contracts.look("a")
    assert not contracts.is_known("a", 1)
    client.meanwhile = lambda: None
    contracts.compare({"a": 1}, 1.0)
    assert contracts.objection("a", 1) is None


def test_a_look_asks_the_newest_version_that_may_be_followed():
    client = Serves(A)
    contracts = ServedContracts(client, {"a": A})
    contracts.compare({"a": 2}, 1.0)
    client.policy = pb.PolicyContract(tl="b")
    contracts.compare({"a": 3}, 1.0)
    assert not contracts.all_same("a")
    contracts.look("a")
    assert client.asked[-1] == {"a": 2}
    assert "another contract" in str(contracts.objection("a", 2)) and contracts.objection("a", 1) is None


def test_a_look_that_breaks_tells_whose_it_was(caplog):
    def broken():
        raise RuntimeError("broken")

    contracts = ServedContracts(Serves(A, broken), {"a": A})
    with pytest.raises(RuntimeError, match="broken"):
        contracts._look_at_next()
    assert "a cannot be asked for its contract" in caplog.text


def test_a_watch_goes_on_after_a_look_that_broke_and_ends_when_it_is_told(caplog):
    looks, second = [], threading.Event()

    def look():
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("broken")
        second.set()

    watch = PeriodicThread("this", 0.001, look)
    watch.begin()
    assert second.wait(10)
    watch.end()
    ended = len(looks)
    assert watch.wait(0.02) and len(looks) == ended
    assert "a look at this broke" in caplog.text and "RuntimeError: broken" in caplog.text


def test_a_watch_that_was_never_begun_can_be_ended():
    PeriodicThread("this", 0.001, lambda: None).end()
