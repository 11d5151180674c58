"""The REST API and the Prometheus metrics: tensorflow/serving's paths, JSON and HTTP statuses, over aiohttp.

POST /v1/models/SA101[/versions/3|/labels/stable]:predict|classify|regress
GET  /v1/models/SA101[/versions/3|/labels/stable][/metadata]
"""

import asyncio
import functools
import logging
import re
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web
from grpc import StatusCode

from city.errors import InputError
from protos import predict_pb2 as wire
from serving.contract import DEFAULT_SIGNATURE
from serving.embedded.config import RestConfig, port_error
from serving.embedded.models.manager import ModelManager
from serving.embedded.rest import json_request, json_response
from serving.embedded.rest.listener import RestListener
from serving.embedded.rest.request_body import Body, Budget
from serving.embedded.rpc.model_rpcs import get_model_metadata, get_model_status, unimplemented
from serving.embedded.rpc.predict import run
from serving.embedded.status import HTTP_STATUS, StatusError
from serving.embedded.telemetry import ServerMetrics, log

_VERSION = r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(rf"/v1/models/(?P<model>[^/:]+){_VERSION}:(?P<api>classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(rf"/v1/models(?:/(?P<model>[^/:]+))?{_VERSION}(?:/(?P<metadata>metadata))?", re.IGNORECASE)
IDLE_TIMEOUT_S = 75.0
"""Wall time after a response at which an idle connection is closed; load balancers close theirs after 60 s."""
STOP_TIMEOUT_S = 2.5
"""Wall time at the end for requests in progress to finish, and again for cancelled ones."""
QUIET_LOG = logging.getLogger("serving.http")
"""aiohttp's log, which would have a traceback for each malformed request of a client."""
QUIET_LOG.setLevel(logging.CRITICAL)


class _Route(NamedTuple):
    """The parts of a request's path."""

    spec: wire.ModelSpec
    """Its name is empty if the path names no model."""
    api: str = ""
    """predict, classify or regress; empty for status and metadata."""
    is_metadata: bool = False


class RestServer:
    """An HTTP server with its own threads: one for all connections, and a pool that answers requests."""

    def __init__(self, manager: ModelManager, metrics: ServerMetrics, host: str, config: RestConfig) -> None:
        """Prepare; `start` listens.

        Args:
            manager: the models.
            metrics: counts requests, and is served at the config's path.
            host: address to listen on.
            config: port, threads and limits.
        """
        self._manager, self._metrics = manager, metrics
        self._host, self._config = host, config
        self.port = config.port
        self._budget = Budget(config.max_body_bytes)
        self._pool = ThreadPoolExecutor(config.threads, "rest")
        self._converting = threading.Lock()
        """Held by the one request that is parsed or formatted: several threads would not be faster, because Python runs
        one at a time, and the threads of gRPC would wait for each of them."""
        self._loop = asyncio.new_event_loop()
        application = web.Application()
        application.router.add_route("*", r"/{path:[\s\S]*}", self._respond)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=QUIET_LOG,
            shutdown_timeout=STOP_TIMEOUT_S,
            keepalive_timeout=IDLE_TIMEOUT_S,
            auto_decompress=False,  # aiohttp would unpack a body before its size is checked
            handler_cancellation=True,  # the work of a request ends when its client has gone
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)

    def start(self) -> None:
        """Listen and answer. Raises InputError if the address is unusable."""
        self._loop.run_until_complete(self._listen())
        self._thread.start()

    async def _listen(self) -> None:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        try:
            self._listener = RestListener(self._host.strip("[]"), self.port, server, lambda: len(server.connections))
        except OSError:
            raise InputError(port_error(self._host, self.port, "--rest_api_port")) from None
        self._listener.start()
        self.port = self._listener.port

    def stop(self) -> None:
        """Refuse new connections, finish requests in progress, and close."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown(wait=False)

    async def _close(self) -> None:
        self._listener.close()
        await self._runner.cleanup()
        # tasks of connections that were lost a moment ago
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _respond(self, request: web.Request) -> web.Response:
        self._listener.note_request(request.transport)
        # a proxy may send the whole URL
        path = re.sub(r"^https?://[^/]*", "", request.raw_path, flags=re.IGNORECASE)
        if path == self._config.metrics_path:
            page = await self._loop.run_in_executor(self._pool, self._metrics.text)
            return web.Response(body=page, content_type="text/plain")
        if not path.lower().startswith("/v1/"):
            return web.Response(status=404)
        begin = time.perf_counter()
        route = _Route(wire.ModelSpec())
        status = StatusCode.OK
        text = error_text = ""
        try:
            if request.method == "OPTIONS":
                if not re.search("https?://", request.headers.get("Origin", "")):
                    raise StatusError(StatusCode.FAILED_PRECONDITION, "a CORS preflight needs the header Origin")
            else:
                route = _route(request.method, path)
                async with asyncio.timeout(self._config.timeout_s):
                    text = await self._in_pool(request, route)
        except StatusError as error:
            traceback.clear_frames(error.__traceback__)  # they hold the parsed body
            status, error_text = error.code, str(error)
        except TimeoutError:
            status = StatusCode.DEADLINE_EXCEEDED
            error_text = f"the request took longer than --rest_api_timeout_in_ms {1000 * self._config.timeout_s:.0f}"
        except web.RequestPayloadError as error:
            status, error_text = StatusCode.INVALID_ARGUMENT, f"the body cannot be read: {error}"
        except ConnectionError:
            status = StatusCode.CANCELLED  # the client closed the connection before the end of the body
        except asyncio.CancelledError:
            self._count(route, StatusCode.CANCELLED)  # the client closed the connection before it was answered
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, path)
            status, error_text = StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        model = self._count(route, status)
        if status is StatusCode.OK:
            self._metrics.count_latency(model, route.api, "REST", time.perf_counter() - begin)
        if request.method == "OPTIONS":
            return web.Response(status=HTTP_STATUS[status])
        text = text or json_response.dumps({"error": error_text})
        return web.Response(text=text, status=HTTP_STATUS[status], content_type="application/json")

    def _count(self, route: _Route, status: StatusCode) -> str:
        """Count a request, and return its model's label in the metrics."""
        model = route.spec.name if self._manager.is_known(route.spec.name) else ""
        self._metrics.count_request(model, status.name)
        return model

    async def _in_pool(self, request: web.Request, route: _Route) -> str:
        """Read a request's body, and answer it in a thread of the pool. Raises StatusError."""
        body = Body(self._budget, request.headers.get("Content-Encoding", ""), request.content_length or 0)
        try:
            async for part in request.content.iter_any():
                body.append(part)
            answer = self._pool.submit(self._answer, route, body)
        except BaseException:
            body.release()
            raise
        # a thread that has begun uses the body until it notices that its client has gone
        answer.add_done_callback(lambda _: body.release())
        try:
            return await asyncio.wrap_future(answer)
        finally:
            body.abandon()

    def _answer(self, route: _Route, body: Body) -> str:
        if route.api == "predict":
            return self._predict(route.spec, body)
        if route.api:
            unimplemented(route.api.capitalize())
        if not route.spec.name:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "the path names no model")
        with self._converting:
            if route.is_metadata:
                metadata = wire.GetModelMetadataRequest(model_spec=route.spec, metadata_field=["signature_def"])
                return json_response.from_metadata(get_model_metadata(self._manager, metadata))
            status = wire.GetModelStatusRequest(model_spec=route.spec)
            return json_response.from_status(get_model_status(self._manager, status))

    def _predict(self, spec: wire.ModelSpec, body: Body) -> str:
        with self._converting:
            document = json_request.parse(body.content(), body.check_client)
            name = json_request.signature_name(document) or DEFAULT_SIGNATURE
            _, servable = self._manager.find(spec)
            signature = servable.signatures.get(name)
            if signature is None or not signature.inputs:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"{spec.name} has no signature {name!r} with inputs")
            arrays, layout = json_request.input_arrays(document, signature.inputs, body.check_client)
            del document  # many times the size of the arrays
        outputs = list(signature.outputs)
        body.check_client()
        values = run(servable, name, arrays, outputs, functools.partial(self._metrics.count_run, spec.name))
        with self._converting:
            body.check_client()
            return json_response.from_tensors(dict(zip(outputs, values, strict=True)), signature.outputs, layout)


def _route(http_method: str, path: str) -> _Route:
    # aiohttp keeps bytes that are not valid UTF-8 as surrogates, which a protobuf string cannot hold
    path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    pattern = {"POST": _INFERENCE, "GET": _STATUS}.get(http_method)
    match = pattern.fullmatch(path) if pattern else None
    api = match["api"] if match and http_method == "POST" else ""
    # tensorflow/serving ignores the path's case, except in the API's name
    if match is None or api not in ("", "predict", "classify", "regress"):
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"there is no request {http_method} {path}")
    spec = wire.ModelSpec(name=unquote(match["model"] or ""))
    if version := match["version"]:
        if len(version) > 19 or int(version) >= 1 << 63:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"version {version} is beyond 64 bits")
        spec.version.value = int(version)
    elif match["label"]:
        spec.version_label = unquote(match["label"])
    return _Route(spec, api, is_metadata=http_method == "GET" and match["metadata"] == "metadata")
