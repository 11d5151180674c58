"""Logs of Predict requests: TensorFlow Serving's PredictionLog records, written beside the requests."""

import errno
import json
import os
import shutil
import threading
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as wire
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.prediction_log import log_files, prediction_log
from serving.embedded.prediction_log.log_files import LogFiles
from serving.embedded.prediction_log.logging_config import LoggingConfig
from serving.embedded.prediction_log.prediction_log import PredictionLog
from serving.embedded.telemetry.metrics import ServerMetrics
from serving.tensors import to_array, to_proto
from tests.serving.conftest import running

MODEL = "SA103"
NOW = 1_764_000_000.0
OBSERVATION = np.linspace(0, 1, 17, dtype=np.float32)[np.newaxis]


def logged(path):
    """The records of a file, as tensorflow-serving-api's messages."""
    return [prediction_log_pb2.PredictionLog.FromString(data) for data in tf.compat.v1.io.tf_record_iterator(str(path))]


def records(root):
    """The records of all files of a folder."""
    return [record for path in sorted(root.rglob("*.tfrecord")) for record in logged(path)]


def request():
    message = wire.PredictRequest(model_spec=wire.ModelSpec(name=MODEL, signature_name="serving_default"))
    to_proto(OBSERVATION, message.inputs["observation"])
    return message


def predict(server, message):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        data = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(
            message.SerializeToString(), timeout=20
        )
    return wire.PredictResponse.FromString(data)


def reload(server, models, prefix=None):
    message = config_pb.ReloadConfigRequest()
    entry = message.config.model_config_list.config.add(
        name=MODEL, base_path=str(models / MODEL), model_platform="tensorflow"
    )
    if prefix is not None:
        entry.logging_config.log_collector_config.filename_prefix = str(prefix)
        entry.logging_config.sampling_config.sampling_rate = 1
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")(
            message.SerializeToString(), timeout=20
        )


@pytest.fixture
def models(grid_models, tmp_path):
    shutil.copytree(grid_models / MODEL, tmp_path / "models" / MODEL)
    return tmp_path / "models"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def config(models, root, **settings):
    configs = {MODEL: ModelConfig(MODEL, models / MODEL, logging=LoggingConfig(Path("tl/SA103"), 1.0))}
    return ServerConfig(models=configs, port=0, poll_s=3600, logs_root=root, **settings)


def test_requests_and_responses_are_logged_as_tensorflow_servings_messages(models, root):
    with running(config(models, root)) as server:
        sent = request()
        response = predict(server, sent)
        with pytest.raises(grpc.RpcError):
            predict(server, wire.PredictRequest(model_spec=wire.ModelSpec(name=MODEL)))
    (path,) = (path for path in root.rglob("*") if path.is_file())
    assert path.parent == root / "tl" and path.name.startswith("SA103-2") and path.suffix == ".tfrecord"
    (record,) = logged(path)  # a failed request is not logged
    assert record.predict_log.request.SerializeToString(deterministic=True) == sent.SerializeToString(
        deterministic=True
    )
    assert record.predict_log.response.SerializeToString(deterministic=True) == response.SerializeToString(
        deterministic=True
    )
    metadata = record.log_metadata
    assert (metadata.model_spec.name, metadata.model_spec.version.value) == (MODEL, 1)
    assert metadata.model_spec.signature_name == "serving_default" and list(metadata.saved_model_tags) == ["serve"]
    assert metadata.sampling_config.sampling_rate == 1 and metadata.timestamp_secs > NOW
    assert server.metrics.totals(["serving_prediction_logs_total"]) == {"serving_prediction_logs_total": 1}


def test_rest_requests_are_logged_as_the_same_request_over_grpc(models, root):
    with running(config(models, root, rest=RestConfig(0))) as server:
        body = json.dumps({"instances": OBSERVATION.tolist()}).encode()
        url = f"http://127.0.0.1:{server.rest_port}/v1/models/{MODEL}/versions/1:predict"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
            answered = json.load(answer)["predictions"]
        same = predict(server, request())
    by_rest, by_grpc = (record.predict_log for record in records(root))
    assert (
        by_rest.request.model_spec.version.value == 1 and by_rest.request.model_spec.signature_name == "serving_default"
    )
    assert np.array_equal(to_array(by_rest.request.inputs["observation"]), OBSERVATION)
    assert by_rest.response.SerializeToString(deterministic=True) == same.SerializeToString(deterministic=True)
    assert by_grpc.response == by_rest.response and len(answered) == 1


