"""A model's `logging_config`: which requests are logged, and to which files below --logs_root."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protos import logging_config_pb2 as pb
from serving.embedded.status import invalid_argument

COLLECTOR_TYPES = ("", "tfrecord")
"""Accepted types of log_collector_config. TensorFlow Serving's open source has none."""
MAX_NAME_BYTES = 200
"""Maximum length of the last part of a prefix: a file's name is longer by time, number and suffix, and has 255 at
most."""


@dataclass(frozen=True)
class LoggingConfig:
    """How Predict requests of a model are logged."""

    filename_prefix: Path
    """Begin of the files' paths; a relative one lies in --logs_root."""
    sampling_rate: float
    """Share of the requests that are logged, chosen at random; 0 to 1."""


def from_proto(model: str, config: pb.LoggingConfig) -> LoggingConfig:
    """Convert a model's logging_config. Raises StatusError (INVALID_ARGUMENT) if it is invalid or unsupported."""
    where = f"model {model}: logging_config"
    collector, sampling = config.log_collector_config, config.sampling_config
    if collector.type not in COLLECTOR_TYPES:
        raise invalid_argument(
            f"{where}: log collector type {collector.type!r} is not supported; leave type out, for TFRecord files"
        )
    for message, name in (
        (config, "custom_logging_config"),
        (sampling, "per_task_sampling_configs"),
        (sampling, "attributes"),
    ):
        if name in (field.name for field, _ in message.ListFields()):
            raise invalid_argument(f"{where}: {name} is not supported; leave it out")
    if not collector.filename_prefix:
        raise invalid_argument(
            f"{where}: filename_prefix of log_collector_config is missing; add it, such as {model!r}"
        )
    if not config.HasField("sampling_config"):
        raise invalid_argument(
            f"{where}: sampling_config is missing; add sampling_config {{ sampling_rate: 1 }} to log every request"
        )
    if not 0 <= sampling.sampling_rate <= 1:  # false for NaN, too
        raise invalid_argument(f"{where}: sampling_rate {sampling.sampling_rate:g} must lie between 0 and 1")
    return LoggingConfig(Path(collector.filename_prefix), sampling.sampling_rate)


def check(configs: Mapping[str, LoggingConfig], root: Path | None) -> None:
    """Raise StatusError (INVALID_ARGUMENT) unless every model's files lie below the root, with links resolved.

    Args:
        configs: name of a model -> its logging_config.
        root: --logs_root; None permits no logging_config.
    """
    for model, config in configs.items():
        where = f"model {model}: logging_config"
        if root is None:
            raise invalid_argument(
                f"{where} needs a folder for the logs; start the server with --logs_root DIR, or leave logging_config "
                "out"
            )
        path = root / config.filename_prefix
        try:
            os.path.realpath(path)  # raises for a zero byte in its name
            is_inside = Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root))
        except ValueError as error:
            raise invalid_argument(
                f"{where}: filename_prefix {str(config.filename_prefix)!r} is not a path: {error}; correct it"
            ) from None
        if not is_inside or path.name in ("", ".."):
            raise invalid_argument(
                f"{where}: filename_prefix {str(config.filename_prefix)!r} lies outside of --logs_root {root}; "
                "correct it, or start the server with another --logs_root"
            )
        if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
            raise invalid_argument(
                f"{where}: the file name of filename_prefix is longer than {MAX_NAME_BYTES} bytes; shorten it"
            )
