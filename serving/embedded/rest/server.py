"""The REST API and the Prometheus metrics: tensorflow/serving's paths, JSON and HTTP statuses, over aiohttp.

POST /v1/models/SA101[/versions/3|/labels/stable]:predict|classify|regress
GET  /v1/models/SA101[/versions/3|/labels/stable][/metadata]
"""

import asyncio
import functools
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import grpc
from aiohttp import web

from city.errors import InputError
from protos import predict_pb2 as wire
from serving.embedded.models.manager import ModelManager
from serving.embedded.rest import json_document, json_request, json_response
from serving.embedded.rpc.get_model_metadata import get_model_metadata
from serving.embedded.rpc.get_model_status import get_model_status
from serving.embedded.rpc.predict import DEFAULT_SIGNATURE, run
from serving.embedded.rpc.unimplemented import not_implemented
from serving.embedded.status import HTTP_STATUS, StatusError, invalid_argument
from serving.embedded.telemetry.logs import log
from serving.embedded.telemetry.metrics import ServerMetrics

_VERSION = r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(rf"/v1/models/(?P<model>[^/:]+){_VERSION}:(?P<api>classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(rf"/v1/models(?:/(?P<model>[^/:]+))?{_VERSION}(?:/(?P<metadata>metadata))?", re.IGNORECASE)
_Result = TypeVar("_Result")
MAX_BODY_BYTES = 1 << 30
"""Of a request, and of one in gzip when it is unpacked."""
BACKLOG = 4096
"""Connections that may wait to be accepted; Linux bounds it by net.core.somaxconn."""
STOP_TIMEOUT_S = 5.0
"""Wall time that requests in progress have at the end."""


class _Route(NamedTuple):
    """What a request asks for."""

    spec: wire.ModelSpec = wire.ModelSpec()
    """The model; empty if the request names none."""
    api: str = ""
    """predict, classify, regress; empty: status or metadata."""
    is_metadata: bool = False


class RestServer:
    """An HTTP server with its own threads: one for all connections, and others that answer requests."""

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
        """Prepare; `start` listens.

        Args:
            manager: the models.
            metrics: counts requests; served at `metrics_path`.
            host: address to listen on.
            port: 0: the system chooses.
            threads: concurrent requests.
            timeout_s: requests that take longer are answered 504.
            metrics_path: path of the Prometheus metrics; None: no metrics.
        """
        self._manager, self._metrics = manager, metrics
        self._host, self.port = host, port
        self._timeout_s, self._metrics_path = timeout_s, metrics_path
        self._pool = ThreadPoolExecutor(threads, "rest")
        self._loop = asyncio.new_event_loop()
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_TIMEOUT_S)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)

    def start(self) -> None:
        """Listen and answer. Raises InputError if the address is unusable."""
        self._loop.run_until_complete(self._listen())
        self._thread.start()

    async def _listen(self) -> None:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host.strip("[]"), self.port, backlog=BACKLOG).start()
        except OSError:
            raise InputError(f"cannot listen on {self._host}:{self.port}: it is in use; choose another --rest_api_port") from None
        self.port = self._runner.addresses[0][1]

    def stop(self) -> None:
        """Refuse new connections, finish requests in progress, and close."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False)

    async def _respond(self, request: web.Request) -> web.Response:
        """Answer one HTTP request."""
        path = request.raw_path
        if path == self._metrics_path:
            return web.Response(body=await self._in_pool(self._metrics.text), content_type="text/plain")
        if not path.lower().startswith("/v1/"):
            return web.Response(status=404)
        if request.method == "OPTIONS":
            # a browser asks whether it may send a request from another site
            return web.Response(status=200 if re.search("https?://", request.headers.get("Origin", "")) else 400)
        begin = time.perf_counter()
        route, status, text = _Route(), grpc.StatusCode.OK, ""
        try:
            route = _route(request.method, path)
            text = await asyncio.wait_for(self._in_pool(self._answer, route, await request.read()), self._timeout_s)
        except StatusError as error:
            status, text = error.code, json_response.from_error(str(error))
        except TimeoutError:
            status = grpc.StatusCode.DEADLINE_EXCEEDED
            text = json_response.from_error(f"the request took longer than --rest_api_timeout_in_ms {1000 * self._timeout_s:.0f}")
        except (web.HTTPRequestEntityTooLarge, web.RequestPayloadError) as error:
            status = grpc.StatusCode.INVALID_ARGUMENT
            text = json_response.from_error(f"the body is larger than {MAX_BODY_BYTES} bytes, or cannot be unpacked: {error}")
        except Exception as error:
            log.exception("%s %s failed", request.method, path)
            status, text = grpc.StatusCode.INTERNAL, json_response.from_error(f"{type(error).__name__}: {error}")
        model = route.spec.name if self._manager.is_known(route.spec.name) else ""
        self._metrics.count_request(model, status.name)
        if status is grpc.StatusCode.OK:
            self._metrics.count_latency(model, route.api, "REST", time.perf_counter() - begin)
        return web.Response(text=text, status=HTTP_STATUS[status], content_type="application/json")

    def _in_pool(self, function: Callable[..., _Result], *arguments: Any) -> asyncio.Future[_Result]:
        return self._loop.run_in_executor(self._pool, function, *arguments)

    def _answer(self, route: _Route, body: bytes) -> str:
        """The JSON that answers a request. Raises StatusError."""
        if route.api:
            return self._predict(route.spec, body)
        if not route.spec.name:
            raise invalid_argument("Missing model name in request.")
        if route.is_metadata:
            metadata = wire.GetModelMetadataRequest(model_spec=route.spec, metadata_field=["signature_def"])
            return json_response.from_metadata(get_model_metadata(self._manager, metadata))
        status = wire.GetModelStatusRequest(model_spec=route.spec)
        return json_response.from_status(get_model_status(self._manager, status))

    def _predict(self, spec: wire.ModelSpec, body: bytes) -> str:
        document = json_document.parse(body)
        name = json_request.signature_name(document) or DEFAULT_SIGNATURE
        _, servable = self._manager.find(spec)
        signature = servable.signatures.get(name)
        if signature is None:
            raise invalid_argument(f'Serving signature name: "{name}" not found in signature def')
        if not signature.inputs:
            raise invalid_argument(f"Failed to get input map for signature: {document.get('signature_name') or 'DEFAULT'}")
        arrays, layout = json_request.input_arrays(document, signature.inputs)
        outputs = list(signature.outputs)
        values = run(servable, name, arrays, outputs, functools.partial(self._metrics.count_run, spec.name))
        return json_response.from_tensors(dict(zip(outputs, values, strict=True)), signature.outputs, layout)


def _route(http_method: str, path: str) -> _Route:
    """What a request asks for. Raises StatusError."""
    # aiohttp keeps bytes that are no UTF-8 as surrogates, which a message does not take
    path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    pattern = {"POST": _INFERENCE, "GET": _STATUS}.get(http_method)
    match = pattern.fullmatch(path) if pattern else None
    api = match["api"] if match and http_method == "POST" else ""
    # tensorflow/serving matches a path in any case, but then compares the API's name
    if match is None or api not in ("", "predict", "classify", "regress"):
        raise invalid_argument(f"Malformed request: {http_method} {path}")
    if api in ("classify", "regress"):
        raise not_implemented(api.capitalize())
    spec = wire.ModelSpec(name=unquote(match["model"] or ""))
    if version := match["version"]:
        if len(version) > 19 or int(version) >= 1 << 63:
            raise invalid_argument(f"Failed to convert version: {version} to numeric.")
        spec.version.value = int(version)
    elif match["label"]:
        spec.version_label = unquote(match["label"])
    return _Route(spec, api, http_method == "GET" and match["metadata"] == "metadata")
