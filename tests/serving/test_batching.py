"""Batching: what is run together, when, and what is refused."""

import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.errors import InputError
from serving.client import Client
from serving.embedded.batching import (
    Batch,
    Batching,
    BatchingSession,
    BatchScheduler,
    Queue,
    Task,
    enqueue,
    merged,
    of_file,
    run_batch,
    wait_s,
)
from serving.embedded.config import ServerConfig
from serving.embedded.status import StatusError
from tests.serving.conftest import running


class Doubling:
    """A session that counts its runs; the contract is Session.run's."""

    definitions, signatures = None, None

    def __init__(self):
        self.sizes = []

    def run(self, signature, inputs, outputs):
        self.sizes.append(len(inputs["x"]))
        return [2 * inputs["x"]]


def task(rows, end_s=None, width=1):
    return Task({"x": np.full((rows, width), rows, np.float32)}, rows, end_s)


def queue(session=None):
    return Queue(session or Doubling(), "s", ("y",))


def test_a_batch_is_run_when_it_is_full_or_has_waited_long_enough():
    parameters, waiting = Batching(max_batch_size=4, batch_timeout_s=1.0), queue()
    assert wait_s(waiting, parameters, 10.0) is None
    enqueue(waiting, task(2), parameters, 10.0)
    assert wait_s(waiting, parameters, 10.25) == 0.75
    assert wait_s(waiting, parameters, 11.5) == 0
    enqueue(waiting, task(2), parameters, 10.5)
    assert wait_s(waiting, parameters, 10.5) == 0
    assert [batch.size for batch in waiting.batches] == [4]


def test_a_call_that_does_not_fit_opens_the_next_batch_and_closes_the_first():
    parameters, waiting = Batching(max_batch_size=4, batch_timeout_s=1.0), queue()
    for rows in (3, 2):
        enqueue(waiting, task(rows), parameters, 10.0)
    assert [batch.size for batch in waiting.batches] == [3, 2] and wait_s(waiting, parameters, 10.0) == 0


def test_what_is_too_large_or_too_many_is_refused():
    parameters, waiting = Batching(max_batch_size=4, max_enqueued_batches=2), queue()
    with pytest.raises(StatusError, match="Task size 5 is larger than maximum input batch size 4") as refused:
        enqueue(waiting, task(5), parameters, 0)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    for _ in range(2):
        enqueue(waiting, task(4), parameters, 0)
    with pytest.raises(StatusError, match="queue to which this task was submitted is full") as refused:
        enqueue(waiting, task(1), parameters, 0)
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE


def test_a_batch_is_filled_up_to_an_allowed_size_and_nobody_gets_the_filling():
    waiting = queue()
    batch = Batch(0, [task(1), task(2)], 3)
    run_batch(waiting, batch, Batching(max_batch_size=8, allowed_batch_sizes=(2, 4, 8)))
    assert waiting.session.sizes == [4]
    assert [one.answer.result()[0].tolist() for one in batch.tasks] == [[[2.0]], [[4.0], [4.0]]]


def test_calls_that_nobody_waits_for_are_not_run():
    waiting = queue()
    batch = Batch(0, [task(1, end_s=5.0), task(2, end_s=50.0)], 3)
    batch.drop_late(10.0)
    run_batch(waiting, batch, Batching())
    assert waiting.session.sizes == [2]
    run_batch(waiting, Batch(0), Batching())
    assert waiting.session.sizes == [2]


def test_rows_of_other_width_are_padded_only_where_that_is_asked_for():
    tasks = [task(1, width=1), task(1, width=3)]
    with pytest.raises(StatusError, match="different shapes and padding is turned off"):
        merged(tasks, Batching())
    assert merged(tasks, Batching(pad_variable_length_inputs=True))["x"].shape == (2, 3)
    with pytest.raises(StatusError, match="different rank"):
        merged([task(1), Task({"x": np.zeros((1, 2, 2), np.float32)}, 1)], Batching(pad_variable_length_inputs=True))


def test_an_output_that_is_no_batch_fails_every_call():
    class Constant(Doubling):
        def run(self, signature, inputs, outputs):
            return [np.zeros(1)]

    batch = Batch(0, [task(1), task(2)], 3)
    run_batch(queue(Constant()), batch, Batching())
    for one in batch.tasks:
        with pytest.raises(StatusError, match="0th dimension does not equal"):
            one.answer.result()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(6, 9))
