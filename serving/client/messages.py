"""Requests to a model server as messages, and its responses as NumPy arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2
from protos import predict_pb2 as pb
from serving import contract
from serving.errors import InvalidResponse
from serving.tensors import TensorError, to_array, to_proto

Outputs = dict[str, NDArray[Any]]

Version = int | str | None
"""A version's number or label; None: the newest."""


class Prediction(NamedTuple):
    """The response of one model."""

    outputs: Outputs
    version: int
    """Number of the version that answered, as the server reports it."""


def model_spec(model: str, version: Version = None, signature: str = "") -> pb.ModelSpec:
    """The spec of one version of a model."""
    spec = pb.ModelSpec(name=model, signature_name=signature)
    if isinstance(version, str):
        spec.version_label = version
    elif version is not None:
        spec.version.value = version
    return spec


def predict_request(
    model: str, version: Version, observation: NDArray[np.float32], outputs: Sequence[str] = ()
) -> pb.PredictRequest:
    """The Predict request for one observation, float32 [O], as a batch of one. `outputs`: keys to return; empty:
    all."""
    spec = model_spec(model, version, contract.DEFAULT_SIGNATURE)
    request = pb.PredictRequest(model_spec=spec, output_filter=outputs)
    to_proto(np.asarray(observation, np.float32)[None], request.inputs[contract.INPUT])
    return request


def scores_of(values: NDArray[Any] | None, size: int) -> NDArray[np.float32] | None:
    """The scores in a response, float32 [size]; None if it has none of this size."""
    if values is None or values.size != size or values.dtype.kind not in "fiu":
        return None
    return np.asarray(values.reshape(-1), np.float32)


def contract_request(model: str, version: Version) -> pb.PredictRequest:
    """The Predict request for a model's policy contract."""
    request = pb.PredictRequest(model_spec=model_spec(model, version, contract.POLICY_SIGNATURE))
    to_proto(np.zeros(1, np.int32), request.inputs[contract.POLICY_INPUT])
    return request


def parse_contract(model: str, outputs: Outputs) -> policy_pb2.PolicyContract:
    """The contract in the outputs of signature `policy`. Raises ContractError."""
    serialized = outputs.get(contract.POLICY_OUTPUT)
    if serialized is None or serialized.size < 1:
        raise contract.ContractError(f"model {model} has no output {contract.POLICY_OUTPUT!r} in its policy signature")
    return contract.parse(bytes(serialized.reshape(-1)[0]))


def parse_prediction(response: pb.PredictResponse) -> Prediction:
    """The arrays of a PredictResponse. Raises InvalidResponse."""
    try:
        outputs = {key: to_array(tensor) for key, tensor in response.outputs.items()}
    except TensorError as error:
        raise InvalidResponse(f"the response has an invalid tensor: {error}") from None
    return Prediction(outputs, response.model_spec.version.value)
