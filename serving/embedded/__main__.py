"""`python -m serving`: the embedded server until SIGTERM or Ctrl-C."""

import gc
import logging
import os
import signal
import sys
import threading

# gRPC would log a line of its own beside ours if a port is taken
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from city.errors import InputError
from serving.embedded.flags import parse
from serving.embedded.telemetry import logs


def main(argv: list[str] | None = None, prog: str = "python -m serving") -> int:
    logs.configure(sys.stderr)
    # calls leave little for the garbage collector; Python's default threshold runs it every dozen calls
    gc.set_threshold(20_000)
    stop = threading.Event()
    # before the slow import: a signal during start-up must end it as cleanly
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        config = parse(argv, prog)
        from serving.embedded.server import Server

        server = Server(config, stop)
        server.start()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not stop.is_set():
        rest = f", REST at {config.host}:{server.rest_port}" if server.rest_port else ""
        print(f"ready at {config.host}:{server.port}{rest}", flush=True)
    while not stop.wait(3600):
        pass
    server.stop()
    # a call that outlasts the drain may still run inside TensorFlow, whose own shutdown would crash under it
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