def test_every_call_gets_its_own_rows(sizes, most):
    session, parameters = Doubling(), Batching(max_batch_size=most, max_enqueued_batches=100)
    waiting = queue(session)
    tasks = [Task({"x": np.full((rows, 1), i, np.float32)}, rows) for i, rows in enumerate(sizes)]
    for one in tasks:
        enqueue(waiting, one, parameters, 0.0)
    for batch in waiting.batches:
        run_batch(waiting, batch, parameters)
    for i, one in enumerate(tasks):
        assert one.answer.result()[0].tolist() == [[2.0 * i]] * sizes[i]
    assert max(session.sizes) <= most


def test_callers_at_the_same_moment_share_a_run():
    session, go = Doubling(), threading.Barrier(6)
    scheduler = BatchScheduler(Batching(max_batch_size=6, batch_timeout_s=30.0, num_batch_threads=1))
    try:
        batched = BatchingSession(session, scheduler)

        def call(i):
            go.wait()
            return batched.run("s", {"x": np.full((1, 1), i, np.float32)}, ["y"])[0]

        with futures.ThreadPoolExecutor(6) as pool:
            assert [float(y[0, 0]) for y in pool.map(call, range(6))] == [0, 2, 4, 6, 8, 10]
        assert session.sizes == [6]
        with pytest.raises(StatusError, match="at least one dimension"):
            batched.run("s", {"x": np.float32(1)}, ["y"])
        with pytest.raises(StatusError, match="equal 0th-dimension size"):
            batched.run("s", {"x": np.zeros(2), "z": np.zeros(3)}, ["y"])
    finally:
        scheduler.stop()
    with pytest.raises(StatusError, match="going away"):
        batched.run("s", {"x": np.zeros((1, 1))}, ["y"])


def test_a_call_gives_up_at_its_deadline_while_its_batch_waits(odd_models):
    batching = Batching(max_batch_size=100, batch_timeout_s=60.0, num_batch_threads=1)
    with running(ServerConfig(odd_models, port=0, poll_s=0, batching=batching, warm_up=False)) as server:
        begin = time.monotonic()
        with Client(f"127.0.0.1:{server.port}") as client, pytest.raises(Exception, match=r"(?i)deadline"):
            client.run("dtypes", {"x": np.zeros((1, 1), np.float32)}, signature="float32", timeout_s=0.3)
        assert time.monotonic() - begin < 10


def test_batched_answers_equal_single_ones(grid_models, grid_server):
    rng = np.random.default_rng(3)
    xs = rng.random((40, 17), dtype=np.float32)
    with Client(grid_server) as client:
        single = [client.predict("SA103", x)["action"] for x in xs]
    batching = Batching(max_batch_size=8, batch_timeout_s=0.05, allowed_batch_sizes=(1, 4, 8))
    with (
        running(ServerConfig(grid_models, port=0, poll_s=0, batching=batching, threads=16)) as server,
        Client(f"127.0.0.1:{server.port}") as client,
        futures.ThreadPoolExecutor(16) as pool,
    ):
        together = list(pool.map(lambda x: client.predict("SA103", x, timeout_s=10)["action"], xs))
        assert client.policy("SA103").tl == "SA103"
    np.testing.assert_allclose(np.concatenate(together), np.concatenate(single), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "cannot be read as BatchingParameters"),
        ("max_batch_size { value: 0 }", "max_batch_size 0 must lie between 1"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros -1 must lie between 0"),
        ("max_batch_size { value: 4 } allowed_batch_sizes: 2", "end with max_batch_size 4"),
        ("max_batch_size { value: 4 } allowed_batch_sizes: [4, 2]", "must rise"),
    ],
)
def test_wrong_parameters_are_one_line(text, told, tmp_path):
    (tmp_path / "batching.config").write_text(text)
    with pytest.raises(InputError, match=told):
        of_file(tmp_path / "batching.config")


def test_tensorflow_servings_parameter_file_is_read(tmp_path):
    (tmp_path / "batching.config").write_text(
        "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 2000 }\nnum_batch_threads { value: 3 }\n"
        'max_enqueued_batches { value: 7 }\nthread_pool_name { value: "x" }\nallowed_batch_sizes: 16\nallowed_batch_sizes: 128\n'
    )
    assert of_file(tmp_path / "batching.config") == Batching(128, 0.002, 7, 3, (16, 128), False)
