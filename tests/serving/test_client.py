"""The lean client against a server that answers, one that is late, and one that answers garbage."""

import time

import grpc
import numpy as np
import pytest

from protos import predict_pb2 as wire
from serving.client import Client
from serving.contract import ContractError
from serving.errors import BadAnswer, BadRequest, DeadlineExceeded, ModelNotFound, Overloaded, ServingError, Unavailable
from serving.tensors import to_proto
from tests.end_to_end.programs import free_port
from tests.serving.fake_server import answer

X = np.zeros(17, np.float32)


@pytest.fixture
def client(fake):
    made = Client(fake.address)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["grid_server", "grid_unix"], ids=["TCP", "Unix socket"])
def real(request):
    made = Client(request.getfixturevalue(request.param))
    yield made
    made.close()


def test_one_and_many_give_the_same(real):
    rng = np.random.default_rng(0)
    sizes = {"SA101": 21, "SA103": 17, "SA107": 9, "SA108": 34}
    observations = {tl: rng.random(size).astype(np.float32) for tl, size in sizes.items()}
    together = real.predict_many(observations)
    for tl, x in observations.items():
        alone = real.predict(tl, x)
        assert together[tl].version == 1
        for key, value in alone.items():
            np.testing.assert_array_equal(value, together[tl].outputs[key])


def test_more_models_than_may_fly_at_once_are_all_answered(grid_server):
    client = Client(grid_server, max_in_flight=2)
    tls = {f"SA10{k}": np.zeros(21, np.float32) for k in (1, 2, 4, 5, 6)}
    assert all(not isinstance(a, ServingError) for a in client.predict_many(tls).values())
    client.close()


def test_one_bad_model_spoils_only_its_own_answer(real):
    found = real.predict_many({"SA103": X, "nobody": X, "SA101": X})
    assert found["SA103"].outputs["action"].shape == (1, 1)
    assert isinstance(found["nobody"], ModelNotFound) and isinstance(found["SA101"], BadRequest)


def test_contracts_signatures_and_states_are_told(real):
    assert real.contract("SA108").signal_ids == ["C1", "C2"]
    assert "serving_default" in real.signatures("SA108").signature_def
    assert real.status("SA108")[0].state == wire.ModelVersionStatus.AVAILABLE
    with pytest.raises(ModelNotFound):
        real.contract("SA108", 99)


def test_a_dead_server_is_unavailable_at_once():
    client = Client(f"127.0.0.1:{free_port()}")
    begin = time.monotonic()
    assert isinstance(client.predict_many({"a": X}, timeout_s=5)["a"], Unavailable)
    with pytest.raises(Unavailable):
        client.contract("a")
    assert time.monotonic() - begin < 4
    client.close()


def test_the_time_limit_holds_for_all_together(fake):
    client = Client(fake.address, max_in_flight=2)
    fake.answer = lambda request, context: time.sleep(0.3) or answer(action=[[0.0]])
    begin = time.monotonic()
    found = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
    assert time.monotonic() - begin < 1.2
    assert any(isinstance(a, DeadlineExceeded) for a in found.values()) and len(found) == 12
    client.close()


def test_a_model_that_hangs_holds_up_no_other(fake):
    client = Client(fake.address, max_in_flight=3)

    def respond(request, context):
        if wire.PredictRequest.FromString(request).model_spec.name == "0":
            time.sleep(0.6)
        return answer(action=[[0.0]])

    fake.answer = respond
    found = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
    assert [model for model, a in found.items() if isinstance(a, ServingError)] == ["0"]
    client.close()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\x01"])
def test_garbage_is_a_bad_answer(fake, client, garbage):
    fake.answer = lambda request, context: garbage
    assert isinstance(client.predict_many({"a": X})["a"], BadAnswer)
    with pytest.raises(BadAnswer):
        client.predict("a", X)


def test_a_tensor_that_contradicts_itself_is_a_bad_answer(fake, client):
    response = wire.PredictResponse()
    to_proto(np.zeros((1, 2), np.float32), response.outputs["action"]).tensor_content = b"123"
    fake.answer = lambda request, context: response.SerializeToString()
    assert isinstance(client.predict_many({"a": X})["a"], BadAnswer)


def test_a_call_that_nobody_worked_on_is_made_again_and_no_other(fake):
    asked = []

    def respond(request, context):
        asked.append(wire.PredictRequest.FromString(request).model_spec.name)
        if asked.count("busy") == 1 and asked[-1] == "busy":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
        return answer(action=[[0.0]])

    fake.answer = respond
    with Client(fake.address, retries=0) as once, Client(fake.address, retries=1) as again:
        assert isinstance(once.predict_many({"busy": X})["busy"], Overloaded)
        asked.clear()
        assert again.predict("busy", X, timeout_s=20)
        asked.clear()
        found = again.predict_many({"busy": X, "other": X}, timeout_s=20)
        assert all(isinstance(one, Answer) for one in found.values())
        assert sorted(asked) == ["busy", "busy", "other"]


def test_statuses_become_our_errors(fake, client):
    for code, kind in ((grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded), (grpc.StatusCode.INTERNAL, ServingError)):
        fake.answer = lambda request, context, code=code: context.abort(code, "so it is")
        found = client.predict_many({"a": X})["a"]
        assert type(found) is kind and "so it is" in str(found)


def test_a_model_without_a_contract_says_so(fake, client):
    fake.answer = lambda request, context: answer(other=[1.0])
    with pytest.raises(ContractError, match="no output 'policy'"):
        client.contract("a")
    fake.answer = lambda request, context: answer(policy=np.array([b"\xff\xff"], object))
    with pytest.raises(ContractError, match="not a policy contract"):
        client.contract("a")
