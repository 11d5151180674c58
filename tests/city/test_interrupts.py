"""SIGTERM and Ctrl-C as KeyboardInterrupt."""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref

import grpc
import pytest

from city.interrupts import SIGNALS, InterruptContext
from tests.serving.fake_server import Fake


@pytest.mark.parametrize("number", SIGNALS)
def test_both_signals_interrupt_and_handlers_are_restored(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    interrupts = InterruptContext()
    with pytest.raises(KeyboardInterrupt), interrupts:
        os.kill(os.getpid(), number)
    assert interrupts.received
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_interrupt_waits_for_the_end_of_a_grpc_call(tmp_path):
    """An exception within the call would leave it open, and `close` would wait for it without end."""
    fake = Fake(str(tmp_path / "socket"))
    fake.answer = lambda request, context: time.sleep(0.5) or b"x"
    channel = grpc.insecure_channel(fake.address)
    call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    call(b"")
    answers = []
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt), InterruptContext():
            timer.start()
            answers.append(call(b""))
            time.sleep(5)
        assert answers == [b"x"]
    finally:
        channel.close()
        fake.stop()


class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


def interrupt(reference=None):
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("is_callback", [False, True], ids=["__del__", "weakref's callback"])
def test_interrupt_while_an_object_is_deleted_is_not_lost(is_callback):
    """The garbage collector deletes at any moment, and Python ignores exceptions then."""
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), InterruptContext():
        kept = set() if is_callback else Interrupted()
        reference = weakref.ref(kept, interrupt) if is_callback else None  # noqa: F841 - a reference that is deleted calls nothing
        del kept
        time.sleep(5)
    assert sys.unraisablehook is hook


def test_interrupt_that_is_sent_again_after_an_inner_block_reaches_the_outer_one():
    with pytest.raises(KeyboardInterrupt), InterruptContext():
        with InterruptContext():
            del [Interrupted()][0]
        time.sleep(5)


def test_interrupt_that_a_library_hides_is_still_known():
    with InterruptContext() as interrupts, contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.received
