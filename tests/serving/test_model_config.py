"""Model configs: several models, version policies, labels, reload and polling, through tensorflow-serving-api."""

import contextlib
import math
import shutil
import threading
from concurrent import futures
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import text_format, wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from city.errors import InputError
from protos import model_server_config_pb2 as pb
from protos import predict_pb2 as wire
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.flags import parse
from serving.embedded.models import model_config
from serving.embedded.models.manager import LoadOptions, ModelManager
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.servable import LoadError
from serving.embedded.models.version_policy import VersionPolicy
from serving.embedded.rpc.handle_reload_config_request import common_folder
from serving.tensors import to_proto
from tests.conftest import GRID
from tests.serving.conftest import running
from tests.serving.gates import Gate, repeated
from tests.serving.saved_models import write_garbage

MODEL = "SA103"
X = np.zeros((1, 17), np.float32)


@pytest.fixture
def models(grid_models, tmp_path):
    """Versions 1 to 4 of one model, and another model."""
    for version in (1, 2, 3, 4):
        shutil.copytree(grid_models / MODEL / "1", tmp_path / "m" / "first" / str(version))
    shutil.copytree(grid_models / MODEL / "1", tmp_path / "m" / "second" / "7")
    return tmp_path / "m"


def text(models, *entries):
    """A ModelServerConfig as text; entries: (name, folder, further fields)."""
    configs = "".join(
        f'config {{ name: "{name}" base_path: "{models / folder}" model_platform: "tensorflow" {more} }}\n'
        for name, folder, more in entries
    )
    return f"model_config_list {{ {configs} }}"


def versions(*numbers, **labels):
    """The fields of an entry that serves these versions, with labels."""
    listed = " ".join(f"versions: {number}" for number in numbers)
    labelled = " ".join(f'version_labels {{ key: "{key}" value: {number} }}' for key, number in labels.items())
    return f"model_version_policy {{ specific {{ {listed} }} }} {labelled}"


@contextlib.contextmanager
def served(folder, /, *entries, **settings):
    """The API of a server of these entries: (name, folder, further fields); without entries, of the settings alone."""
    if entries:
        config = text_format.Parse(text(folder, *entries), pb.ModelServerConfig())
        settings["models"] = model_config.from_proto(config.model_config_list)
    with (
        running(ServerConfig(port=0, poll_s=3600, **settings)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Api(folder, server, channel)


def spec_of(name, version, label):
    number = version and wrappers_pb2.Int64Value(value=version)
    return model_pb2.ModelSpec(name=name, version=number, version_label=label)


class Api:
    """A server, and stubs of tensorflow-serving-api for it."""

    def __init__(self, models, server, channel):
        self.models, self.server, self.channel = models, server, channel
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.service = model_service_pb2_grpc.ModelServiceStub(channel)

    def version(self, name, version=None, label=None):
        """The version that answers Predict; the grpc.StatusCode if the call fails."""
        request = predict_pb2.PredictRequest(model_spec=spec_of(name, version, label))
        to_proto(X, request.inputs["observation"])
        try:
            return self.prediction.Predict(request, timeout=10).model_spec.version.value
        except grpc.RpcError as error:
            return error.code()

    def states(self, name, label=None):
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec_of(name, None, label))
        return self.service.GetModelStatus(request, timeout=10).model_version_status

    def reload(self, *entries, config=None, timeout_s=60):
        """(code, details) of a reload of entries that fails; None: it succeeded."""
        request = model_management_pb2.ReloadConfigRequest()
        text_format.Parse(text(self.models, *entries) if config is None else config, request.config)
        try:
            assert self.service.HandleReloadConfigRequest(request, timeout=timeout_s).status.error_code == 0
        except grpc.RpcError as error:
            return error.code(), error.details()
        return None


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [
        ("", {4}),
        ("model_version_policy { latest { num_versions: 2 } }", {3, 4}),
        ("model_version_policy { latest {} }", {4}),
        ("model_version_policy { all {} }", {1, 2, 3, 4}),
        ("model_version_policy { specific { versions: 2 versions: 1 } }", {1, 2}),
        ("model_version_policy { specific { versions: 9 } }", set()),
    ],
)
def test_the_version_policy_decides_which_versions_are_served(models, policy, numbers):
    with served(models, ("a", "first", policy)) as api:
        assert {version for version in range(1, 5) if api.version("a", version=version) == version} == numbers
        assert api.version("a") == (max(numbers) if numbers else grpc.StatusCode.NOT_FOUND)


