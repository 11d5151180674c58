"""`python -m serving`: the embedded server until SIGTERM or Ctrl-C."""

import gc
import logging
import os
import resource
import signal
import sys
import threading

# gRPC would log a second line beside our error if a port is in use
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from city import logs, program, systemd
from serving.embedded.flags import parse

GC_THRESHOLD = 20_000
"""Allocations between garbage collections."""
MAX_OPEN_FILES = 1 << 16
"""Limit of open files; every connection is one."""


def allow_open_files() -> None:
    """Raise the soft limit of open files: the usual 1,024 would limit the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def main(argv: list[str] | None = None, prog: str = "python -m serving") -> int:
    return program.run(lambda: _serve(argv, prog), takes_signals=False)


def _serve(argv: list[str] | None, prog: str) -> int:
    logs.configure(sys.argv[1:] if argv is None else argv, "server")
    # calls create few reference cycles; Python's default threshold would collect every dozen calls
    gc.set_threshold(GC_THRESHOLD)
    allow_open_files()
    stop = threading.Event()
    # before the slow import, so that a signal during start-up also exits cleanly
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread: the main thread may hold the event's lock while its handler runs
        signal.signal(number, lambda *_: threading.Thread(target=stop.set, name="stop").start())
    config = parse(argv, prog)
    from serving.embedded.server import Server

    server = Server(config, stop)
    server.start()
    # freeze start-up objects so that garbage collections do not traverse them again
    gc.collect()
    gc.freeze()
    if not stop.is_set():
        rest = f", REST at {config.host}:{server.rest_port}" if server.rest_port else ""
        models = "" if server.manager.served() else ", without models"
        print(f"ready at {config.host}:{server.port}{rest}{models}", flush=True)
        systemd.notify("READY=1")
    while not stop.wait(3600):
        pass
    systemd.notify("STOPPING=1")
    server.stop()
    # no ordinary exit: a call that outlasts the drain may still run in TensorFlow, which would crash in its shutdown
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
