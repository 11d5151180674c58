"""The embedded server: start, new and invalid versions, drain."""

import contextlib
import re
import shutil
import signal
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.random_models import random_actor
from export.saved_model import write
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as pb
from serving.client import Client
from serving.embedded.__main__ import main
from serving.embedded.config import ServerConfig
from serving.embedded.models import model_config, version_files
from serving.embedded.models.manager import ModelManager
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import VersionPolicy
from serving.embedded.server import MAX_WARM_UP_RECORDS, Server
from serving.errors import ModelNotFound, ServingError
from signals.contract import incomplete
from tests.conftest import GRID
from tests.end_to_end.programs import program
from tests.serving import saved_models
from tests.serving.conftest import connected
from tests.serving.gates import repeated

X = np.zeros(17, np.float32)
MODEL = "SA103"
OWN_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (INFO|WARNING) ")


def served(folder):
    """(server, client); the test calls poll_once, no timer does."""
    return connected(ServerConfig(folder, port=0, poll_s=3600))


@contextlib.contextmanager
def server_process(models, *flags):
    with program("serving", "--models-dir", str(models), "--port", "0", *flags) as process:
        yield process, process.stdout.readline().removeprefix("ready at ").strip()


@pytest.fixture
def models(tmp_path, grid_models):
    shutil.copytree(grid_models / MODEL, tmp_path / "models" / MODEL)
    return tmp_path / "models"


def version_of(client):
    return client.predict_many({MODEL: X}, timeout_s=5)[MODEL].version


def test_a_new_version_is_loaded_and_the_old_one_unloaded(models):
    with served(models) as (server, client):
        assert version_of(client) == 1
        shutil.copytree(models / MODEL / "1", models / MODEL / "4")
        server.poll_once()
        assert version_of(client) == 4
        assert [(s.version, s.state) for s in client.status(MODEL)] == [(4, 30), (1, 50)]


def test_no_call_fails_while_versions_change(models):
    with served(models) as (server, client):
        with repeated(lambda: version_of(client)) as versions:
            for version in range(2, 8):
                draft = models / MODEL / f".{version}"
                shutil.copytree(models / MODEL / "1", draft)
                draft.rename(models / MODEL / str(version))
                server.poll_once()
        assert version_of(client) == 7 and versions == sorted(versions)