def test_models_have_the_names_of_the_config(models):
    all_versions = 'model_version_policy { all {} } version_labels { key: "stable" value: 3 }'
    with served(models, ("a", "first", all_versions), ("b", "second", ""), ("c", "missing", "")) as api:
        listed = [state.version for state in api.states("a", "stable")]
        assert listed == [4, 3, 2, 1], "TensorFlow Serving ignores the label here"
        assert (api.version("a"), api.version("b")) == (4, 7)
        assert api.version("c") == grpc.StatusCode.NOT_FOUND, "an empty model does not affect the others"
        assert api.version("first") == grpc.StatusCode.NOT_FOUND


def test_label_selects_a_version_and_moves_only_to_one_that_is_loaded_before(models):
    """As TensorFlow Serving documents it: first a config with both versions, then one that moves the label."""
    moved_too_early = "Request to assign label to version {} of model a, which is not currently available for inference"
    with served(models, ("a", "first", versions(3))) as api:
        for fields, refused, stable in (
            (versions(3, stable=3), None, 3),
            (versions(4, stable=4), moved_too_early.format(4), 3),  # a refused config changes nothing
            (versions(3, 4, stable=3), None, 3),
            (versions(3, 4, stable=4, canary=3), None, 4),
            (versions(3, 4, stable=1), moved_too_early.format(1), 4),
            (versions(4, stable=4), None, 4),
        ):
            expected = refused and (grpc.StatusCode.FAILED_PRECONDITION, refused)
            assert api.reload(("a", "first", fields)) == expected
            assert api.version("a", label="stable") == stable
            canary = 3 if "canary" in fields or (refused and stable == 4) else grpc.StatusCode.INVALID_ARGUMENT
            assert api.version("a", label="canary") == canary
        assert api.version("a", version=3) == grpc.StatusCode.NOT_FOUND
    for is_allowed in (True, False):
        loading = LoadOptions(allow_labels_for_unavailable=is_allowed)
        with served(models, ("a", "first", versions(3)), loading=loading) as api:
            assert (api.reload(("a", "first", versions(3, stable=9))) is None) == is_allowed


@pytest.mark.parametrize("entries", [[("first", "first", "")], []], ids=["models", "models_dir"])
def test_a_reload_replaces_the_whole_configuration(models, entries):
    with served(models, *entries, models_dir=None if entries else models) as api:
        assert api.version("first") == 4
        assert api.reload(("b", "second", "")) is None
        for _ in range(2):
            assert (api.version("first"), api.version("b")) == (grpc.StatusCode.NOT_FOUND, 7)
            api.server.poll_once()  # a later poll does not undo it


