"""Keep log lines of TensorFlow's C++ code off the terminal; no log level turns them off."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

import tensorflow as tf

_STARTUP_LOG_LINES = (
    b"All log messages before absl::InitializeLog() is called",
    b"MLIR V1 optimization pass is not enabled",
    b"Number of eligible GPUs",
    b"Starting new session",
)


def first_session() -> None:
    """Run the process's first session with its start-up log lines suppressed, and silence TensorFlow's loggers."""
    tf.get_logger().setLevel("ERROR")
    # absl logs a traceback for a corrupt fingerprint of a SavedModel
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    with suppress_startup_log(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.constant(0))


@contextlib.contextmanager
def suppress_startup_log() -> Iterator[None]:
    """Buffer the block's stderr, then write everything to stderr except known start-up lines."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with tempfile.TemporaryFile() as captured:
            os.dup2(captured.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(terminal, 2)
                captured.seek(0)
                for line in captured:
                    if not any(startup_line in line for startup_line in _STARTUP_LOG_LINES):
                        os.write(2, line)
    finally:
        os.close(terminal)
