"""The client: unary calls to TensorFlow Serving's gRPC API, one at a time or concurrently.

    with Client("127.0.0.1:8500") as client:
        client.predict("SA101", observation, timeout_s=0.5)           # {"action": array([[...]])}
        client.predict_many({"SA101": x, "SA104": y}, timeout_s=0.5)  # concurrent calls
        client.predict_fleet(client.fleet("city"), {"SA101": x})      # one call for all of them
        client.contract("SA101")                                      # the policy contract
        client.run("any", {"x": array}, signature="other")            # any signature of any model

It works with the embedded server and with TensorFlow Serving.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from protos import model_server_config_pb2 as config_pb
from protos import policy_pb2
from protos import predict_pb2 as pb
from serving.client import messages
from serving.client.channel import Tls, open_channel
from serving.client.fleet import Fleet, ScoredAction
from serving.client.messages import Outputs, Prediction, Version
from serving.contract import ACTION, DEFAULT_SIGNATURE, SCORES, ContractError
from serving.errors import BadRequest, InvalidResponse, ServingError, from_status
from serving.tensors import TensorError, to_proto

_Message = TypeVar("_Message", bound=Message)
Metadata = Sequence[tuple[str, str]]
CONNECT_TIMEOUT_S = 5.0
"""Wall time within which a new connection must be made."""


class Client:
    """One channel to a model server, or to several that serve the same models. Thread-safe."""

    def __init__(
        self,
        address: str,
        max_in_flight: int = 8,
        tls: Tls | Callable[[], Tls] | None = None,
        retries: int = 2,
        metadata: Callable[[], Metadata] | None = None,
    ) -> None:
        """Open a channel; the first call connects.

        Args:
            address: HOST:PORT, unix:PATH, several IP addresses separated by commas, or a name that resolves to
                several (a headless service), which balances calls round robin.
            max_in_flight: maximum of concurrent calls of one `predict_many` or `contracts`. TensorFlow Serving
                answers more calls than it has threads (4 per core by default) with RESOURCE_EXHAUSTED.
            tls: certificates, or a function that returns those for a new connection; None: plain text.
            retries: retries, within the deadline, of a call that no server has processed (UNAVAILABLE,
                RESOURCE_EXHAUSTED). All methods are idempotent, so that is safe.
            metadata: called before each Predict, for the metadata to send with it, such as a traceparent; None: none.

        Raises:
            ValueError: the address is invalid.
        """
        self.address = address
        self._max_in_flight = max_in_flight
        self._tls, self._retries = tls, retries
        self._new_metadata = metadata
        self._connect_lock = threading.Lock()
        """Held while channels are replaced or closed: several threads may call `reconnect`."""
        self._is_closed = False
        self._channel = self._open()
        self._previous_channel: grpc.Channel | None = None
        self._connecting: Any = None
        """Keeps the connecting call alive: gRPC cancels a call without references."""
        self._bind_methods()

    def _open(self) -> grpc.Channel:
        return open_channel(self.address, self._tls() if callable(self._tls) else self._tls, self._retries)

    def _bind_methods(self) -> None:
        """Make the channel's methods, which return a response's bytes (see `_response`)."""
        prefix, method = "/tensorflow.serving.", self._channel.unary_unary
        self._predict = method(f"{prefix}PredictionService/Predict", pb.PredictRequest.SerializeToString)
        self._metadata = method(
            f"{prefix}PredictionService/GetModelMetadata", pb.GetModelMetadataRequest.SerializeToString
        )
        self._status = method(f"{prefix}ModelService/GetModelStatus", pb.GetModelStatusRequest.SerializeToString)
        self._reload = method(
            f"{prefix}ModelService/HandleReloadConfigRequest", config_pb.ReloadConfigRequest.SerializeToString
        )

    def reconnect(self) -> None:
        """Open a new connection. A half-open one (server without power, firewall) reports no error by itself.

        Calls in flight finish on the old connection, which the next `reconnect` closes. Does nothing after `close`.
        """
        with self._connect_lock:
            if self._is_closed:
                return
            channel = self._open()  # first: if a certificate cannot be read, the old connections stay
            if self._previous_channel is not None:
                self._previous_channel.close()
            self._previous_channel, self._channel = self._channel, channel
            self._bind_methods()
            # connect now, because the next prediction's deadline may be short; the response is ignored
            self._connecting = self._status.future(
                pb.GetModelStatusRequest(), timeout=CONNECT_TIMEOUT_S, wait_for_ready=True
            )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def predict(
        self, model: str, observation: NDArray[np.float32], version: Version = None, timeout_s: float = 1.0
    ) -> Outputs:
        """Request the outputs of `serving_default` for one observation.

        Args:
            model: name of the model.
            observation: float32 [O].
            version: number or label; None: the newest.
            timeout_s: deadline of the call.

        Returns:
            Output key -> array [1, ...], such as `action` [1, A].

        Raises:
            ServingError: the call failed.
        """
        return self._call_predict(messages.predict_request(model, version, observation), timeout_s)

    def predict_many(
        self,
        observations: Mapping[str, NDArray[np.float32]],
        versions: Mapping[str, Version] | None = None,
        timeout_s: float = 1.0,
        outputs: Sequence[str] = (),
    ) -> dict[str, Prediction | ServingError]:
        """Request predictions of several models concurrently; return one by model, or the error of its call.

        Args:
            observations: model -> observation, float32 [O].
            versions: model -> number or label; without an entry, the newest.
            timeout_s: deadline of all calls together.
            outputs: keys of the outputs to return, which every model must have; empty: all.
        """
        versions = versions or {}
        requests = {
            model: messages.predict_request(model, versions.get(model), x, outputs) for model, x in observations.items()
        }
        return self._call_many(requests, timeout_s)

    def _call_many(
        self, requests: Mapping[str, pb.PredictRequest], timeout_s: float
    ) -> dict[str, Prediction | ServingError]:
        deadline_s = time.monotonic() + timeout_s
        results: dict[str, Prediction | ServingError] = {}
        done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        pending = iter(requests)
        metadata = self._new_metadata() if self._new_metadata else None

        def send(count: int) -> None:
            for model in islice(pending, count):
                timeout_s = max(deadline_s - time.monotonic(), 0.0)
                call = self._predict.future(requests[model], timeout=timeout_s, metadata=metadata)
                call.add_done_callback(lambda call, model=model: done.put((model, call)))

        send(self._max_in_flight)
        while len(results) < len(requests):
            # each call that ends starts the next, so a model that hangs does not delay the others
            model, call = done.get()
            try:
                results[model] = messages.parse_prediction(_response(call.result, pb.PredictResponse))
            except ServingError as error:
                results[model] = error
            send(1)
        return results

    def run(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        signature: str = DEFAULT_SIGNATURE,
        outputs: Sequence[str] = (),
        version: Version = None,
        timeout_s: float = 1.0,
    ) -> Outputs:
        """Run any signature of any model and return its outputs by key.

        Args:
            model: name of the model.
            inputs: input key -> array.
            signature: name of the signature.
            outputs: keys of the outputs to return; empty: all.
            version: number or label; None: the newest.
            timeout_s: deadline of the call.

        Raises:
            BadRequest: an array has no TensorFlow dtype, or the server refused the request.
            ServingError: the call failed.
        """
        request = pb.PredictRequest(model_spec=messages.model_spec(model, version, signature), output_filter=outputs)
        try:
            for key, array in inputs.items():
                to_proto(array, request.inputs[key])
        except TensorError as error:
            raise BadRequest(f"input {key} of {model}: {error}") from None
        return self._call_predict(request, timeout_s)

    def fleet(self, model: str, version: int | None = None, timeout_s: float = 5.0) -> Fleet:
        """The layout of a fleet: each TL's columns. Raises ServingError, or ContractError if the model is not a
        fleet."""
        return Fleet(model, self.contract(model, version, timeout_s))

    def predict_fleet(
        self,
        fleet: Fleet,
        observations: Mapping[str, NDArray[np.float32]],
        version: int | None = None,
        timeout_s: float = 1.0,
    ) -> dict[str, NDArray[Any] | InvalidResponse]:
        """Request the actions of a fleet's TLs in one call.

        Args:
            fleet: the fleet's layout.
            observations: TL -> observation, float32 [O]; other TLs get no action.
            version: number of the fleet's version; None: the newest.
            timeout_s: deadline of the call.

        Returns:
            TL -> action, float32 [A], or the index of a categorical policy, [1]; InvalidResponse if it is not finite.

        Raises:
            ServingError: the call failed.
            ContractError: an observation does not fit the fleet.
        """
        outputs = (ACTION,) if fleet.scores else ()  # a fleet without scores has no other output
        request = messages.predict_request(fleet.model, version, fleet.stack(observations), outputs)
        return fleet.split(self._call_predict(request, timeout_s).get(ACTION), observations)

    def predict_fleet_with_scores(
        self,
        fleet: Fleet,
        observations: Mapping[str, NDArray[np.float32]],
        version: int | None = None,
        timeout_s: float = 1.0,
    ) -> dict[str, ScoredAction | InvalidResponse]:
        """As `predict_fleet`, with the probabilities or q-values of each categorical TL's choices, float32 [n]."""
        request = messages.predict_request(fleet.model, version, fleet.stack(observations))
        outputs = self._call_predict(request, timeout_s)
        scores = fleet.split_scores(outputs.get(SCORES), observations)
        actions = fleet.split(outputs.get(ACTION), observations)
        return {
            tl: action if isinstance(action, InvalidResponse) else ScoredAction(action, scores[tl])
            for tl, action in actions.items()
        }

    def contract(self, model: str, version: Version = None, timeout_s: float = 5.0) -> policy_pb2.PolicyContract:
        """The policy contract of a model. Raises ServingError, or ContractError if it has none."""
        return messages.parse_contract(model, self._call_predict(messages.contract_request(model, version), timeout_s))

    def contracts(
        self, versions: Mapping[str, Version], timeout_s: float = 5.0
    ) -> dict[str, policy_pb2.PolicyContract | ServingError | ContractError]:
        """Request contracts of several models concurrently; return one by model, or its error.

        `timeout_s` is the deadline of all calls together.
        """
        requests = {model: messages.contract_request(model, version) for model, version in versions.items()}
        results: dict[str, policy_pb2.PolicyContract | ServingError | ContractError] = {}
        for model, result in self._call_many(requests, timeout_s).items():
            try:
                results[model] = (
                    result if isinstance(result, ServingError) else messages.parse_contract(model, result.outputs)
                )
            except ContractError as error:
                results[model] = error
        return results

    def signatures(self, model: str, version: Version = None, timeout_s: float = 5.0) -> pb.SignatureDefMap:
        """The signatures of a model. Raises ServingError."""
        metadata = self._call_metadata(model, version, timeout_s).metadata
        return pb.SignatureDefMap.FromString(metadata["signature_def"].value)

    def version_number(self, model: str, version: Version = None, timeout_s: float = 5.0) -> int:
        """The number of the version that a number, a label or None (the newest) selects. Raises ServingError."""
        return int(self._call_metadata(model, version, timeout_s).model_spec.version.value)

    def _call_metadata(self, model: str, version: Version, timeout_s: float) -> pb.GetModelMetadataResponse:
        request = pb.GetModelMetadataRequest(
            model_spec=messages.model_spec(model, version), metadata_field=["signature_def"]
        )
        response = _response(lambda: self._metadata(request, timeout=timeout_s), pb.GetModelMetadataResponse)
        if "signature_def" not in response.metadata:
            raise InvalidResponse(f"the metadata of {model} has no signatures")
        return response

    def status(self, model: str, timeout_s: float = 5.0) -> list[pb.ModelVersionStatus]:
        """States of a model's versions, newest first. Raises ServingError."""
        request = pb.GetModelStatusRequest(model_spec=messages.model_spec(model))
        response = _response(lambda: self._status(request, timeout=timeout_s), pb.GetModelStatusResponse)
        return list(response.model_version_status)

    def reload_config(self, config: config_pb.ModelServerConfig, timeout_s: float) -> bool:
        """Replace all models of the server by those of a configuration; return once new models are loaded.

        Returns False if the server takes no reload requests. Raises ServingError.
        """
        try:
            self._reload(config_pb.ReloadConfigRequest(config=config), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return False
            raise from_status(error.code().name, error.details() or "") from None
        return True

    def close(self) -> None:
        with self._connect_lock:
            self._is_closed = True
            self._channel.close()
            if self._previous_channel is not None:
                self._previous_channel.close()

    def _call_predict(self, request: pb.PredictRequest, timeout_s: float) -> Outputs:
        metadata = self._new_metadata() if self._new_metadata else None
        response = _response(lambda: self._predict(request, timeout=timeout_s, metadata=metadata), pb.PredictResponse)
        return messages.parse_prediction(response).outputs


def _response(call: Callable[[], Any], message: type[_Message]) -> _Message:
    """The response message of a call. Raises ServingError."""
    try:
        return message.FromString(call())
    except grpc.RpcError as error:
        raise from_status(error.code().name, error.details() or "") from None
    except DecodeError:  # parsed here, because gRPC would report INTERNAL
        raise InvalidResponse("the response cannot be parsed") from None
