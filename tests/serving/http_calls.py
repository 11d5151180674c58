"""HTTP requests to a server's REST API."""

import contextlib
import http.client
import json
import socket


@contextlib.contextmanager
def connected(port, timeout_s=30):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        yield connection


def call(port, method, path, body=None, headers=None):
    """(status, JSON or text) of a request. `body`: bytes, or a value that is sent as JSON."""
    with connected(port) as connection:
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        return answer(connection.getresponse())


def send(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return answer(response)


def answer(response):
    text = response.read().decode()
    is_json = (response.getheader("Content-Type") or "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text