def test_log_is_a_file_of_warm_up_records(models, root):
    with running(config(models, root)) as server:
        predict(server, request())
    (path,) = root.rglob("*.tfrecord")
    for name in ("valid", "invalid"):
        shutil.copytree(models / MODEL, models / name)
        shutil.copy(path, models / name / "1" / "assets.extra" / "tf_serving_warmup_requests")
    invalid = request()
    to_proto(np.zeros((1, 3), np.float32), invalid.inputs["observation"])
    with tf.io.TFRecordWriter(str(models / "invalid" / "1" / "assets.extra" / "tf_serving_warmup_requests")) as file:
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.ParseFromString(invalid.SerializeToString())
        file.write(log.SerializeToString())
    with running(ServerConfig(models, port=0, poll_s=3600)) as server:
        assert server.manager.served().keys() == {MODEL, "valid"}, "the records are run, so those of another size fail"


def test_reload_begins_and_ends_logging_below_the_folder_only(models, root):
    with running(ServerConfig(models, port=0, poll_s=3600, logs_root=root)) as server:
        predict(server, request())
        for prefix in (models / MODEL / "log", "../log"):
            with pytest.raises(grpc.RpcError, match="lies outside of --logs_root") as refused:
                reload(server, models, prefix)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        predict(server, request())
        reload(server, models, "a")
        predict(server, request())
        reload(server, models)
        predict(server, request())
    assert len(records(root)) == 1 and not (models / MODEL / "log").exists()


def test_reload_cannot_log_without_a_folder_for_the_logs(models):
    with running(ServerConfig(models, port=0, poll_s=3600)) as server:
        with pytest.raises(grpc.RpcError, match="start the server with --logs_root DIR"):
            reload(server, models, "a")
        assert predict(server, request()).outputs and server.manager.served() == {MODEL: [1]}


def test_changed_logging_config_of_the_file_takes_effect(models, root):
    file = models.parent / "models.config"
    text = (
        f'model_config_list {{ config {{ name: "{MODEL}" base_path: "{models / MODEL}" model_platform: "tensorflow" '
        'logging_config { log_collector_config { filename_prefix: "a" } sampling_config { sampling_rate: 0 } } } }'
    )
    file.write_text(text)
    settings = {"model_config_file": file, "config_poll_s": 3600, "models": {}}
    with running(ServerConfig(port=0, poll_s=3600, logs_root=root, **settings)) as server:
        server.read_config(file)
        predict(server, request())
        file.write_text(text.replace("sampling_rate: 0", "sampling_rate: 1"))
        server.read_config(file)
        predict(server, request())
    assert len(records(root)) == 1


def log_of(root, metrics=None, **settings):
    return PredictionLog(root, 1 << 30, metrics or ServerMetrics(), lambda: NOW, **settings)


def counts(metrics):
    """Prediction logs by outcome."""
    return {
        sample.labels["status"]: int(sample.value)
        for metric in metrics.collect()
        for sample in metric.samples
        if sample.name == "serving_prediction_logs_total"
    }


def test_share_of_the_requests_is_logged(root):
    draws = iter([0.0, 0.24999, 0.25, 0.99999] * 2)
    log = log_of(root, draw=lambda: next(draws))
    log.configure({"some": LoggingConfig(Path("a"), 0.25), "none": LoggingConfig(Path("a"), 0.0)})
    assert [log.sample("some") is not None for _ in range(4)] == [True, True, False, False]
    assert not any(log.sample("none") for _ in range(4)) and log.sample("other") is None
    log.configure({})
    assert log.sample("some") is None
    log.close()


def test_full_queue_drops_logs_and_counts_them_in_one_line(root, monkeypatch, caplog):
    metrics = ServerMetrics()
    log, entry = log_of(root, metrics), LoggingConfig(Path("a"), 1.0)
    size = len(log._record(entry, request(), wire.PredictResponse()))
    monkeypatch.setattr(prediction_log, "MAX_QUEUED_BYTES", 3 * size)
    for _ in range(5):
        log.add(entry, request(), wire.PredictResponse())
    log.flush()
    assert counts(metrics) == {"written": 3, "dropped": 2, "failed": 0} and len(records(root)) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    log.add(entry, request(), wire.PredictResponse())
    log.flush()
    assert len(records(root)) == 4, "the queue has room again"


