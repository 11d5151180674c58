"""SIGTERM and Ctrl-C as KeyboardInterrupt."""

import contextlib
import os
import signal

import pytest

from city.interrupts import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_both_signals_interrupt_and_handlers_are_restored(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts:
        os.kill(os.getpid(), number)
    assert interrupts.received
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_interrupt_that_a_library_hides_is_still_known():
    with Interrupts() as interrupts, contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.received
