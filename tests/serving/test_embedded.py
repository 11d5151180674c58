"""The embedded server's life: versions that come and go, bad versions, start and drain."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.client import Client
from serving.embedded.__main__ import main
from serving.embedded.config import ServerConfig
from serving.embedded.server import Server
from serving.errors import ModelNotFound
from tests.conftest import GRID

X = np.zeros(17, np.float32)
MODEL = "SA103"


@contextlib.contextmanager
def served(folder):
    """A server whose looks at the folder are called by the test, not by a clock."""
    server = Server(ServerConfig(folder, port=0, poll_s=3600))
    server.start()
    client = Client(f"127.0.0.1:{server.port}")
    try:
        yield server, client
    finally:
        client.close()
        server.stop()


@pytest.fixture
def models(tmp_path, grid_models):
    shutil.copytree(grid_models / MODEL, tmp_path / "models" / MODEL)
    return tmp_path / "models"


def version_of(client):
    return client.predict_many({MODEL: X}, timeout_s=5)[MODEL].version


def test_a_new_version_is_taken_up_and_the_old_one_ends(models):
    with served(models) as (server, client):
        assert version_of(client) == 1
        shutil.copytree(models / MODEL / "1", models / MODEL / "4")
        server.poll_once()
        assert version_of(client) == 4
        assert [(s.version, s.state) for s in client.status(MODEL)] == [(4, 30), (1, 50)]


def test_no_call_fails_while_versions_change(models):
    with served(models) as (server, client):
        failures, stop = [], threading.Event()

        def call():
            while not stop.is_set():
                answer = client.predict_many({MODEL: X}, timeout_s=5)[MODEL]
                if isinstance(answer, Exception):
                    failures.append(answer)

        caller = threading.Thread(target=call)
        caller.start()
        for version in range(2, 8):
            draft = models / MODEL / f".{version}"
            shutil.copytree(models / MODEL / "1", draft)
            draft.rename(models / MODEL / str(version))
            server.poll_once()
        stop.set()
        caller.join()
        assert version_of(client) == 7 and failures == []


def test_a_version_that_cannot_be_loaded_is_reported_and_the_old_one_answers(models):
    bad = models / MODEL / "2"
    bad.mkdir()
    (bad / "saved_model.pb").write_bytes(b"garbage")
    with served(models) as (server, client):
        assert version_of(client) == 1
        newest = client.status(MODEL)[0]
        assert newest.version == 2 and newest.state == 50 and newest.status.error_code != 0
        # once it is whole it is tried again
        shutil.rmtree(bad)
        shutil.copytree(models / MODEL / "1", bad)
        server.poll_once()
        assert version_of(client) == 2


def test_a_half_copied_version_is_served_when_it_is_whole(models):
    half = models / MODEL / "5"
    shutil.copytree(models / MODEL / "1", half)
    data = half / "variables" / "variables.data-00000-of-00001"
    whole = data.read_bytes()
    data.unlink()
    with served(models) as (server, client):
        assert version_of(client) == 1
        data.write_bytes(whole)
        server.poll_once()
        assert version_of(client) == 5


def test_what_is_no_version_is_left_alone(models):
    (models / MODEL / "notes").mkdir()
    (models / MODEL / ".7.draft-1").mkdir()
    (models / MODEL / "9").mkdir()
    (models / "empty").mkdir()
    (models / "file").write_text("x")
    with served(models) as (_, client):
        assert version_of(client) == 1
        assert len(client.status(MODEL)) == 1
        with pytest.raises(ModelNotFound):
            client.status("empty")


def test_one_bad_model_does_not_hold_up_the_others(models):
    bad = models / "AA1" / "1"
    bad.mkdir(parents=True)
    (bad / "saved_model.pb").write_bytes(b"")
    with served(models) as (_, client):
        assert version_of(client) == 1


def test_a_model_whose_folder_goes_away_is_dropped(models):
    with served(models) as (server, client):
        shutil.rmtree(models / MODEL)
        server.poll_once()
        server.poll_once()
        with pytest.raises(ModelNotFound):
            client.predict(MODEL, X)


def test_health_says_not_serving_before_the_drain(models):
    server = Server(ServerConfig(models, port=0))
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        stopper.join()


def test_sigterm_drains_and_ends_with_0(models):
    command = [sys.executable, "-m", "serving", "--models-dir", str(models), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().removeprefix("ready at ").strip()
        client = Client(address)
        assert client.predict(MODEL, X, timeout_s=5)["action"].shape == (1, 1)
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def kept_signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_wrong_settings_are_one_line_and_exit_code_2(models, capsys, tmp_path, kept_signals):
    city = ["--city", str(GRID / "city.toml")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for flags, told in (
            (["--models-dir", str(tmp_path / "none"), *city], "no such folder"),
            (["--models-dir", str(models), "--port", port, *city], "cannot listen on 127.0.0.1:"),
            (["--models-dir", str(models), "--port", "70000", *city], "must lie between"),
            (["--models-dir", str(models), "--poll-s", "90000", *city], "must be at most 86400"),
            (["--models-dir", str(models), "--model_base_path", str(models), *city], "both name the models"),
            (["--model_name", "x", *city], "--model_name needs --model_base_path"),
            (["--model_config_file", str(tmp_path / "none.config"), *city], "none.config: cannot be read"),
            (
                ["--enable_profiler=true", *city],
                "--enable_profiler is a flag of tensorflow_model_server that this server does not",
            ),
            (["--rest_api_port", "70000", *city], "--rest_api_port 70000 must lie between"),
            (["--models-dir", str(models), "--port=0", "--rest_api_port", port, *city], "choose another --rest_api_port"),
            (["--models-dir", str(models), "--port=9000", "--rest_api_port=9000", *city], "cannot be the same as --port"),
            (
                ["--models-dir", str(models), "--monitoring_config_file", "x", *city],
                "--monitoring_config_file needs --rest_api_port",
            ),
            (
                ["--models-dir", str(models), "--batching_parameters_file", "x", *city],
                "--batching_parameters_file is a flag of tensorflow_model_server that",
            ),
            (["--rest_api_timeout_in_ms=0", *city], "must lie between 1 and 86400000"),
            (["--enable_batching=true", *city], "this server does not batch"),
            (["--nonsense", *city], "unknown argument --nonsense"),
            (["--num_load_threads", "0", *city], "--num_load_threads 0 must lie between 1"),
            (["--city", str(tmp_path / "city.toml")], "no such file"),
        ):
            assert main(flags) == 2
            lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
            assert len(lines) == 1 and told in lines[0], lines


def test_a_version_number_that_is_none_of_tensorflow_servings_is_left_alone(models):
    shutil.copytree(models / MODEL / "1", models / MODEL / "20240101123045123456789")
    with served(models) as (_, client):
        assert version_of(client) == 1


def test_a_warm_up_file_that_is_garbage_holds_up_its_own_version_only(models):
    import tensorflow as tf

    bad = models / "AA1" / "1"
    shutil.copytree(models / MODEL / "1", bad)
    with tf.io.TFRecordWriter(str(bad / "assets.extra" / "tf_serving_warmup_requests")) as file:
        file.write(b"\xff\xff\xff\xff")
    with served(models) as (server, client):
        assert version_of(client) == 1
        assert client.status("AA1")[0].status.error_code != 0
        shutil.copytree(models / MODEL / "1", models / MODEL / "2")
        server.poll_once()
        assert version_of(client) == 2


def test_a_folder_that_cannot_be_listed_for_once_unloads_nothing(models, monkeypatch):
    with served(models) as (server, client):
        from serving.embedded.models import model_config

        def fails(_):
            raise OSError(24, "Too many open files")

        for module, name in ((version_files, "versions"), (model_config, "from_folder")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, fails)
                for _ in range(3):
                    with contextlib.suppress(OSError):
                        server.poll_once()
            assert version_of(client) == 1


def test_a_version_that_is_overwritten_is_loaded_again_and_never_away(models, grid_models):
    with served(models) as (server, client):
        before = client.predict(MODEL, np.ones(17, np.float32))["action"]
        home = models / MODEL
        (home / "1").rename(home / ".1.old")
        server.poll_once()
        assert version_of(client) == 1, "a look between the two renames drops nothing"
        from benchmarks.random_models import random_actor
        from export.contract import incomplete
        from export.saved_model import write

        (home / "1").mkdir()
        write.write(home / "1", random_actor(17, 1, 5, False), incomplete(MODEL, 17, "kc", 1))
        server.poll_once()
        assert version_of(client) == 1
        assert not np.array_equal(client.predict(MODEL, np.ones(17, np.float32))["action"], before)


def test_a_version_that_waits_for_its_turn_is_said_to_start(models):
    from serving.embedded.models.manager import ModelManager
    from serving.embedded.models.model_config import ModelConfig
    from serving.embedded.models.version_policy import VersionPolicy

    for version in ("2", "3"):
        shutil.copytree(models / MODEL / "1", models / MODEL / version)
    seen = []

    def load(path):
        seen.append({version: status.state for version, status in manager._models[MODEL].states.items()})
        return object()

    manager = ModelManager(load, ValueError, threading.Event())
    manager.follow({MODEL: ModelConfig(MODEL, models / MODEL, VersionPolicy(latest=None))}, 0.0)
    manager.close()
    # START 10, LOADING 20, AVAILABLE 30, the newest first
    assert seen == [{1: 10, 2: 10, 3: 20}, {1: 10, 2: 20, 3: 30}, {1: 20, 2: 30, 3: 30}]


def test_a_reload_to_a_folder_whose_version_cannot_be_loaded_is_refused(models, tmp_path):
    from serving.embedded.models.model_config import ModelConfig
    from serving.embedded.status import StatusError

    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "1").mkdir(parents=True)
    (elsewhere / "1" / "saved_model.pb").write_bytes(b"garbage")
    with served(models) as (server, client):
        with pytest.raises(StatusError, match=r"1 servable\(s\) did not become available: {SA103}"):
            server.reconfigure({MODEL: ModelConfig(MODEL, elsewhere)})
        assert version_of(client) == 1
        status = client.status(MODEL)[0]
        assert status.state == 30, "what answers is available, whatever became of the other folder"


def test_a_model_that_moves_to_an_equal_folder_is_served_from_there(models, tmp_path):
    from serving.embedded.models.model_config import ModelConfig

    shutil.copytree(models / MODEL, tmp_path / "copy")
    with served(models) as (server, client):
        before = server.manager._models[MODEL].served[1]
        server.reconfigure({MODEL: ModelConfig(MODEL, tmp_path / "copy")})
        assert version_of(client) == 1 and server.manager._models[MODEL].served[1] is not before
