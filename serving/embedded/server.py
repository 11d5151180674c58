"""Wiring of the embedded server: services, health, REST, polling, start and drain.

The way of a call: grpc_method -> repeated_predict or <rpc>_impl -> model_manager (which version) ->
session (TensorFlow) -> the answer's bytes.
"""

import functools
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from city.errors import InputError
from protos import inference_pb2 as inference_pb
from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as wire
from serving.embedded import VERSION, model_config, reflection
from serving.embedded.batching import BatchingSession, BatchScheduler
from serving.embedded.call_threads import CallThreads
from serving.embedded.config import ServerConfig
from serving.embedded.get_model_metadata_impl import get_model_metadata
from serving.embedded.get_model_status_impl import get_model_status
from serving.embedded.grpc_method import Method, handler, parsed
from serving.embedded.handle_reload_config_request_impl import handle_reload_config_request
from serving.embedded.inference_impl import classify, multi_inference, regress
from serving.embedded.logs import event, log
from serving.embedded.metrics import Metrics
from serving.embedded.model_config import ModelConfig
from serving.embedded.model_manager import ModelManager
from serving.embedded.repeated_predict import RepeatedPredict
from serving.embedded.rest import Rest
from serving.embedded.status import Answer, StatusError, not_found
from serving.embedded.unix_socket import InUse, UnixSocket

_PREDICTION, _MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
_INFERENCE: dict[str, tuple[Any, Any]] = {
    "Classify": (classify, inference_pb.ClassificationRequest),
    "Regress": (regress, inference_pb.RegressionRequest),
    "MultiInference": (multi_inference, inference_pb.MultiInferenceRequest),
    "GetModelMetadata": (get_model_metadata, wire.GetModelMetadataRequest),
}
_OPTIONS: dict[str, int | str] = {
    "grpc.so_reuseport": 0,
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    # a peer that has vanished in the middle of a request must not hold a thread for long
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
}