@pytest.mark.parametrize(
    "name", ["variables/variables.data-00000-of-00001", "variables/variables.index", "saved_model.pb"]
)
def test_a_half_copied_version_is_served_when_it_is_complete(models, name):
    half = models / MODEL / "5"
    shutil.copytree(models / MODEL / "1", half)
    part = half / name
    content = part.read_bytes()
    part.unlink()
    with served(models) as (server, client):
        assert version_of(client) == 1
        for size in (0, len(content) // 2, len(content) - 1):
            part.write_bytes(content[:size])
            server.poll_once()
            assert version_of(client) == 1
            newest = client.status(MODEL)[0]
            assert (newest.version, newest.state) == (5, 50) and newest.status.error_code != 0
        part.write_bytes(content)
        server.poll_once()
        assert version_of(client) == 5
        # files that are overwritten in place take nothing away either
        part.write_bytes(b"")
        server.poll_once()
        assert version_of(client) == 5


def test_folders_that_are_not_versions_are_ignored(models):
    shutil.copytree(models / MODEL / "1", models / MODEL / "20240101123045123456789")  # beyond int64
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


def test_a_model_whose_folder_is_removed_is_unloaded(models):
    with served(models) as (server, client):
        shutil.rmtree(models / MODEL)
        server.poll_once()
        server.poll_once()
        with pytest.raises(ModelNotFound):
            client.predict(MODEL, X)


def test_health_is_not_serving_while_the_server_drains(models):
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


def test_sigterm_drains_and_exits_with_0_and_only_log_lines(models):
    with server_process(models) as (process, address):
        with Client(address) as client:
            assert client.predict(MODEL, X, timeout_s=5)["action"].shape == (1, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        for line in process.stderr.read().splitlines():
            assert OWN_LOG_LINE.match(line), f"{line!r} is a note of TensorFlow, or a traceback"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--models-dir", "none"], "none: no such folder"),
        (["--models-dir", ".", "--port=9000", "--rest_api_port=9000"], "cannot be the same as --port"),
        (["--models-dir", ".", "--model_base_path", "/"], "both name the models"),
        (["--models-dir", ".", "--monitoring_config_file", "x"], "--monitoring_config_file needs --rest_api_port"),
        (["--models-dir", ".", "--models_root", "none"], "--models_root none: no such folder"),
        (["--model_name", "x"], "--model_name needs --model_base_path"),
        (["--model_base_path=models/x"], "must be an absolute path"),
        (["--model_config_file", "none.config"], "none.config: cannot be read"),
        (["--city", "none.toml"], "no such file"),
        (["--enable_model_warmup=maybe"], "'maybe' must be true or false"),
        (["--port", "70000"], "--port 70000 must lie between 0 and 65535"),
        (["--rest_api_port", "70000"], "--rest_api_port 70000 must lie between"),
        (["--poll-s", "90000"], "--file_system_poll_wait_seconds 90000.0 must lie between -86400 and 86400"),
        (["--poll-s", "nan"], "must lie between"),
        (["--rest_api_timeout_in_ms=86400001"], "must lie between"),
        (["--load_retry_interval_micros=86400000001"], "must lie between"),
        (["--num_load_threads=-1"], "--num_load_threads -1 must lie between 0"),
        (["--rest_api_max_body_bytes=0"], "must lie between 1 and 67108864"),
        (["--rest_api_max_body_bytes=67108865"], "must lie between 1 and 67108864"),
        (["--grpc_max_message_mb=0"], "must lie between 1 and 2048"),
        (["--grpc_max_message_mb=2049"], "must lie between 1 and 2048"),
        (["--enable_profiler=false"], "--enable_profiler=false is not a flag of this server; python -m serving --help"),
        (["--enable_batching"], "--enable_batching is not a flag of this server"),
        (["--rest_api_p=1"], "--rest_api_p=1 is not a flag of this server"),
        (["nonsense"], "nonsense is not a flag of this server"),
    ],
)
def test_wrong_flags_give_one_error_line_and_exit_code_2(flags, part, monkeypatch, capsys, in_tmp_path):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("city.logs.configure", lambda *_: None)
    assert main(flags if "--city" in flags else [*flags, "--city", str(GRID / "city.toml")]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and part in lines[0], lines


def test_an_invalid_warm_up_file_fails_its_own_version_only_and_a_record_may_leave_out_its_model(models):
    record = pb.PredictionLog()
    tensor = record.predict_log.request.inputs["observation"]
    tensor.dtype = 1
    for size in (1, 17):
        tensor.tensor_shape.dim.add(size=size)
    good, empty = record.SerializeToString(), pb.PredictionLog().SerializeToString()
    tensor.tensor_shape.dim[1].size = 2
    for tl, records in (
        ("AA1", [b"\xff\xff\xff\xff"]),
        ("AA2", [good, empty]),
        ("AA4", [record.SerializeToString()]),
        ("AA5", [empty] * (MAX_WARM_UP_RECORDS + 1)),
    ):
        shutil.copytree(models / MODEL / "1", models / tl / "1")
        with tf.io.TFRecordWriter(str(models / tl / "1" / "assets.extra" / "tf_serving_warmup_requests")) as file:
            for each in records:
                file.write(each)
    shutil.copytree(models / "AA2" / "1", models / "AA3" / "1")
    with (models / "AA3" / "1" / "assets.extra" / "tf_serving_warmup_requests").open("r+b") as file:
        file.truncate(len(good))
    with served(models) as (server, client):
        assert version_of(client) == 1
        assert server.manager.served() == {MODEL: [1], "AA2": [1]}
        errors = {tl: client.status(tl)[0].status.error_message for tl in ("AA1", "AA3", "AA4", "AA5")}
        assert "a warm-up record failed" in errors["AA1"] and "truncated; export the model again" in errors["AA3"]
        assert "a warm-up record failed" in errors["AA4"] and "more than 1000 warm-up records" in errors["AA5"]


def test_a_folder_that_cannot_be_listed_unloads_nothing(models, monkeypatch, caplog):
    with served(models) as (server, client):

        def fails(_):
            raise OSError(24, "Too many open files")

        for module, name in ((version_files, "versions"), (model_config, "from_folder")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, fails)
                for _ in range(3):
                    with contextlib.suppress(OSError):
                        server.poll_once()
            assert version_of(client) == 1
    lines = [record for record in caplog.records if "cannot be listed" in record.getMessage()]
    assert len(lines) == 1 and lines[0].exc_info is None, "the model's folder is logged once, not at every poll"


def test_an_overwritten_version_is_reloaded_without_a_gap(models, grid_models):
    with served(models) as (server, client):
        before = client.predict(MODEL, np.ones(17, np.float32))["action"]
        folder = models / MODEL
        (folder / "1").rename(folder / ".1.old")
        server.poll_once()
        assert version_of(client) == 1, "a poll between the two renames unloads nothing"
        (folder / "1").mkdir()
        write.write(folder / "1", random_actor(17, 1, 5, False), incomplete(MODEL, 17, "kc", 1))
        server.poll_once()
        assert version_of(client) == 1
        assert not np.array_equal(client.predict(MODEL, np.ones(17, np.float32))["action"], before)


def test_a_version_that_waits_to_be_loaded_is_in_state_start(models):
    for version in ("2", "3"):
        shutil.copytree(models / MODEL / "1", models / MODEL / version)
    seen = []

    def load(_name, path):
        seen.append({status.version: status.state for status in manager.states(wire.ModelSpec(name=MODEL))})
        return object()

    manager = ModelManager(load, threading.Event())
    manager.apply({MODEL: ModelConfig(MODEL, models / MODEL, VersionPolicy(latest=None))}, 0.0)
    manager.close()
    # START 10, LOADING 20, AVAILABLE 30, the newest first
    assert seen == [{1: 10, 2: 10, 3: 20}, {1: 10, 2: 20, 3: 30}, {1: 20, 2: 30, 3: 30}]


def test_a_model_moved_to_an_equal_folder_is_loaded_from_there(models, tmp_path):
    shutil.copytree(models / MODEL, tmp_path / "copy")
    with served(models) as (server, client):
        _, before = server.manager.find(wire.ModelSpec(name=MODEL))
        server.reconfigure({MODEL: ModelConfig(MODEL, tmp_path / "copy")})
        assert version_of(client) == 1 and server.manager.find(wire.ModelSpec(name=MODEL))[1] is not before


@pytest.mark.slow
def test_sigterm_exits_with_0_while_a_run_outlasts_the_drain(tmp_path):
    saved_models.write_slow(tmp_path / "models" / "SLOW" / "1", 600)
    city = tmp_path / "city.toml"
    city.write_text("")
    with (
        server_process(tmp_path / "models", "--city", str(city)) as (process, address),
        Client(address, retries=0) as client,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(client.run, "SLOW", {"x": np.ones((1, 1), np.float32)}, timeout_s=60)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert isinstance(call.exception(60), ServingError), "the run must outlast the drain"
