"""Which versions of a model may be followed, with requests of two threads."""

from unittest.mock import Mock

import pytest

from controller.policies.served_contracts import MAX_VERSIONS, ServedContracts
from protos import policy_pb2 as pb
from tests.controller.policies.test_served_policies import FakeClient

A, B = pb.PolicyContract(tl="a", origin=pb.Origin(model_number=1)), pb.PolicyContract(tl="b")


def always(contract):
    return lambda tl, version: contract


def test_result_of_a_request_before_forget_is_dropped():
    def forgetting(tl, version):
        contracts.forget()
        return A

    client = FakeClient(contract=forgetting)
    contracts = ServedContracts(client, {"a": A})
    contracts.check("a")
    assert not contracts.is_known("a", 1)
    client.contract_of = always(A)
    contracts.compare({"a": 1}, 1.0)
    assert contracts.contract_error("a", 1) is None


def test_contracts_of_many_versions_take_no_more_memory_than_those_of_a_few():
    contracts = ServedContracts(FakeClient(contract=always(A)), {"a": A})
    for version in range(2, 200):
        contracts.compare({"a": version}, 1.0)
        contracts.note_answer("a", version)
    assert len(contracts._compared["a"]) == len(contracts._logged) == MAX_VERSIONS
    assert contracts.is_known("a", 199) and contracts.is_known("a", 200 - MAX_VERSIONS)
    contracts.compare({"a": 1}, 1.0)  # a rollback beyond them
    assert contracts.contract_error("a", 1) is None and contracts.contract_error("a", 199) is None


def test_rollback_makes_the_contract_unchanged_again_and_is_checked():
    noted, client = [], FakeClient(contract=lambda tl, version: B if version == 2 else A)
    contracts = ServedContracts(client, {"a": A}, lambda tl, version, contract: noted.append((version, contract.tl)))
    contracts.compare({"a": 2}, 1.0)
    contracts.note_answer("a", 2)
    assert not contracts.is_unchanged("a") and "another contract" in str(contracts.contract_error("a", 2))
    contracts.check("a")
    assert client.requested[-1] == {"a": 1}, "the newest version that may be followed"
    contracts.compare({"a": 3}, 1.0)
    contracts.note_answer("a", 1)
    assert contracts.is_unchanged("a") and noted == [(2, "b"), (1, "a"), (3, "a"), (1, "a")]
    contracts.check("a")
    assert client.requested[-1] == {"a": 1}


def test_failed_check_names_its_tl(caplog):
    contracts = ServedContracts(FakeClient(contract=Mock(side_effect=RuntimeError("broken"))), {"a": A})
    with pytest.raises(RuntimeError, match="broken"):
        contracts.updating.task()
    assert "a: its contract cannot be requested" in caplog.text
