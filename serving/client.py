"""A lean client of TensorFlow Serving's gRPC API: NumPy in, NumPy out, no TensorFlow.

    with Client("127.0.0.1:8500") as client:
        client.predict("SA101", observation, timeout_s=0.5)           # {"action": array([[...]])}
        client.predict_many({"SA101": x, "SA104": y}, timeout_s=0.5)  # all at once
        client.predict_fleet(client.fleet("city"), {"SA101": x})      # one call for all of them
        client.policy("SA101")                                        # the policy contract
        client.run("any", {"x": array}, signature="other")            # any model's signature

Works against the embedded server and TensorFlow Serving alike. docs/client.md
tells addresses, deadlines, retries, TLS and errors.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2
from protos import predict_pb2 as pb
from serving import contract, messages
from serving.address import RETRIED, Tls, channel, unix_path
from serving.errors import BadAnswer, BadRequest, ServingError, from_status
from serving.fleet import Fleet
from serving.line import Line
from serving.messages import Answer, Outputs
from serving.tensors import TensorError, to_proto

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_CONNECT_S = 5.0
"""Wall time that a new connection may take."""


class Client:
    """One channel to a model server, or to several that serve the same models. Safe to use from many threads."""

    def __init__(self, address: str, max_in_flight: int = 8, tls: Tls | None = None, retries: int = 2) -> None:
        """`address`: HOST:PORT, or several IP addresses with commas between, or
        a name that stands for several (a headless service): then calls go round.

        `max_in_flight`: TensorFlow Serving answers more calls at once than its
        threads (4 per core by default) with RESOURCE_EXHAUSTED, so the client
        keeps the rest back. `retries`: how often a call that no server worked on
        (UNAVAILABLE, RESOURCE_EXHAUSTED) is made again inside its deadline;
        predictions change nothing, so that is safe. On a Unix socket they come
        after an attempt by a line of its own. Raises ValueError where the address
        is none.
        """
        self.address = address
        self._max_in_flight = max_in_flight
        self._open: Callable[[], grpc.Channel] = functools.partial(channel, address, tls, retries)
        self._channel = self._open()
        self._former: grpc.Channel | None = None
        self._connecting: Any = None
        """Kept: a call that nobody holds is cancelled."""
        path = unix_path(address) if tls is None else None
        self._line = Line(path, RETRIED if retries else ()) if path else None
        self._prefixes: dict[tuple[str, int | None, int], bytes] = {}
        self._bind()

    def _bind(self) -> None:
        # requests are bytes already: their constant part is serialized once
        self._predict = self._channel.unary_unary(_PREDICT, response_deserializer=messages.predicted)
        self._metadata = self._call(_METADATA, pb.GetModelMetadataRequest, pb.GetModelMetadataResponse)
        self._status = self._call(_STATUS, pb.GetModelStatusRequest, pb.GetModelStatusResponse)

    def renew(self) -> None:
        """Begin with a new connection: one that leads nowhere (its server lost power, a firewall forgot it) gives no sign of it.

        Calls under way go on over the connection that they have, up to the next `renew`.
        """
        if self._former is not None:
            self._former.close()
        # a line that leads nowhere ends with the first question that it hears nothing to
        self._former, self._channel = self._channel, self._open()
        self._bind()
        # a question that makes it connect now, as the next one may have no time for that; any answer will do
        self._connecting = self._status.future(pb.GetModelStatusRequest(), timeout=_CONNECT_S, wait_for_ready=True)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(method, request.SerializeToString, messages.parsed_by(response))

    def predict(
        self, model: str, observation: NDArray[np.float32], version: int | None = None, timeout_s: float = 1.0
    ) -> Outputs:
        """Outputs of `serving_default` for one observation, float32 [O]. Raises ServingError."""
        return self._asked(self._request(model, version, observation), timeout_s)

    def predict_many(
        self,
        observations: Mapping[str, NDArray[np.float32]],
        versions: Mapping[str, int] | None = None,
        timeout_s: float = 1.0,
    ) -> dict[str, Answer | ServingError]:
        """Answers by model, all asked at once; an error where a model gave none.

        `timeout_s` bounds the whole, not each call.
        """
        end = time.monotonic() + timeout_s
        pinned = versions or {}
        return self._many({model: self._request(model, pinned.get(model), x) for model, x in observations.items()}, end)

    def _many(self, requests: Mapping[str, bytes], end: float) -> dict[str, Answer | ServingError]:
        found: dict[str, Answer | ServingError] = {}
        ended: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        begun: set[str] = set()

        def begin(model: str) -> None:
            call = self._predict.future(requests[model], timeout=max(end - time.monotonic(), 0.0))
            begun.add(model)  # it will end; one that could not be made would be waited for in vain
            call.add_done_callback(lambda call, model=model: ended.put((model, call)))

        for model, told in self._by_line(requests, end, begin).items():
            try:
                found[model] = messages.read_answer(told)
            except ServingError as error:
                found[model] = error
        waiting = iter([model for model in requests if model not in found and model not in begun])

        def send(most: int) -> None:
            for model in islice(waiting, most):
                begin(model)

        send(max(self._max_in_flight - len(begun), 0))
        while len(found) < len(requests):
            # whichever ends first makes room for the next: a model that hangs holds up nobody
            model, call = ended.get()
            try:
                found[model] = messages.read_answer(call.result())
            except grpc.RpcError as error:
                found[model] = _ours(error)
            except ServingError as error:
                found[model] = error
            send(1)
        return found

    def run(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        signature: str = contract.SIGNATURE,
        outputs: Sequence[str] = (),
        version: int | None = None,
        label: str = "",
        timeout_s: float = 1.0,
    ) -> Outputs:
        """Outputs of any signature of any model (`outputs`: those only), arrays by key. Raises ServingError."""
        request = pb.PredictRequest(model_spec=messages.spec_of(model, version, signature, label), output_filter=outputs)
        try:
            for key, array in inputs.items():
                to_proto(array, request.inputs[key])
        except TensorError as error:
            raise BadRequest(f"input {key} of {model}: {error}") from None
        return self._asked(request.SerializeToString(), timeout_s)

    def fleet(self, model: str, version: int | None = None, timeout_s: float = 5.0) -> Fleet:
        """What a fleet is: whose observations stand where. Raises ServingError, or ContractError where it is no fleet."""
        return Fleet(model, self.policy(model, version, timeout_s))

    def predict_fleet(
        self,
        fleet: Fleet,
        observations: Mapping[str, NDArray[np.float32]],
        version: int | None = None,
        timeout_s: float = 1.0,
    ) -> dict[str, NDArray[Any]]:
        """Actions by TL, float32 [A] each, of one call to a fleet. Raises ServingError, or ContractError.

        TLs that are left out are not answered. The action of a categorical
        policy is its index.
        """
        found = self._asked(self._request(fleet.model, version, fleet.stacked(observations)), timeout_s)
        return fleet.split(found.get(contract.ACTION), observations)

    def policy(self, model: str, version: int | None = None, timeout_s: float = 5.0) -> policy_pb2.Policy:
        """The policy contract of a model. Raises ServingError, or ContractError where it has none."""
        return messages.read_policy(model, self._asked(messages.policy_request(model, version), timeout_s))

    def policies(
        self, versions: Mapping[str, int | None], timeout_s: float = 5.0
    ) -> dict[str, policy_pb2.Policy | ServingError | contract.ContractError]:
        """Contracts by model, all asked at once; an error where a model gave none. `timeout_s` bounds the whole."""
        requests = {model: messages.policy_request(model, version) for model, version in versions.items()}
        found: dict[str, policy_pb2.Policy | ServingError | contract.ContractError] = {}
        for model, answer in self._many(requests, time.monotonic() + timeout_s).items():
            try:
                found[model] = answer if isinstance(answer, ServingError) else messages.read_policy(model, answer.outputs)
            except contract.ContractError as error:
                found[model] = error
        return found

    def signatures(self, model: str, version: int | None = None, label: str = "", timeout_s: float = 5.0) -> pb.SignatureDefMap:
        """The signatures of a model. Raises ServingError."""
        request = pb.GetModelMetadataRequest(
            model_spec=messages.spec_of(model, version, "", label), metadata_field=["signature_def"]
        )
        try:
            answer = self._metadata(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _ours(error) from None
        if answer is messages.GARBAGE or "signature_def" not in answer.metadata:
            raise BadAnswer(f"metadata of {model} without signatures")
        return pb.SignatureDefMap.FromString(answer.metadata["signature_def"].value)

    def status(self, model: str, timeout_s: float = 5.0) -> list[pb.ModelVersionStatus]:
        """States of a model's versions, newest first. Raises ServingError."""
        try:
            answer = self._status(pb.GetModelStatusRequest(model_spec=messages.spec_of(model, None, "")), timeout=timeout_s)
        except grpc.RpcError as error:
            raise _ours(error) from None
        if answer is messages.GARBAGE:
            raise BadAnswer(f"status of {model} cannot be parsed")
        return list(answer.model_version_status)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._channel.close()
        if self._former is not None:
            self._former.close()

    def _by_line(
        self, requests: Mapping[str, bytes], end: float, leave: Callable[[str], None] = lambda key: None
    ) -> dict[str, Any]:
        """What the line answers, by key: responses, or ServingErrors. What it leaves out is asked through gRPC.

        `leave`: called with what is left out while the line waits for the rest.
        """
        if self._line is None:
            return {}
        told = self._line.ask(_PREDICT, requests, end, self._max_in_flight, leave)
        return {
            key: messages.predicted(answer) if isinstance(answer, bytes) else from_status(*answer) for key, answer in told.items()
        }

    def _asked(self, request: bytes, timeout_s: float) -> Outputs:
        end = time.monotonic() + timeout_s
        told = self._by_line({"": request}, end).get("")
        if told is None:
            try:
                told = self._predict(request, timeout=max(end - time.monotonic(), 0.0))
            except grpc.RpcError as error:
                raise _ours(error) from None
        return messages.read_answer(told).outputs

    def _request(self, model: str, version: int | None, observation: NDArray[np.float32]) -> bytes:
        """A PredictRequest for one observation: a prefix that never changes, then the numbers."""
        values = np.ascontiguousarray(observation, "<f4").tobytes()
        key = (model, version, len(values))
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = messages.prefix_of(model, version, len(values))
        return prefix + values


def _ours(error: Any) -> ServingError:
    return from_status(error.code().name, error.details() or "")
