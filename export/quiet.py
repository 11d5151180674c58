"""Keeps two lines of TensorFlow's off the terminal of whoever exports."""

import os
import sys
import tempfile

import tensorflow as tf

_NOTES = (b"All log messages before absl::InitializeLog() is called", b"MLIR V1 optimization pass is not enabled")


def first_session() -> None:
    """Run the process's first session, whose start-up notes no log level turns off.

    They come from C++, once, and would stand between the exporter's own lines.
    What else is written to stderr meanwhile is passed on.
    """
    tf.get_logger().setLevel("ERROR")
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with tempfile.TemporaryFile() as kept:
            os.dup2(kept.fileno(), 2)
            try:
                with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                    session.run(tf.constant(0))
            finally:
                os.dup2(terminal, 2)
            kept.seek(0)
            for line in kept:
                if not any(note in line for note in _NOTES):
                    os.write(2, line)
    finally:
        os.close(terminal)