def test_a_reload_with_one_invalid_model_changes_nothing(models, caplog):
    write_garbage(models / "broken" / "4")
    no_version = "1 model(s) did not become available: {{{name: %s} has no version to serve}, }"
    not_loaded = "1 model(s) did not become available: {{{name: %s version: 4} due to error: UNKNOWN: "
    logging = 'logging_config { log_collector_config { filename_prefix: "a" } }'
    with served(models, ("a", "first", "")) as api:
        caplog.set_level("INFO", "serving")
        for entries, code, message in (
            ([("a", "missing", "")], grpc.StatusCode.UNKNOWN, no_version % "a"),
            ([("b", "second", ""), ("c", "broken", "")], grpc.StatusCode.UNKNOWN, not_loaded % "c"),
            ([("a", "broken", "")], grpc.StatusCode.UNKNOWN, not_loaded % "a"),
            ([("c", "missing", "")], grpc.StatusCode.UNKNOWN, no_version % "c"),
            (
                [("b", "second", ""), ("b", "first", "")],
                grpc.StatusCode.INVALID_ARGUMENT,
                "Illegal to list model b multiple times in config list",
            ),
            ([("", "first", "")], grpc.StatusCode.INVALID_ARGUMENT, "has no name"),
            ([("a", "second", logging)], grpc.StatusCode.INVALID_ARGUMENT, "model a: this server logs no requests"),
            ([("b", "/x" * 3000, "")], grpc.StatusCode.INVALID_ARGUMENT, "model b: "),
            ([("b", "/x\\000y", "")], grpc.StatusCode.INVALID_ARGUMENT, "model b: "),
        ):
            found, details = api.reload(*entries)
            assert found == code and message in details and "\n" not in details
            assert api.version("a") == 4 and api.version("b") == grpc.StatusCode.NOT_FOUND
            assert [state.state for state in api.states("a")] == [get_model_status_pb2.ModelVersionStatus.AVAILABLE]
        assert "unloaded model=a" not in caplog.text, "not even for a moment"
        assert api.reload(config="") == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently "
            "supported",
        )
        (state,) = api.states("c")
        assert (state.version, state.state, state.status.error_code) == (4, 50, 2) and state.status.error_message


def test_a_reload_tells_by_how_much_metrics_grew(models):
    with served(models, ("a", "first", "")) as api:
        request = model_management_pb2.ReloadConfigRequest(
            metric_names=["serving_model_loads_total", "/tensorflow/serving/request_count", "unknown"]
        )
        text_format.Parse(text(models, ("a", "first", ""), ("b", "second", "")), request.config)
        assert api.version("a") == 4
        metrics = api.service.HandleReloadConfigRequest(request, timeout=60).metric
        assert {metric.name: metric.int64_value_increase for metric in metrics} == {
            "serving_model_loads_total": 1, "/tensorflow/serving/request_count": 0, "unknown": 0,
        }  # fmt: skip


def test_no_call_fails_while_configs_are_reloaded(models):
    with served(models, ("a", "first", "")) as api:
        policies = ("model_version_policy { all {} }", "model_version_policy { specific { versions: 1 } }", "")
        with repeated(lambda: api.version("a")) as seen:
            for policy in policies * 2:
                assert api.reload(("a", "first", policy)) is None
        assert set(seen) == {1, 4}


def test_a_changed_config_file_is_applied_and_an_invalid_one_is_not(models, tmp_path, caplog):
    path = tmp_path / "models.config"
    path.write_text(text(models, ("a", "first", "")))
    with served(models, models=model_config.from_file(path), model_config_file=path) as api:
        path.write_text("model_config_list { config { name: ")
        api.server.read_config(path)
        assert api.version("a") == 4 and "the configuration is unchanged" in caplog.text
        path.write_text(text(models, ("b", "second", "")))
        api.server.read_config(path)
        assert (api.version("a"), api.version("b")) == (grpc.StatusCode.NOT_FOUND, 7)


