"""The threads that answer calls: every one is answered, every end is told once."""

import logging
import threading

import pytest

from serving.embedded.call_threads import CallThreads

CALLS = 2_000


@pytest.fixture
def threads():
    before = set(threading.enumerate())
    pool = CallThreads(3)
    yield pool
    pool.shutdown()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_every_call_is_made_and_its_end_told_once_however_the_two_race(threads):
    made, told, all_told = [], [], threading.Event()

    def tell(number):
        told.append(number)
        if len(told) == CALLS:
            all_told.set()

    for number in range(CALLS):
        submitted = threads.submit(made.append, number)
        submitted.add_done_callback(lambda _, number=number: tell(number))
    assert all_told.wait(10)
    assert sorted(made) == sorted(told) == list(range(CALLS))


def test_a_call_already_done_tells_at_once(threads):
    done = threading.Event()
    submitted = threads.submit(lambda: None)
    submitted.add_done_callback(lambda _: done.set())
    assert done.wait(10)
    late = []
    submitted.add_done_callback(late.append)
    assert late == [submitted]


def test_a_call_that_raises_is_logged_and_told_and_its_thread_goes_on(threads, caplog):
    ends = [threading.Event() for _ in range(10)]
    with caplog.at_level(logging.ERROR):
        for end in ends:
            threads.submit(lambda: 1 / 0).add_done_callback(lambda _, end=end: end.set())
        assert all(end.wait(10) for end in ends)
    assert sum("ZeroDivisionError" in record.exc_text for record in caplog.records) == 10
    answered = threading.Event()
    threads.submit(answered.set)
    assert answered.wait(10)


def test_what_waits_at_the_shutdown_is_still_answered():
    pool, go, answered = CallThreads(1), threading.Event(), threading.Event()
    pool.submit(go.wait, 10)
    pool.submit(answered.set)
    pool.shutdown()
    go.set()
    assert answered.wait(10)
