"""The REST server's end: what is under way is answered, nothing else is waited for."""

import http.client
import socket
import threading

import pytest

from serving.embedded.rest.server import RestServer

BODY = bytes(8_000_000)
"""More than a connection takes at once."""


class Held(RestServer):
    """Answers once it may."""

    def __init__(self):
        self.began, self.go = threading.Event(), threading.Event()
        super().__init__(None, None, "127.0.0.1", 0, threads=2, timeout_s=30, metrics_path=None)

    def answer(self, environ, start_response):
        if environ["PATH_INFO"] == "/held":
            self.began.set()
            assert self.go.wait(30)
        start_response("200 OK", [("Content-Length", str(len(BODY)))])
        return [BODY]


@pytest.fixture
def rest():
    made = Held()
    made.start()
    yield made
    made.go.set()


def connect(rest):
    return http.client.HTTPConnection("127.0.0.1", rest.port, timeout=30)


def get(rest, path, answers):
    connection = connect(rest)
    connection.request("GET", path)
    answers.append(len(connection.getresponse().read()))
    connection.close()


def test_an_answer_under_way_is_given_whole_and_no_new_connection_is_taken(rest, caplog):
    answers = []
    caller = threading.Thread(target=get, args=(rest, "/held", answers))
    caller.start()
    assert rest.began.wait(30)
    stopper = threading.Thread(target=rest.stop)
    stopper.start()
    with pytest.raises(ConnectionError):
        while True:
            socket.create_connection(("127.0.0.1", rest.port), timeout=30).close()
    rest.go.set()
    caller.join(30)
    stopper.join(30)
    assert answers == [len(BODY)]
    assert not rest._thread.is_alive()
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


def test_a_connection_without_a_question_is_not_waited_for(rest):
    connection = connect(rest)
    connection.request("GET", "/")
    assert len(connection.getresponse().read()) == len(BODY)
    rest.stop()
    assert not rest._thread.is_alive()
    connection.close()
