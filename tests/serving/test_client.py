"""The client against a real server, a slow one, and one whose responses are invalid."""

import time

import numpy as np
import pytest

from protos import predict_pb2 as wire
from serving.client import Client
from serving.contract import ContractError
from serving.errors import (
    BadRequest,
    DeadlineExceeded,
    InvalidResponse,
    ModelNotFound,
    ServingError,
    Unavailable,
)
from tests.end_to_end.programs import free_port
from tests.serving.fake_server import answer

X = np.zeros(17, np.float32)


@pytest.fixture
def client(fake):
    with Client(fake.address) as opened:
        yield opened


@pytest.fixture(scope="module", params=["grid_server", "grid_unix"], ids=["TCP", "Unix socket"])
def real(request):
    with Client(request.getfixturevalue(request.param)) as opened:
        yield opened


def test_predict_and_predict_many_agree(real):
    rng = np.random.default_rng(0)
    sizes = {"SA101": 21, "SA103": 17, "SA107": 9, "SA108": 34}
    observations = {tl: rng.random(size).astype(np.float32) for tl, size in sizes.items()}
    predictions = real.predict_many(observations)
    for tl, x in observations.items():
        outputs = real.predict(tl, x)
        assert predictions[tl].version == 1
        for key, value in outputs.items():
            np.testing.assert_array_equal(value, predictions[tl].outputs[key])


def test_a_failing_model_does_not_affect_the_others(real):
    results = real.predict_many({"SA103": X, "unknown": X, "SA101": X})
    assert results["SA103"].outputs["action"].shape == (1, 1)
    assert isinstance(results["unknown"], ModelNotFound) and isinstance(results["SA101"], BadRequest)


def test_the_client_reads_contracts_signatures_and_states(real):
    assert real.contract("SA108").signal_ids == ["C1", "C2"]
    assert "serving_default" in real.signatures("SA108").signature_def
    assert real.status("SA108")[0].state == wire.ModelVersionStatus.AVAILABLE
    with pytest.raises(ModelNotFound):
        real.contract("SA108", 99)


def test_a_server_that_is_down_is_unavailable_at_once():
    begin = time.monotonic()
    with Client(f"127.0.0.1:{free_port()}") as client:
        assert isinstance(client.predict_many({"a": X}, timeout_s=5)["a"], Unavailable)
        with pytest.raises(Unavailable):
            client.contract("a")
    assert time.monotonic() - begin < 4


def test_the_timeout_bounds_all_calls_of_predict_many_together(fake):
    fake.answer = lambda request, context: time.sleep(0.3) or answer(action=[[0.0]])
    with Client(fake.address, max_in_flight=2) as client:
        begin = time.monotonic()
        results = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
        assert time.monotonic() - begin < 1.2
    assert any(isinstance(result, DeadlineExceeded) for result in results.values()) and len(results) == 12


def test_a_hanging_model_does_not_delay_the_others(fake):
    def respond(request, context):
        if wire.PredictRequest.FromString(request).model_spec.name == "0":
            time.sleep(0.6)
        return answer(action=[[0.0]])

    fake.answer = respond
    with Client(fake.address, max_in_flight=3) as client:
        results = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
    assert [model for model, result in results.items() if isinstance(result, ServingError)] == ["0"]


BAD_TENSOR = wire.PredictResponse(outputs={"action": wire.Tensor(dtype=1, tensor_content=b"123")})


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\x01", BAD_TENSOR.SerializeToString()])
def test_a_response_that_cannot_be_parsed_is_a_bad_answer(fake, client, garbage):
    fake.answer = lambda request, context: garbage
    assert isinstance(client.predict_many({"a": X})["a"], InvalidResponse)
    with pytest.raises(InvalidResponse):
        client.predict("a", X)


def test_a_model_without_a_contract_is_a_contract_error(fake, client):
    fake.answer = lambda request, context: answer(other=[1.0])
    with pytest.raises(ContractError, match="no output 'policy'"):
        client.contract("a")
    fake.answer = lambda request, context: answer(policy=np.array([b"\xff\xff"], object))
    with pytest.raises(ContractError, match="not a policy contract"):
        client.contract("a")
