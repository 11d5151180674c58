"""Wiring of the embedded server: services, health, REST, polling, start and drain.

The path of a call: rpc/grpc_method -> rpc/predict -> models/manager (which version)
-> tensorflow/session -> the response message.
"""

import functools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc import StatusCode
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

import protos
from city import names
from city.errors import InputError, first_line, path_errors_as_input_errors
from city.version import VERSION
from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2
from serving import signed_models, tf_record
from serving.client.channel import MAX_UNIX_PATH_BYTES
from serving.embedded.config import CertificateFile, ServerConfig, certificates, exposure_warnings, port_error
from serving.embedded.models import model_config
from serving.embedded.models.manager import ModelManager
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.servable import LoadError
from serving.embedded.rest.server import RestServer
from serving.embedded.rpc.grpc_method import GrpcMethod
from serving.embedded.rpc.handle_reload_config_request import common_folder, handle_reload_config_request, switched_off
from serving.embedded.rpc.model_rpcs import UNIMPLEMENTED_RPCS, get_model_metadata, get_model_status, unimplemented
from serving.embedded.rpc.predict import predict, run_request
from serving.embedded.status import StatusError
from serving.embedded.telemetry import ServerMetrics, event, log
from serving.embedded.tensorflow.library import library
from serving.embedded.tensorflow.session import Session

_PREDICTION_SERVICE, _MODEL_SERVICE = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
MAX_NAMED_MODELS = 5
MAX_REFLECTION_STREAMS = 4
"""Concurrent reflection streams. Each occupies a thread, so they have a pool of their own."""
_DESCRIPTORS = Path(protos.__file__).with_name("tensorflow_serving.binpb")
_WARM_UP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_WARM_UP_RECORDS = 1000
"""Maximum number of records in a file, as in tensorflow/serving."""
_OPTIONS: dict[str, int | str] = {
    "grpc.so_reuseport": 0,
    "grpc.max_send_message_length": -1,
    # a client that vanishes in the middle of a request must not hold a thread for long
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    # calls that have arrived and are not counted in max_queued_calls yet: gRPC cancels more than 1,000 by default
    "grpc.server.max_pending_requests": 1 << 15,
}


