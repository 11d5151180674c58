"""What is said to a model server and what comes back: Predict's bytes, without a message object where it counts."""

from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from protos import policy_pb2
from protos import predict_pb2 as pb
from serving import contract
from serving.errors import BadAnswer, ServingError
from serving.tensors import TensorError, to_array, to_proto, varint

GARBAGE = object()
"""In place of an answer that cannot be parsed."""

Outputs = dict[str, NDArray[Any]]


class Answer(NamedTuple):
    """What one model answered."""

    outputs: Outputs
    version: int
    """The version that answered, as the server tells it."""


def spec_of(model: str, version: int | None, signature: str, label: str = "") -> pb.ModelSpec:
    spec = pb.ModelSpec(name=model, signature_name=signature)
    if version is not None:
        spec.version.value = version
    elif label:
        spec.version_label = label
    return spec


def policy_request(model: str, version: int | None) -> bytes:
    request = pb.PredictRequest(model_spec=spec_of(model, version, contract.POLICY_SIGNATURE))
    to_proto(np.zeros(1, np.int32), request.inputs[contract.POLICY_INPUT])
    return request.SerializeToString()


def read_policy(model: str, outputs: Outputs) -> policy_pb2.Policy:
    """Raises ContractError."""
    told = outputs.get(contract.POLICY_OUTPUT)
    if told is None or told.size < 1:
        raise contract.ContractError(f"model {model} has no output {contract.POLICY_OUTPUT!r} in its policy signature")
    return contract.parse(bytes(told.reshape(-1)[0]))


def prefix_of(model: str, version: int | None, size: int) -> bytes:
    """Everything of a PredictRequest before its numbers, of which there are `size` bytes.

    The numbers are the last field (tensor_content) of the last field (value) of
    the only entry of `inputs`, so the request can be put together by appending.
    """
    tensor = pb.Tensor(dtype=1)
    for n in (1, size // 4):
        tensor.tensor_shape.dim.add(size=n)
    head = tensor.SerializeToString() + b"\x22" + varint(size)
    key = contract.INPUT.encode()
    entry = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(head) + size) + head
    spec = spec_of(model, version, contract.SIGNATURE).SerializeToString()
    return b"\x0a" + varint(len(spec)) + spec + b"\x12" + varint(len(entry) + size) + entry


def parsed_by(kind: Any) -> Any:
    def parse(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return GARBAGE  # gRPC would call this INTERNAL; who asked turns it into a BadAnswer

    return parse


predicted = parsed_by(pb.PredictResponse)


def read_answer(told: Any) -> Answer:
    """Raises ServingError, and so what is one already."""
    if isinstance(told, ServingError):
        raise told
    if told is GARBAGE:
        raise BadAnswer("the answer cannot be parsed")
    try:
        return Answer({key: to_array(tensor) for key, tensor in told.outputs.items()}, told.model_spec.version.value)
    except TensorError as error:
        raise BadAnswer(f"the answer holds {error}") from None