def test_slow_disk_does_not_delay_requests(root, monkeypatch):
    begun, released = threading.Event(), threading.Event()
    write = os.write

    def blocked(descriptor, data):
        begun.set()
        assert released.wait(20)
        return write(descriptor, data)

    monkeypatch.setattr(log_files.os, "write", blocked)
    log, entry = log_of(root), LoggingConfig(Path("a"), 1.0)
    writer = threading.Thread(target=log.flush)
    log.add(entry, request(), wire.PredictResponse())
    writer.start()
    assert begun.wait(20)
    log.add(entry, request(), wire.PredictResponse())  # would block here if it waited for the disk
    released.set()
    writer.join()
    log.flush()
    assert len(records(root)) == 2


def test_full_disk_is_one_line_and_leaves_whole_records(root, monkeypatch, caplog):
    metrics = ServerMetrics()
    log, entry, write = log_of(root, metrics), LoggingConfig(Path("a"), 1.0), os.write
    log.add(entry, request(), wire.PredictResponse())
    log.flush()
    calls = []

    def full(descriptor, data):
        calls.append(len(data))
        if len(calls) % 2:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_files.os, "write", full)
        for _ in range(3):
            log.add(entry, request(), wire.PredictResponse())
            log.flush()
    assert calls and len(records(root)) == 1, "no part of a record stays"
    log.add(entry, request(), wire.PredictResponse())
    log.flush()
    assert counts(metrics) == {"written": 2, "dropped": 0, "failed": 3} and len(records(root)) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "No space left on device" in errors[0] and str(root) in errors[0]


def test_predict_does_not_fail_without_the_folder(models, root, caplog):
    with running(config(models, root)) as server:
        shutil.rmtree(root)
        assert predict(server, request()).outputs
        server._prediction_log.flush()
        assert counts(server.metrics)["failed"] == 1 and not root.exists()
        root.mkdir()
        predict(server, request())
    assert len(records(root)) == 1
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1


def test_links_and_devices_in_the_folder_are_not_written(root):
    files, target = LogFiles(root, 1 << 30, lambda: NOW), root.parent / "target"
    target.write_bytes(b"x")
    (path,) = [files.append(Path("a"), b"1") or next(root.iterdir())]
    path.unlink()
    path.symlink_to(target)
    files.append(Path("a"), b"2")
    other = root / path.name.replace("-0000", "-0001")
    other.unlink()
    os.mkfifo(other)
    files.append(Path("a"), b"3")
    assert target.read_bytes() == b"x"
    assert (root / path.name.replace("-0000", "-0002")).read_bytes() == b"3"


def test_new_file_begins_when_one_is_full_or_moved(root, monkeypatch):
    monkeypatch.setattr(log_files, "MAX_FILE_BYTES", 100)
    files = LogFiles(root, 1 << 30, lambda: NOW)
    for _ in range(3):
        files.append(Path("a"), b"x" * 60)
    first, second = sorted(root.iterdir())
    assert (first.name, first.stat().st_size, second.stat().st_size) == ("a-20251124T160000Z-0000.tfrecord", 120, 60)
    second.rename(root.parent / "moved")
    files.append(Path("a"), b"y")
    assert len(list(root.iterdir())) == 2 and (root.parent / "moved").read_bytes() == b"x" * 60


def test_oldest_files_are_deleted_before_the_limit_is_exceeded(root):
    other = root / "notes.tfrecord"
    other.write_bytes(b"x" * 5000)
    clock = iter(range(1000))
    files = LogFiles(root, 1000, lambda: NOW + next(clock))
    for k in range(30):
        files.append(Path(f"tl/{k}"), b"x" * 100)
        os.utime(next(root.glob(f"tl/{k}-*")), ns=(k, k))
        assert sum(path.stat().st_size for path in root.glob("tl/*")) <= 1000
    assert {path.name.partition("-")[0] for path in root.glob("tl/*")} >= {"28", "29"}
    assert other.stat().st_size == 5000, "only log files are counted and deleted"
    with pytest.raises(OSError, match="--logs_max_mb"):
        files.append(Path("a"), b"x" * 1001)


def test_two_servers_do_not_write_one_file(root):
    for _ in range(2):
        LogFiles(root, 1 << 30, lambda: NOW).append(Path("a"), b"x")
    assert [path.read_bytes() for path in root.iterdir()] == [b"x", b"x"]