class Server:
    """An embedded server; `start` returns once the models are served and the ports are open."""

    def __init__(self, config: ServerConfig, stopping: threading.Event | None = None) -> None:
        """`stopping`: once it is set, no further model is loaded. Raises InputError if TensorFlow cannot be opened."""
        self._config = config
        self._stopping = stopping or threading.Event()
        self._polling = threading.Thread(target=self._poll, name="versions", daemon=True)
        self.metrics = ServerMetrics()
        try:
            self.metrics.build.info({"version": VERSION, "tensorflow": library().Version().decode()})
        except (ImportError, OSError, AttributeError) as error:
            raise InputError(f"TensorFlow's library cannot be opened: {error}") from None
        self.manager = ModelManager(self._load, self._stopping, config.loading, self.metrics)
        self.metrics.report_versions(self.manager.versions_by_state)
        self._config_lock = threading.Lock()
        """Held from reading the configuration until it is applied: a poll must not undo a reload that it waited for."""
        self._reload_lock = threading.Lock()
        self._configs: Mapping[str, ModelConfig] = config.models
        self._models_root = config.models_root or config.models_dir or common_folder(config.models)
        self._is_reconfigured = False
        """A reload has replaced the models of the command line."""
        self._health = health.HealthServicer()
        self._set_health(serving=False)
        # two threads: one for GetModelStatus while a reload, of which only one runs, occupies the other for minutes
        self._model_service_pool = futures.ThreadPoolExecutor(2, thread_name_prefix="model_service")
        limit = {"grpc.max_receive_message_length": config.max_message_bytes}
        options: dict[str, int | str] = {**_OPTIONS, **limit, **dict(config.channel_arguments)}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(config.threads, thread_name_prefix="rpc"),
            maximum_concurrent_rpcs=config.threads + config.max_queued_calls,
            options=list(options.items()),
        )
        self._add_services()
        self._rest: RestServer | None = None
        self.port = 0

    @property
    def rest_port(self) -> int:
        """Port of the REST API; 0 without one."""
        return self._rest.port if self._rest else 0

    def _load(self, name: str, path: Path) -> Session:
        signers = self._config.signers
        if signers is None:
            return self._load_folder(path)
        with tempfile.TemporaryDirectory(prefix="greenserve-model-") as copy:
            try:
                # load the copy: the files themselves could change between their verification and their load
                signed_models.verify(path, name, int(path.name), signers, Path(copy))
                return self._load_folder(Path(copy))
            except (InputError, LoadError) as error:
                raise LoadError(str(error).replace(copy, str(path))) from None

    def _load_folder(self, path: Path) -> Session:
        session = Session(path, self._config.allow_any_operation)
        if self._config.warm_up:
            _warm_up(path / _WARM_UP_FILE, session)
        return session

    def _add_services(self) -> None:
        manager, partial = self.manager, functools.partial
        reload: Any = partial(handle_reload_config_request, self.reconfigure, self._models_root, self.metrics)
        reload = reload if self._config.reload_rpc else switched_off
        # service -> its RPCs: (name, function, request)
        rpcs: dict[str, list[tuple[str, Any, Any]]] = {
            _PREDICTION_SERVICE: [
                ("Predict", partial(predict, manager, self.metrics), wire.PredictRequest),
                ("GetModelMetadata", partial(get_model_metadata, manager), wire.GetModelMetadataRequest),
                *((name, partial(unimplemented, name), message) for name, message in UNIMPLEMENTED_RPCS.items()),
            ],
            _MODEL_SERVICE: [
                ("GetModelStatus", partial(get_model_status, manager), wire.GetModelStatusRequest),
                ("HandleReloadConfigRequest", reload, config_pb.ReloadConfigRequest),
            ],
        }
        for service, methods in rpcs.items():
            pool = self._model_service_pool if service == _MODEL_SERVICE else None
            handlers = {}
            for name, function, request_type in methods:
                # TensorFlow Serving counts these RPCs only
                metrics = self.metrics if name in ("Predict", "Classify", "Regress") else None
                method = GrpcMethod(name, function, request_type, metrics, manager.is_known, pool)
                handlers[name] = grpc.unary_unary_rpc_method_handler(method)
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        services: tuple[str, ...] = (_PREDICTION_SERVICE, _MODEL_SERVICE)
        if self._config.health:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            services = (*services, health.SERVICE_NAME)
        _add_reflection(self._server, services)

    def start(self) -> None:
        """Load the models, then listen, as TensorFlow Serving does. Raises InputError if an address is unusable."""
        config = self._config
        # refuse unusable addresses before loading, which can take minutes
        _check_port_free(config.host, config.port, "--port")
        if config.rest:
            _check_port_free(config.host, config.rest.port, "--rest_api_port")
        if config.socket_path is not None:
            _check_socket_path(config.socket_path)
        try:
            count = self.poll_once()
        except OSError as error:
            raise InputError(f"{config.models_dir}: cannot be read: {error.strerror}") from None
        if self._stopping.is_set():
            return
        self._listen()
        if rest := config.rest:
            self._rest = RestServer(self.manager, self.metrics, config.host, rest)
            self._rest.start()
        self._set_health(serving=True)
        self._server.start()
        source = config.models_dir or config.model_config_file or next(iter(self._configs.values())).base_path
        self._warn_of_missing_models(count, source)
        for line in exposure_warnings(config, self._models_root, self.rest_port):
            log.warning("%s", line)
        event("serving", models=count, source=source, grpc=f"{config.host}:{self.port}", rest=self.rest_port or "none")
        if config.poll_s > 0 or config.config_poll_s > 0:
            self._polling.start()

    def _warn_of_missing_models(self, count: int, source: Path) -> None:
        """Log why configured models are not served. `count`: served models; `source`: file or folder that lists all."""
        configs = self._configs.values()
        missing = [f"{config.name} ({config.base_path})" for config in configs if not config.base_path.is_dir()]
        if missing:
            log.warning(
                "%s: the folders of %d of %d models are missing: %s; export the models, or correct base_path "
                "(greenserve serve config writes it for a container: outside of one, pass --mounted-at "
                "FOLDER_OF_THE_MODELS)",
                source, len(missing), len(configs), names.listed(missing, MAX_NAMED_MODELS),
            )  # fmt: skip
        elif not count and self.manager.versions_by_state()["END"]:
            log.warning("%s: no model could be loaded; the lines load_failed give the reasons", source)
        elif not count:
            log.warning("%s has no models yet; export some (greenserve export --tl all)", source)

    def _listen(self) -> None:
        config, ssl = self._config, self._config.ssl

        def bind(address: str, error: str) -> int:
            try:
                if ssl is None:
                    return int(self._server.add_insecure_port(address))
                # gRPC calls `newest` at every handshake, so certificates are replaced without a restart
                credentials = grpc.dynamic_ssl_server_credentials(
                    certificates(ssl), CertificateFile(config.ssl_file).newest, ssl.client_verify
                )
                return int(self._server.add_secure_port(address, credentials))
            except RuntimeError:
                if ssl is not None and config.ssl_file is not None:
                    # the address was free before the models were loaded
                    raise InputError(
                        f"{config.ssl_file}: gRPC cannot use its key or certificates; write all as PEM, the key "
                        f"without a passphrase (if they are valid: {error})"
                    ) from None
                raise InputError(error) from None

        self.port = bind(f"{config.host}:{config.port}", port_error(config.host, config.port, "--port"))
        if config.socket_path is not None:
            bind(f"unix:{config.socket_path}", _socket_error(config.socket_path, "it cannot be bound"))

    def stop(self) -> None:
        """Drain: health first, then no new calls, then calls in flight end within drain_s."""
        event("draining", drain_s=self._config.drain_s)
        # Report NOT_SERVING, so that load balancers stop sending
        self._set_health(serving=False)
        # Load no further model
        self._stopping.set()
        # Refuse new calls and requests, and wait for those in flight
        stopped = self._server.stop(self._config.drain_s)
        if self._rest:
            self._rest.stop()
        stopped.wait()
        # Wait for the poll in progress
        if self._polling.is_alive():
            self._polling.join()
        self._model_service_pool.shutdown(wait=False)
        self.manager.close()

    def poll_once(self) -> int:
        """Serve the versions on disk; return the number of models served. Raises OSError if models_dir cannot be
        read."""
        if self._config.poll_s < 0:
            return 0  # the file system is never polled, as in tensorflow_model_server
        with self._config_lock:
            configs = self._configs
            if self._config.models_dir is not None and not self._is_reconfigured:
                configs = model_config.from_folder(self._config.models_dir)
            return self.manager.apply(configs, time.monotonic())

    def reconfigure(self, configs: Mapping[str, ModelConfig]) -> None:
        """Replace the whole configuration, or leave it unchanged. Raises StatusError; ABORTED during another reload."""
        if not self._reload_lock.acquire(blocking=False):
            raise StatusError(StatusCode.ABORTED, "another reload is in progress; try again when it has ended")
        try:
            with self._config_lock:
                self.manager.reconfigure(configs, time.monotonic())
                self._configs, self._is_reconfigured = configs, True
        finally:
            self._reload_lock.release()

    def _poll(self) -> None:
        """Poll for new versions and read the config file again, each at its own interval."""
        config = self._config
        wait_s = min(interval_s for interval_s in (config.poll_s, config.config_poll_s) if interval_s > 0)
        last_read_s = time.monotonic()
        logged = ""
        while not self._stopping.wait(wait_s):
            try:
                if 0 < config.config_poll_s <= time.monotonic() - last_read_s and config.model_config_file is not None:
                    last_read_s = time.monotonic()
                    self.read_config(config.model_config_file)
                if config.poll_s > 0:
                    self.poll_once()
                logged = ""
            except OSError as error:  # such as no free file: once, not at every poll
                if str(error) != logged:
                    logged = str(error)
                    log.error("polling for new versions failed: %s; loaded versions stay available", error)
            except Exception:
                log.exception("polling for new versions failed; loaded versions stay available")

    def read_config(self, path: Path) -> None:
        """Apply a changed model config file; an invalid one is logged and changes nothing."""
        try:
            configs = model_config.from_file(path)
            if configs != self._configs:
                self.reconfigure(configs)
                event("reconfigured", models=len(configs), source=path)
        except (InputError, StatusError) as error:
            log.error("%s; the configuration is unchanged", error)

    def _set_health(self, serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        # TensorFlow Serving reports the health of its services under their short names
        for service in ("", _PREDICTION_SERVICE, _MODEL_SERVICE, "PredictionService", "ModelService"):
            self._health.set(service, response.SERVING if serving else response.NOT_SERVING)


def _add_reflection(server: Any, services: tuple[str, ...]) -> None:
    """Add server reflection of these services, with TensorFlow Serving's own descriptors, for grpcurl and others."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    servicer: Any = reflection.ReflectionServicer((*services, reflection.SERVICE_NAME), pool=pool)
    servicer.ServerReflectionInfo = functools.partial(servicer.ServerReflectionInfo)
    # grpc reads this attribute, which a bound method could not have
    servicer.ServerReflectionInfo.experimental_thread_pool = futures.ThreadPoolExecutor(
        MAX_REFLECTION_STREAMS, "reflection"
    )
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


def _warm_up(file: Path, session: Session) -> None:
    """Run a version's warm-up records of Predict, skip those of other RPCs. Raises LoadError if one fails.

    As in tensorflow/serving's saved_model_warmup_util.cc: the first run of a signature takes 7 to 22 ms.
    """
    if not file.is_file():
        return
    try:
        for number, data in enumerate(tf_record.read(file.read_bytes())):
            if number >= MAX_WARM_UP_RECORDS:
                raise LoadError(f"{file}: more than {MAX_WARM_UP_RECORDS} warm-up records; remove some")
            record = prediction_log_pb2.PredictionLog.FromString(data)
            if record.HasField("predict_log"):
                run_request(session, record.predict_log.request)
    except (DecodeError, StatusError, OSError, ValueError) as error:
        raise LoadError(f"a warm-up record failed: {first_line(error)}") from error


def _check_port_free(host: str, port: int, flag: str) -> None:
    try:
        info = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(info[0], info[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(info[4])
    except OSError:
        raise InputError(port_error(host, port, flag)) from None


@path_errors_as_input_errors()
def _check_socket_path(path: Path) -> None:
    """Raise InputError if no Unix socket can be bound at a path."""
    folder = path.absolute().parent
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise InputError(_socket_error(path, f"it is longer than {MAX_UNIX_PATH_BYTES} bytes"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(_socket_error(path, f"{folder} is not a writable folder"))
    if path.exists() and not path.is_socket():
        raise InputError(_socket_error(path, "it exists and is not a socket"))
    # gRPC unlinks an existing socket even if a running server uses it
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise InputError(_socket_error(path, f"it cannot be replaced ({error.strerror})")) from None
    raise InputError(_socket_error(path, "it is in use"))


def _socket_error(path: Path, reason: str) -> str:
    return f"cannot listen on unix:{path}: {reason}; choose another --grpc_socket_path"