MODEL_A = "name: 'a' base_path: '/m' model_platform: 'tensorflow'"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("model_config_list { config { name: 'a' base_path: '/m' } }", "model_platform '' must be 'tensorflow'"),
        (f"model_config_list {{ config {{ {MODEL_A} model_type: TENSORFLOW }} }}", "without model_type"),
        ("model_config_list { config { name: 'a' base_path: '/m' model_type: OTHER } }", "without model_type"),
        ("model_config_list { config { name: 'a' base_path: '/m' model_platform: 'torch' } }", "model_platform 'torch' must be"),
        ("model_config_list { config { name: 'a' model_platform: 'tensorflow' } }", "base_path()="),
        (f"model_config_list {{ config {{ {MODEL_A.replace('/m', 'x/y')} }} }}", "base_path()=x/y"),
        (f"model_config_list {{ config {{ {MODEL_A.replace('/m', 's3://x')} }} }}", "this server reads local folders only"),
        ("model_config_list { config { base_path: '/m' model_platform: 'tensorflow' } }", "has no name"),
        ("model_config_list { config { nonsense: 1 } }", 'tensorflow.serving.ModelConfig" has no field named "nonsense"'),
        ("custom_model_config { }", "custom_model_config is not supported"),
        (f"model_config_list {{ config {{ {MODEL_A} model_version_policy {{ specific {{}} }} }} }}", "has no versions"),
        (f"model_config_list {{ config {{ {MODEL_A} logging_config {{ }} }} }}", "greenserve control --record"),
    ],
)  # fmt: skip
def test_an_invalid_config_file_gives_one_error_line(tmp_path, body, part):
    path = tmp_path / "models.config"
    path.write_text(body)
    with pytest.raises(InputError) as error:
        model_config.from_file(path)
    assert part in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("error", [LoadError("not yet"), RuntimeError("unexpected")])
def test_a_failed_version_is_retried_as_the_flags_say(tmp_path, error):
    file = write_garbage(tmp_path / "a" / "1")
    attempts = []

    def load(_name, path):
        attempts.append(path)
        raise error

    manager = ModelManager(load, threading.Event(), LoadOptions(max_num_load_retries=2, load_retry_interval_s=10))
    configs = {"a": ModelConfig("a", tmp_path / "a")}
    manager.apply(configs, now_s=0)
    counts = []
    for now_s in (1, 9, 10, 15, 20, 40, 60):
        manager.apply(configs, now_s)
        counts.append(len(attempts))
    assert counts == [1, 1, 2, 2, 3, 3, 3]
    assert manager.states(wire.ModelSpec(name="a"))[0].status.error_message == str(error)
    file.write_bytes(b"changed")
    manager.apply(configs, 61)
    assert len(attempts) == 4, "its files have changed"


def test_models_are_loaded_concurrently(tmp_path):
    for name in [f"m{k}" for k in range(4)]:
        write_garbage(tmp_path / name / "1")
    barrier = threading.Barrier(4)

    def load(_name, path):
        barrier.wait(20)  # passes with four concurrent loads only
        return path

    manager = ModelManager(load, threading.Event(), LoadOptions(num_load_threads=4))
    assert manager.apply(model_config.from_folder(tmp_path), now_s=0) == 4


DEFAULTS = LoadOptions()


@pytest.mark.parametrize(
    ("flags", "read", "expected"),
    [
        (["--max_num_load_retries=3", "--load_retry_interval_micros=5000000", "--num_load_threads=4",
          "--allow_version_labels_for_unavailable_models=false"], "loading", LoadOptions(4, 3, 5.0, False)),
        (["--num_load_threads=0", "--load_retry_interval_micros=-1"], "loading", replace(DEFAULTS, load_retry_interval_s=0)),
        (["--file_system_poll_wait_seconds=0"], "poll_s", 0),
        (["--grpc_max_threads=16"], "threads", 16),
        *(
            (["--rest_api_port=1", f"--rest_api_timeout_in_ms={text}"], "rest", RestConfig(1, 8, timeout_s, None))
            for text, timeout_s in (("5000", 5.0), ("0", math.inf), ("-1", math.inf))
        ),
    ],
)  # fmt: skip
def test_flags_mean_what_they_mean_in_tensorflow_model_server(models, tmp_path, flags, read, expected):
    one = ["--port=0", "--model_name=a", f"--model_base_path={models / 'first'}", *flags]
    config = parse(one)
    assert config.models == {"a": ModelConfig("a", models / "first")} and getattr(config, read) == expected
    (tmp_path / "models.config").write_text(text(models, ("b", "first", "")))
    assert list(parse([*one, f"--model_config_file={tmp_path / 'models.config'}"]).models) == ["b"], "it comes first"


