"""The ends of gRPC over a Unix socket, ours and gRPC's own, and what is said byte by byte."""

import socket
import struct
import threading
import time
from concurrent import futures

import grpc

from serving import http2
from serving.embedded.call_threads import CallThreads
from serving.embedded.grpc_method import Method, handler
from serving.embedded.metrics import Metrics
from serving.embedded.pace import Pace
from serving.embedded.status import Answer, StatusError
from serving.embedded.unix_socket import UnixSocket
from serving.grpc_wire import header_block
from serving.line import Line, Status

SERVICE, CALL = "test.Echo", "/test.Echo/Call"
WORDS = "not so: ä 100 %\nor else €"
HEAD = header_block((":status", "200"), ("content-type", "application/grpc"))
DONE = header_block(("grpc-status", "0"))


class Echo:
    """Answers what it is asked; b"hold..." waits until it is let go, b"wrong" is refused."""

    def __init__(self):
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.left_s = []

    def __call__(self, data):
        if data.startswith(b"hold"):
            self.begun.release()
            assert self.go.wait(20)
        if data == b"wrong":
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, WORDS)
        if data.startswith(b"broken"):
            raise RuntimeError("broken")
        return Answer(1, data)


class Ours:
    """UnixSocket. Quick is what says so, as a model that has been quick so far."""

    def __init__(self, path, echo, most_calls=100):
        self.pool = CallThreads(4)
        self.server = UnixSocket(path, most_calls)
        quick = Pace()
        quick.begin()
        quick.end()
        method = Method("Call", echo, Metrics(), lambda name: True, lambda data: None if data.startswith(b"hold") else quick)
        self.server.add(SERVICE, {"Call": method}, self.pool)
        self.server.start()

    def stop(self, drain_s=0.0):
        self.server.stop(drain_s)
        self.pool.shutdown()


class Theirs:
    """gRPC's own server, on a Unix socket as TensorFlow Serving's is."""

    def __init__(self, path, echo):
        self.server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
        handlers = {"Call": handler(Method("Call", echo, Metrics(), lambda name: True))}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        assert self.server.add_insecure_port(f"unix:{path}")
        self.server.start()

    def stop(self):
        self.server.stop(None).wait()


class ByLine:
    def __init__(self, path, left=()):
        self.line = Line(str(path), left)
        self.close = self.line.close

    def ask(self, messages, timeout_s=20.0):
        return self.line.ask(CALL, messages, time.monotonic() + timeout_s)


class ByGrpc:
    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", -1)])
        self.close = self.channel.close

    def ask(self, messages, timeout_s=20.0):
        calls = {key: self.channel.unary_unary(CALL).future(message, timeout=timeout_s) for key, message in messages.items()}
        found = {}
        for key, call in calls.items():
            try:
                found[key] = call.result()
            except grpc.RpcError as error:
                found[key] = Status(error.code().name, error.details())
        return found


class Played:
    """A server that says what the test wants, byte by byte; nothing real does so on purpose."""

    def __init__(self, path):
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.listening.settimeout(20)

    def take(self):
        self.connected, _ = self.listening.accept()
        self.end, self.calls = http2.Connection(is_client=False), []
        return self

    def asked(self):
        """The stream of the next whole call."""
        while not self.calls:
            self.calls += [event.stream for event in self.end.feed(self.connected.recv(1 << 16)) if event.is_end]
        return self.calls.pop(0)

    def say(self, data=b""):
        self.connected.sendall(bytes(self.end.outgoing) + data)
        self.end.outgoing.clear()

    def close(self):
        self.connected.close()
        self.listening.close()


def answered(played, stream, *parts):
    head, body, trailer = parts
    played.end.send(stream, head, body, trailer)
    played.say()


def raw_call(path, message, window=http2.MOST_NUMBER):
    """A connection that has made a call, and reads nothing by itself; (socket, this end of HTTP/2).

    `window`: how much of an answer it takes.
    """
    caller, end = socket.socket(socket.AF_UNIX), http2.Connection(is_client=True)
    caller.settimeout(20)
    caller.connect(str(path))
    caller.sendall(end.outgoing + struct.pack("!IBIHI", 6 << 8 | http2.SETTINGS, 0, 0, http2.INITIAL_WINDOW_SIZE, window))
    end.outgoing.clear()
    end.feed(caller.recv(1 << 16))  # how much the server takes
    head = header_block((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"))
    end.send(end.begin(), head, struct.pack("!BI", 0, len(message)) + message)
    caller.sendall(end.outgoing)
    end.outgoing.clear()
    return caller, end


def next_of(kind, caller, end):
    """The stream of the next event of a kind."""
    while True:
        for event in end.feed(caller.recv(1 << 16)):
            if event.kind == kind:
                return event.stream
