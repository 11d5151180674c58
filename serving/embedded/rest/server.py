"""The REST API and the Prometheus metrics: tensorflow/serving's paths, JSON and HTTP statuses, over waitress.

POST /v1/models/SA101[/versions/3|/labels/stable]:predict|classify|regress
GET  /v1/models/SA101[/versions/3|/labels/stable][/metadata]
"""

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import waitress
from waitress import wasyncore

from city.errors import InputError
from protos import predict_pb2 as wire
from serving.embedded.models.manager import ModelManager
from serving.embedded.rest import json_request, json_response
from serving.embedded.rpc.get_model_metadata import get_model_metadata
from serving.embedded.rpc.predict import DEFAULT_SIGNATURE, run_predict
from serving.embedded.rpc.unimplemented import not_implemented
from serving.embedded.status import HTTP_STATUS, StatusError, deadline_exceeded, invalid_argument
from serving.embedded.telemetry.logs import log
from serving.embedded.telemetry.metrics import ServerMetrics

_MODEL = r"(?i:/v1/models)/(?P<model>[^/:]+)(?:/(?i:versions)/(?P<version>\d+)|/(?i:labels)/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(_MODEL + r":(?P<method>(?i:classify|regress|predict))")
_STATUS = re.compile(_MODEL + r"(?P<metadata>/(?i:metadata))?")
MAX_BODY_BYTES = 1 << 30
STOP_TIMEOUT_S = 5.0
"""Wall time that open connections have to take their responses."""


class RestServer:
    """An HTTP server with its own threads."""

    def __init__(
        self,
        manager: ModelManager,
        metrics: ServerMetrics,
        host: str,
        port: int,
        threads: int,
        timeout_s: float,
        metrics_path: str | None,
    ) -> None:
        """Listen; `start` begins to answer.

        Args:
            manager: the models.
            metrics: counts requests; served at `metrics_path`.
            host: address to listen on.
            port: 0: the system chooses.
            threads: concurrent requests.
            timeout_s: requests that take longer are answered 504.
            metrics_path: path of the Prometheus metrics; None: no metrics.

        Raises:
            InputError: the address is unusable.
        """
        self._manager, self._metrics = manager, metrics
        self._timeout_s, self._metrics_path = timeout_s, metrics_path
        try:
            self._server = waitress.create_server(
                self.answer, host=host, port=port, threads=threads, ident=None, max_request_body_size=MAX_BODY_BYTES,
                clear_untrusted_proxy_headers=True,
            )  # fmt: skip
        except OSError:
            raise InputError(f"cannot listen on {host}:{port}: it is in use; choose another --rest_api_port") from None
        self.port = int(self._server.effective_port)
        self._thread = threading.Thread(target=self._server.run, name="rest", daemon=True)
        self._trigger_lock = threading.Lock()
        """Held while the trigger is pulled for the last time: its file must not be closed before it was written."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Refuse new connections, finish requests in progress, and close."""
        trigger = self._server.trigger
        # in the event loop's thread: select() must not wait on a socket that another thread closes
        trigger.pull_trigger(lambda: wasyncore.dispatcher.close(self._server))
        self._server.task_dispatcher.shutdown()
        with self._trigger_lock:
            trigger.pull_trigger(self._end_when_sent)
        self._thread.join(STOP_TIMEOUT_S)

    def _end_when_sent(self) -> None:
        """Close every connection after its response; the event loop ends with the last."""
        for connection in list(self._server.active_channels.values()):
            connection.close_when_flushed = True
        with self._trigger_lock:
            self._server.trigger.close()

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one HTTP request (a WSGI application)."""
        # WSGI decodes the path's bytes as Latin-1
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        content_type = "application/json"
        status = grpc.StatusCode.OK
        try:
            if self._metrics_path is not None and path == self._metrics_path:
                content_type, body = "text/plain", self._metrics.text()
            elif not path.lower().startswith("/v1/"):
                start_response("404 Not Found", [("Content-Length", "0")])
                return [b""]
            else:
                body = self._api(environ["REQUEST_METHOD"], path, environ).encode()
        except StatusError as error:
            status, body = error.code, json_response.from_error(str(error)).encode()
        except Exception as error:
            log.exception("%s %s failed", environ["REQUEST_METHOD"], path)
            status, body = grpc.StatusCode.INTERNAL, json_response.from_error(f"{type(error).__name__}: {error}").encode()
        start_response(HTTP_STATUS[status], [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    def _api(self, http_method: str, path: str, environ: dict[str, Any]) -> str:
        if http_method == "POST" and (match := _INFERENCE.fullmatch(path)):
            if match["method"].lower() != "predict":
                raise not_implemented(match["method"].capitalize())
            return self._predict(_spec(match), environ)
        if http_method == "GET" and (match := _STATUS.fullmatch(path)):
            spec = _spec(match)
            if not match["metadata"]:
                return json_response.from_status(self._manager.states(spec))
            request = wire.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
            version = get_model_metadata(self._manager, request).version
            return json_response.from_metadata(spec.name, version, self._manager.find(spec)[1].definitions)
        if http_method == "GET" and re.fullmatch(r"(?i)/v1/models/?", path):
            raise invalid_argument("Missing model name in request.")
        raise invalid_argument(f"Malformed request: {http_method} {path}")

    def _predict(self, spec: wire.ModelSpec, environ: dict[str, Any]) -> str:
        begin = time.perf_counter()
        version, status = 0, grpc.StatusCode.OK
        try:
            document = json_request.parse(environ["wsgi.input"].read())
            spec.signature_name = json_request.signature_name(document)
            request = wire.PredictRequest(model_spec=spec)
            layout = json_request.fill_predict_request(document, self._inputs(spec), request)
            outputs = run_predict(self._manager, request)
            version = outputs.version
            text = json_response.from_tensors(outputs.arrays, outputs.dtypes, layout)
            if time.perf_counter() - begin > self._timeout_s:
                raise deadline_exceeded(f"the request took longer than --rest_api_timeout_in_ms {1000 * self._timeout_s:.0f}")
            return text
        except StatusError as error:
            status = error.code
            raise
        finally:
            model = spec.name if self._manager.is_known(spec.name) else ""
            self._metrics.count_request(model, version, "Predict", "REST", status.name, time.perf_counter() - begin)

    def _inputs(self, spec: wire.ModelSpec) -> dict[str, int]:
        name = spec.signature_name or DEFAULT_SIGNATURE
        signature = self._manager.find(spec)[1].signatures.get(name)
        if signature is None:
            raise invalid_argument(f'Serving signature name: "{name}" not found in signature def')
        if not signature.inputs:
            raise invalid_argument(f"Failed to get input map for signature: {spec.signature_name or 'DEFAULT'}")
        return dict(signature.inputs)


def _spec(match: re.Match[str]) -> wire.ModelSpec:
    spec = wire.ModelSpec(name=match["model"])
    if match["version"]:
        if int(match["version"]) >= 1 << 63:
            raise invalid_argument(f"Failed to convert version: {match['version']} to numeric.")
        spec.version.value = int(match["version"])
    elif match["label"]:
        spec.version_label = match["label"]
    return spec