class Server:
    """An embedded server; `start` returns once the models are served."""

    def __init__(self, config: ServerConfig, stopping: threading.Event | None = None) -> None:
        """`stopping`: once it is set, no further model is loaded."""
        from serving.embedded.session import LoadError
        from serving.embedded.tensorflow_library import library

        self._config = config
        self._stopping = stopping or threading.Event()
        self._polling = threading.Thread(target=self._poll, name="versions", daemon=True)
        self.metrics = Metrics()
        try:
            self.metrics.build = {"version": VERSION, "tensorflow": library().Version().decode()}
        except (ImportError, OSError, AttributeError) as error:
            raise InputError(f"TensorFlow's library cannot be opened: {error}") from None
        self._scheduler = BatchScheduler(config.batching) if config.batching else None
        self.manager = ModelManager(self._load, LoadError, self._stopping, config.loading, self.metrics)
        self.metrics.states = self.manager.versions_by_state
        self._configuring = threading.Lock()
        """Held from reading the configuration until it is followed: a look must not undo a reload it waited for."""
        self._configs = config.models
        self._reconfigured = False
        """Whether a reload has replaced what the flags said."""
        self._health = health.HealthServicer()
        self._health_of: dict[str, int] = {}
        self._set_health(serving=False)
        self._control = futures.ThreadPoolExecutor(2, thread_name_prefix="control")
        self._calls = CallThreads(config.threads)
        most_calls = config.threads + config.max_queued_calls
        self._server = grpc.server(
            self._calls,
            maximum_concurrent_rpcs=most_calls,
            options=list({**_OPTIONS, **dict(config.channel_arguments)}.items()),
        )
        self._unix = UnixSocket(config.socket_path, most_calls) if config.socket_path is not None else None
        self._add_services()
        self._rest = None
        if rest := config.rest:
            self._rest = Rest(
                self.manager, self.metrics, config.host, rest.port, rest.threads, rest.timeout_s, rest.metrics_path
            )  # fmt: skip
        self.port = 0

    @property
    def rest_port(self) -> int:
        """0 where there is no REST API."""
        return self._rest.port if self._rest else 0

    @property
    def unix_path(self) -> Path | None:
        """The Unix socket that is listened on too."""
        return self._config.socket_path

    def _load(self, path: Path) -> Any:
        """A version, ready and warm. Raises LoadError."""
        from serving.embedded.session import Session
        from serving.embedded.warmup import warm_up

        session = Session(path)
        if self._config.warm_up:
            warm_up(path, session)
        return BatchingSession(session, self._scheduler) if self._scheduler else session

    def _add_services(self) -> None:
        def method(name: str, function: Any, **more: Any) -> Method:
            return Method(name, function, self.metrics, self.manager.is_known, **more)

        inference = {
            name: method(name, parsed(functools.partial(function, self.manager), request))
            for name, (function, request) in _INFERENCE.items()
        }
        predict = RepeatedPredict(self.manager)
        inference["Predict"] = method("Predict", predict, pace=predict.pace)
        models = {
            name: method(name, parsed(function, request))
            for name, function, request in (
                ("GetModelStatus", functools.partial(get_model_status, self.manager), wire.GetModelStatusRequest),
                (
                    "HandleReloadConfigRequest",
                    functools.partial(handle_reload_config_request, self.reconfigure),
                    config_pb.ReloadConfigRequest,
                ),
            )
        }
        # a reload may take minutes, and a look at a state must not wait behind predictions
        for service, methods, pool in ((_PREDICTION, inference, None), (_MODEL, models, self._control)):
            handlers = {name: handler(found, pool) for name, found in methods.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
            if self._unix is not None:
                self._unix.add(service, methods, pool or self._calls)
        if self._unix is not None and self._config.health:
            check = method("Check", parsed(self._check_health, health_pb2.HealthCheckRequest))
            self._unix.add(health.SERVICE_NAME, {"Check": check}, self._control)
        services = (_PREDICTION, _MODEL)
        if self._config.health:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            services = (*services, health.SERVICE_NAME)
        reflection.add_to(self._server, services)

    def start(self) -> None:
        """Listen and load. Raises InputError where the address cannot be had."""
        address = f"{self._config.host}:{self._config.port}"
        self.port = self._listen(address)
        if self.port == 0:
            raise InputError(f"cannot listen on {address}: it is in use or not of this machine; choose another --port")
        if self._unix is not None:
            try:
                self._unix.start()
            except InUse as error:
                raise InputError(f"cannot listen on {self._unix.path}: {error}; choose another --grpc_socket_path") from None
        self._server.start()
        if self._rest:
            self._rest.start()
        try:
            count = self.look()
        except OSError as error:
            raise InputError(f"{self._config.models_dir}: cannot be read: {error.strerror}") from None
        self._set_health(serving=True)
        where = self._config.models_dir or self._config.model_config_file or next(iter(self._configs.values())).base_path
        if not count:
            log.warning("%s holds no model yet; export some (python -m export --tl all)", where)
        event("serving", models=count, of=where, grpc=f"{self._config.host}:{self.port}", rest=self.rest_port or "none")
        if self._config.poll_s > 0 or self._config.config_poll_s > 0:
            self._polling.start()

    def _listen(self, address: str) -> int:
        """The port that is listened on; 0 where there is none to be had."""
        ssl = self._config.ssl
        try:
            if ssl is None:
                return self._server.add_insecure_port(address)
            credentials = grpc.ssl_server_credentials(
                [(ssl.server_key, ssl.server_cert)], ssl.custom_ca or None, require_client_auth=ssl.client_verify
            )
            return self._server.add_secure_port(address, credentials)
        except RuntimeError:
            return 0

    def stop(self) -> None:
        """Drain: NOT_SERVING first, no new calls, those under way for drain_s at most."""
        event("draining", at_most_s=self._config.drain_s)
        self._set_health(serving=False)
        self._stopping.set()
        ended = self._server.stop(self._config.drain_s)
        if self._unix is not None:
            self._unix.stop(self._config.drain_s)
        ended.wait()
        if self._rest:
            self._rest.stop()
        if self._scheduler:
            self._scheduler.stop()
        if self._polling.is_alive():
            self._polling.join()
        self._calls.shutdown()
        self._control.shutdown(wait=False)
        self.manager.close()

    def look(self) -> int:
        """Serve what there is now; the number of models. Raises OSError where the models' folder cannot be read."""
        if self._config.poll_s < 0:
            return 0  # as tensorflow_model_server: the file system is not looked at
        with self._configuring:
            configs = self._configs
            if self._config.models_dir is not None and not self._reconfigured:
                configs = model_config.of_folder(self._config.models_dir)
            return self.manager.follow(configs, time.monotonic())

    def reconfigure(self, configs: Mapping[str, ModelConfig]) -> None:
        """Replace all models, or none. Raises StatusError."""
        with self._configuring:
            self.manager.reconfigure(configs, time.monotonic())
            self._configs, self._reconfigured = configs, True

    def _poll(self) -> None:
        """Look for new versions, and read the config file again, each in its own time."""
        periods = [period for period in (self._config.poll_s, self._config.config_poll_s) if period > 0]
        read_s = time.monotonic()
        while not self._stopping.wait(min(periods)):
            try:
                if 0 < self._config.config_poll_s <= time.monotonic() - read_s and self._config.model_config_file is not None:
                    read_s = time.monotonic()
                    self.read_config(self._config.model_config_file)
                if self._config.poll_s > 0:
                    self.look()
            except Exception:
                log.exception("looking for new versions failed; what is loaded keeps answering")

    def read_config(self, path: Path) -> None:
        try:
            configs = model_config.of_file(path)
            if configs != self._configs:
                self.reconfigure(configs)
                event("reconfigured", models=len(configs), of=path)
        except (InputError, StatusError) as error:
            log.error("%s; the configuration stays as it was", error)

    def _set_health(self, serving: bool) -> None:
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", _PREDICTION, _MODEL):
            self._health_of[service] = state
            self._health.set(service, state)

    def _check_health(self, request: health_pb2.HealthCheckRequest) -> Answer:
        """As grpc_health's servicer, which is bound to gRPC's server. Raises StatusError."""
        if request.service not in self._health_of:
            raise not_found(f"service {request.service} is not known")
        return Answer(0, health_pb2.HealthCheckResponse(status=self._health_of[request.service]))
