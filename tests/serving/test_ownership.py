"""Whose memory it is: what a graph keeps of a request, what a request leaves out, what an idle thread keeps."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from protos import predict_pb2 as wire
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.embedded.tensorflow import session
from serving.embedded.tensorflow.library import library
from serving.embedded.tensorflow.session import _to_array, _to_tensor
from serving.errors import ServingError
from tests.serving import saved_models
from tests.serving.conftest import running


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stateful")
    saved_models.write_memory(folder / "MEMORY" / "1")
    saved_models.write_defaults(folder / "DEFAULTS" / "1")
    saved_models.write_reference(folder / "REFERENCE" / "1")
    with running(ServerConfig(folder, port=0, poll_s=3600)) as server, Client(f"127.0.0.1:{server.port}") as client:
        yield client


def test_a_variable_keeps_the_numbers_it_was_given_not_those_of_the_next_call(stateful):
    found = [stateful.run("MEMORY", {"x": np.full(4, n, np.float32)})["before"][0] for n in range(1, 8)]
    assert found == [0, 1, 2, 3, 4, 5, 6]


def test_a_variable_keeps_the_texts_it_was_given(stateful):
    texts = [b"%d" % n * 60 for n in range(6)]
    found = [stateful.run("MEMORY", {"x": np.array([text])}, signature="texts")["before"][0] for text in texts]
    assert found == [b"first", *texts[:-1]]


@pytest.mark.parametrize("signature", ["serving_default", "soft"])
def test_an_input_left_out_has_its_default_every_time(stateful, signature):
    for b in (1.0, 5.0, 9.0):
        found = stateful.run("DEFAULTS", {"b": np.float32([b])}, signature=signature)["y"]
        assert found == [70 + b]


def test_a_variable_itself_may_be_an_output(stateful):
    found = stateful.run("REFERENCE", {"x": np.float32([4])})
    assert found["y"].tolist() == [1, 2] and found["y"].dtype == np.float32 and found["z"] == [5]


def test_arrays_in_any_order_of_memory_are_fed_by_their_values():
    tf = library()
    for size in (10, 300):
        array = np.asfortranarray(np.arange(size * size, dtype=np.float32).reshape(size, size))
        tensor = _to_tensor(tf, array, 1)
        assert np.array_equal(_to_array(tf, tensor), array)
        tf.DeleteTensor(tensor)


def test_texts_of_requests_are_freed(stateful, monkeypatch):
    kept, freed = len(library()._texts), []
    free = library().StringDealloc
    monkeypatch.setattr(library(), "StringDealloc", lambda at: (freed.append(at), free(at)))
    for n in range(50):
        stateful.run("MEMORY", {"x": np.array([b"%d" % n * 60])}, signature="texts")
    # the last one is the variable's
    assert len(library()._texts) <= kept + 1 and len(freed) >= 49


def test_a_look_that_waited_for_a_reload_does_not_undo_it(grid_models, tmp_path):
    import shutil

    from serving.embedded.models.model_config import ModelConfig
    from serving.embedded.models.version_policy import VersionPolicy

    for version in ("1", "2"):
        shutil.copytree(grid_models / "SA103" / "1", tmp_path / "SA103" / version)

    def only(version):
        return {"SA103": ModelConfig("SA103", tmp_path / "SA103", VersionPolicy(None, (version,)))}

    with running(ServerConfig(models=only(2), port=0, poll_s=3600)) as server:
        loading, go = threading.Event(), threading.Event()
        load = server.manager._load

        def held(path):
            loading.set()
            assert go.wait(20)
            return load(path)

        server.manager._load = held
        reload = threading.Thread(target=server.reconfigure, args=(only(1),))
        reload.start()
        assert loading.wait(20)
        look = threading.Thread(target=server.look)
        look.start()  # begins while the reload goes on
        go.set()
        reload.join(20)
        look.join(20)
        assert server.manager.served() == {"SA103": [1]}


def test_an_end_while_a_run_outlasts_the_drain_is_an_end_like_any_other(tmp_path):
    saved_models.write_slow(tmp_path / "models" / "SLOW" / "1", 600)
    city = tmp_path / "city.toml"
    city.write_text("")
    models = str(tmp_path / "models")
    command = [sys.executable, "-m", "serving", "--models-dir", models, "--port", "0", "--city", str(city)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().removeprefix("ready at ").strip()
        with Client(address, retries=0) as client:
            failures = []

            def ask():
                try:
                    client.run("SLOW", {"x": np.ones((1, 1), np.float32)}, timeout_s=60)
                except ServingError as error:
                    failures.append(error)

            call = threading.Thread(target=ask)
            call.start()
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            call.join(60)
            assert len(failures) == 1, "the run was to outlast the drain"
    finally:
        process.kill()
        process.communicate()


def test_a_warm_up_record_need_not_name_its_model(grid_models, tmp_path):
    import shutil

    import tensorflow as tf

    from protos import inference_pb2 as pb

    shutil.copytree(grid_models / "SA103", tmp_path / "SA103")
    file = tmp_path / "SA103" / "1" / "assets.extra" / "tf_serving_warmup_requests"
    record = pb.PredictionLog()
    tensor = record.predict_log.request.inputs["observation"]
    tensor.dtype = 1
    for n in (1, 17):
        tensor.tensor_shape.dim.add(size=n)
    with tf.io.TFRecordWriter(str(file)) as records:
        for one in (record, pb.PredictionLog()):
            records.write(one.SerializeToString())
    with running(ServerConfig(tmp_path, port=0, poll_s=0)) as server:
        assert server.manager.served() == {"SA103": [1]}


def test_a_version_that_fails_in_an_unforeseen_way_is_told_and_tried_as_often_as_the_flags_say(grid_models, monkeypatch):
    config = ServerConfig(grid_models, port=0, poll_s=3600)
    with running(config) as server:
        manager = server.manager
        tries = []

        def failing(path):
            tries.append(path)
            raise RuntimeError("nobody thought of this")

        manager._load = failing
        folder = manager._models["SA103"].config.base_path
        import os

        found = next(iter(p for p in folder.iterdir()))
        os.utime(found / "saved_model.pb")
        for now_s in (1.0, 2.0, 3.0):
            manager.follow({name: model.config for name, model in manager._models.items()}, now_s)
        (status,) = manager.states(wire.ModelSpec(name="SA103"))
        assert len(tries) == 1 and "nobody thought" in status.status.error_message


def test_a_thread_that_ends_gives_back_what_it_had_of_tensorflow():
    """A thread for each connection runs models: what each kept would add up."""
    made, freed = [], []

    class Library:
        def NewStatus(self):
            made.append(7)
            return 7

        def DeleteStatus(self, pointer):
            freed.append(pointer)

    def run():
        assert session._status(Library()) == session._status(Library()) == 7

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert made == freed == [7]
