"""A model's logging_config: what is accepted, and where its files may lie."""

import re

import pytest

from city.errors import InputError
from protos import model_server_config_pb2 as pb
from serving.embedded.flags import parse
from serving.embedded.models import model_config
from serving.embedded.prediction_log.logging_config import LoggingConfig, check
from serving.embedded.status import StatusError

VALID = 'log_collector_config { filename_prefix: "SA103" } sampling_config { sampling_rate: 0.25 }'


def config_file(folder, logging_config):
    file = folder / "models.config"
    file.write_text(
        f'model_config_list {{ config {{ name: "M" base_path: "{folder}/M" model_platform: "tensorflow" '
        f"logging_config {{ {logging_config} }} }} }}"
    )
    return file


def test_logging_config_has_tensorflow_servings_text(tmp_path):
    (config,) = model_config.from_file(config_file(tmp_path, VALID)).values()
    assert (str(config.logging.filename_prefix), config.logging.sampling_rate) == ("SA103", 0.25)
    # the configuration of tensorflow/serving's issue 408
    text = (
        'log_collector_config { type: "", filename_prefix: "/log/model-server" } sampling_config { sampling_rate: 1 }'
    )
    (config,) = model_config.from_file(config_file(tmp_path, text)).values()
    assert (str(config.logging.filename_prefix), config.logging.sampling_rate) == ("/log/model-server", 1.0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "filename_prefix of log_collector_config is missing"),
        ('log_collector_config { filename_prefix: "a" }', "sampling_config is missing"),
        (VALID.replace("0.25", "1.5"), "sampling_rate 1.5 must lie between 0 and 1"),
        (VALID.replace("0.25", "-1"), "sampling_rate -1 must"),
        (VALID.replace("0.25", "nan"), "sampling_rate nan must"),
        (VALID.replace("0.25", "1 attributes: 1"), "attributes is not supported"),
        (
            VALID.replace("0.25", '1 per_task_sampling_configs { dc: "x" }'),
            "per_task_sampling_configs is not supported",
        ),
        (VALID + " custom_logging_config { }", "custom_logging_config is not supported"),
        (VALID.replace("filename_prefix", 'type: "kafka" filename_prefix'), "type 'kafka' is not supported"),
    ],
)
def test_invalid_logging_config_is_one_line(tmp_path, text, error):
    with pytest.raises(InputError, match=rf"models\.config: model M: logging_config: .*{re.escape(error)}") as refused:
        model_config.from_file(config_file(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_logging_config_needs_a_folder_for_the_logs(tmp_path):
    arguments = [f"--model_config_file={config_file(tmp_path, VALID)}", "--port=0"]
    with pytest.raises(InputError, match=r"models\.config: model M: logging_config needs .*--logs_root DIR"):
        parse(arguments)
    (tmp_path / "logs").mkdir()
    config = parse([*arguments, f"--logs_root={tmp_path / 'logs'}", "--logs_max_mb=128"])
    assert (config.logs_root, config.logs_max_bytes) == (tmp_path / "logs", 128 << 20)
    with pytest.raises(InputError, match=r"--logs_root .*: not a writable folder"):
        parse([*arguments, f"--logs_root={tmp_path / 'missing'}"])
    with pytest.raises(InputError, match="--logs_max_mb 1 must lie between 128"):
        parse([*arguments, f"--logs_root={tmp_path / 'logs'}", "--logs_max_mb=1"])


@pytest.mark.parametrize("logs", ["models", "models/M/logs", "."])
def test_logs_lie_apart_from_the_models(tmp_path, logs):
    (tmp_path / "models" / "M" / "logs").mkdir(parents=True)
    arguments = [f"--models-dir={tmp_path / 'models'}", "--port=0"]
    with pytest.raises(
        InputError, match=r"--logs_root .*: shares folders with the models in .*models; pass a folder of its own"
    ):
        parse([*arguments, f"--logs_root={tmp_path / logs}"])
    (tmp_path / "logs").mkdir()
    assert parse([*arguments, f"--logs_root={tmp_path / 'logs'}"]).logs_root == tmp_path / "logs"


@pytest.mark.parametrize(
    "prefix", ["../log", "/tmp/log", "a/../../log", "link/log", "..", ".", "/", "{root}", "{root}2/log", "a/.."]
)
def test_files_lie_below_the_folder_of_the_logs(tmp_path, prefix):
    root = tmp_path / "logs"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(StatusError, match="lies outside of --logs_root"):
        check({"M": logging(prefix.replace("{root}", str(root)))}, root)


@pytest.mark.parametrize("prefix", ["log", "M/log", "./log", "{root}/log", "a/../log", "inside/log"])
def test_prefix_may_be_relative_to_the_folder_of_the_logs(tmp_path, prefix):
    root = tmp_path / "logs"
    (root / "folder").mkdir(parents=True)
    (root / "inside").symlink_to(root / "folder")
    check({"M": logging(prefix.replace("{root}", str(root)))}, root)


@pytest.mark.parametrize(("prefix", "error"), [("a\0b", "is not a path"), ("x" * 201, "longer than 200 bytes")])
def test_prefix_that_cannot_be_a_path_is_refused(tmp_path, prefix, error):
    with pytest.raises(StatusError, match=error):
        check({"M": logging(prefix)}, tmp_path)


def logging(prefix):
    """The settings of a request's prefix."""
    models = pb.ModelConfigList()
    entry = models.config.add(name="M", base_path="/M", model_platform="tensorflow")
    entry.logging_config.log_collector_config.filename_prefix = prefix
    entry.logging_config.sampling_config.sampling_rate = 1
    (config,) = model_config.logging_configs(model_config.from_proto(models)).values()
    assert isinstance(config, LoggingConfig)
    return config