def test_a_poll_that_waited_for_a_reload_does_not_undo_it(grid_models, tmp_path, monkeypatch):
    for version in ("1", "2"):
        shutil.copytree(grid_models / "SA103" / "1", tmp_path / "SA103" / version)

    def only(version):
        return {"SA103": ModelConfig("SA103", tmp_path / "SA103", VersionPolicy(None, (version,)))}

    with running(ServerConfig(models=only(2), port=0, poll_s=3600)) as server:
        gate = Gate(monkeypatch, server.manager, "load")
        with futures.ThreadPoolExecutor(2) as pool:
            pool.submit(server.reconfigure, only(1))
            assert gate.began.wait(20)
            pool.submit(server.poll_once)  # while the reload is in progress
            gate.go.set()
        assert server.manager.served() == {"SA103": [1]}


def test_a_second_reload_is_aborted_and_status_and_health_answer_meanwhile(models, monkeypatch):
    with served(models, ("a", "first", "")) as api:
        gate = Gate(monkeypatch, api.server.manager, "load")
        both = ("a", "first", ""), ("b", "second", "")
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(api.reload, *both)
            try:
                assert gate.began.wait(60)
                for _ in range(3):
                    code, details = api.reload(*both, timeout_s=5)
                    assert code == grpc.StatusCode.ABORTED and "another reload is in progress" in details
                (status,) = api.states("b")
                assert (status.version, status.state) == (7, get_model_status_pb2.ModelVersionStatus.LOADING)
                health = health_pb2_grpc.HealthStub(api.channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
                assert health.status == health_pb2.HealthCheckResponse.SERVING
                assert api.version("a") == 4 and not first.done()
            finally:
                gate.go.set()
            assert first.result(60) is None
        assert api.version("b") == 7
        assert api.reload(*both) is None, "after the first reload has ended"


@pytest.mark.parametrize("source", ["models_dir", "models", "models_root"])
def test_reload_request_names_folders_of_the_models_only(models, source):
    elsewhere = models.parent / "elsewhere"
    shutil.copytree(models / "second", elsewhere / "other")
    settings = {
        "models_dir": {"models_dir": models},
        "models": {"models": {"a": ModelConfig("a", models / "first")}},
        "models_root": {"models_dir": elsewhere, "models_root": models},
    }[source]
    (models / "link").symlink_to(elsewhere / "other")
    with served(models, **settings) as api:
        before = api.server.manager.served()
        for path in (elsewhere / "other", models / ".." / "elsewhere" / "other", models / "link", "/"):
            code, details = api.reload(("b", path, ""))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert f"lies outside of {models}" in details and "--models_root" in details
        assert api.server.manager.served() == before, "a refused request changes nothing"
        assert api.reload(("b", "second", "")) is None
        assert api.server.manager.served() == {"b": [7]}


def test_root_of_several_models_is_the_folder_that_holds_them_all(tmp_path):
    configs = {name: ModelConfig(name, tmp_path / folder / name) for name, folder in (("a", "north"), ("b", "south"))}
    assert common_folder(configs) == tmp_path.resolve()


@pytest.mark.parametrize(
    ("settings", "code", "part"),
    [
        ({"model_config_file": Path("none")}, grpc.StatusCode.INVALID_ARGUMENT, "started without models"),
        (
            {"model_config_file": Path("none"), "reload_rpc": False},
            grpc.StatusCode.UNIMPLEMENTED,
            "--enable_reload_config_request=false",
        ),
    ],
)
def test_server_without_models_or_with_reloads_switched_off_refuses_them(models, settings, code, part):
    flags = [f"--models_dir={models}", f"--city={GRID / 'city.toml'}"]
    assert parse(flags).reload_rpc and not parse([*flags, "--enable_reload_config_request=false"]).reload_rpc
    with served(models, **settings) as api:
        found, details = api.reload(("b", "second", ""))
        assert found is code and part in details and api.server.manager.served() == {}
