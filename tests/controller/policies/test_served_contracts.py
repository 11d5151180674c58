"""Which versions of a model may be followed, with requests of two threads."""

import pytest

from controller.policies.served_contracts import MAX_VERSIONS, ServedContracts
from protos import policy_pb2 as pb

A = pb.PolicyContract(tl="a", origin=pb.Origin(model_number=1))


class FakeClient:
    """Answers every request with one contract; calls `meanwhile` during the request."""

    def __init__(self, contract, meanwhile=lambda: None):
        self.contract, self.meanwhile, self.requested = contract, meanwhile, []

    def contracts(self, versions, timeout_s):
        self.requested.append(dict(versions))
        self.meanwhile()
        return dict.fromkeys(versions, self.contract)


def test_result_of_a_request_before_forget_is_dropped():
    client = FakeClient(A, lambda: contracts.forget())
    contracts = ServedContracts(client, {"a": A})
    contracts.check("a")
    assert not contracts.is_known("a", 1)
    client.meanwhile = lambda: None
    contracts.compare({"a": 1}, 1.0)
    assert contracts.contract_error("a", 1) is None


def test_check_requests_the_newest_version_that_may_be_followed():
    client = FakeClient(A)
    contracts = ServedContracts(client, {"a": A})
    contracts.compare({"a": 2}, 1.0)
    client.contract = pb.PolicyContract(tl="b")
    contracts.compare({"a": 3}, 1.0)
    assert not contracts.is_unchanged("a")
    contracts.check("a")
    assert client.requested[-1] == {"a": 2}
    assert "another contract" in str(contracts.contract_error("a", 2)) and contracts.contract_error("a", 1) is None


def test_contracts_of_many_versions_take_no_more_memory_than_those_of_a_few():
    client = FakeClient(A)
    contracts = ServedContracts(client, {"a": A})
    for version in range(2, 200):
        contracts.compare({"a": version}, 1.0)
        contracts.note_answer("a", version)
    assert len(contracts._compared["a"]) == len(contracts._logged) == MAX_VERSIONS
    assert contracts.is_known("a", 199) and contracts.is_known("a", 200 - MAX_VERSIONS)
    contracts.compare({"a": 1}, 1.0)  # a rollback beyond them
    assert contracts.contract_error("a", 1) is None and contracts.contract_error("a", 199) is None


def test_rollback_makes_the_contract_unchanged_again_and_is_checked():
    noted = []
    client = FakeClient(pb.PolicyContract(tl="b"))
    contracts = ServedContracts(client, {"a": A}, lambda tl, version, contract: noted.append((version, contract.tl)))
    contracts.compare({"a": 2}, 1.0)
    contracts.note_answer("a", 2)
    assert not contracts.is_unchanged("a")
    client.contract = A
    contracts.compare({"a": 3}, 1.0)
    contracts.note_answer("a", 1)
    assert contracts.is_unchanged("a") and noted == [(2, "b"), (3, "a"), (1, "a")]
    contracts.check("a")
    assert client.requested[-1] == {"a": 1}


def test_failed_check_names_its_tl(caplog):
    def broken():
        raise RuntimeError("broken")

    contracts = ServedContracts(FakeClient(A, broken), {"a": A})
    with pytest.raises(RuntimeError, match="broken"):
        contracts.updating.task()
    assert "a: its contract cannot be requested" in caplog.text
