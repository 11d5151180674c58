"""Load and unload versions of models, and resolve a request's ModelSpec to a loaded version.

`apply` reads the models' folders and executes version_policy's actions until none
remains, for several models concurrently; meanwhile a request finds a loaded version by
one dictionary look-up. `reconfigure` replaces the set of configured models.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

from grpc import StatusCode

from protos import predict_pb2 as wire
from serving.embedded.models import version_files
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.servable import LoadError, Servable
from serving.embedded.models.version_files import Fingerprint
from serving.embedded.models.version_policy import Operation, next_servable_action
from serving.embedded.status import StatusError
from serving.embedded.telemetry import ServerMetrics, event, log

LOAD_THREAD_NICENESS = 10


@dataclass(frozen=True)
class LoadOptions:
    """How versions are loaded."""

    num_load_threads: int = 1
    """Models loaded concurrently while the server serves. At the start every core loads."""
    max_num_load_retries: int = 5
    load_retry_interval_s: float = 60.0
    allow_labels_for_unavailable: bool = True
    """A new label may name a version that is not available yet."""


@dataclass(frozen=True)
class Failure:
    """The failed loads of a version."""

    fingerprint: Fingerprint
    tries: int
    last_try_s: float


@dataclass
class Model:
    config: ModelConfig
    servables: dict[int, Servable] = field(default_factory=dict)
    """Version -> servable."""
    states: dict[int, wire.ModelVersionStatus] = field(default_factory=dict)
    loaded_fingerprints: dict[int, Fingerprint] = field(default_factory=dict)
    """Version -> fingerprint of the files that it was loaded from."""
    failed: dict[int, Failure] = field(default_factory=dict)
    was_empty: bool = False
    """The last poll found no version in the folder."""
    unread: str = ""
    """Why the last poll could not list the folder; empty if it could."""


def _aspired(config: ModelConfig) -> set[int]:
    """The aspired versions in a model's folder. Raises StatusError if the folder cannot be read."""
    try:
        return config.policy.aspired(version_files.versions(config.base_path))
    except (OSError, ValueError) as error:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"model {config.name}: {str(config.base_path)!r} cannot be read: {error}"
        ) from None


def _raise_if_any(errors: Mapping[str, Sequence[str]]) -> None:
    """Raise TensorFlow Serving's error of a reload if models (name -> their errors) cannot be served."""
    texts = "".join(f"{{{error}}}, " for _, model_errors in sorted(errors.items()) for error in model_errors)
    if errors:
        raise StatusError(StatusCode.UNKNOWN, f"{len(errors)} model(s) did not become available: {{{texts}}}")


def _lower_priority() -> None:
    """Give calls priority over this thread (Linux only, where each thread has its own niceness)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOAD_THREAD_NICENESS)


class ModelManager:
    """Keeps the configured versions of the configured models loaded. `find` and `states` are thread-safe."""

    def __init__(
        self,
        load: Callable[[str, Path], Servable],
        stopping: threading.Event,
        loading: LoadOptions | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        """Start without models.

        Args:
            load: loads a version's folder as a version of the model of this name. Raises LoadError; any other
                exception is logged with its traceback.
            stopping: once it is set, no further version is loaded.
            loading: threads and retries.
            metrics: counts loads.
        """
        self._metrics = metrics or ServerMetrics()
        self.load = load
        self._loading = loading or LoadOptions()
        self._models: dict[str, Model] = {}
        self._configured: set[str] = set()
        self._lock = threading.RLock()
        """Held while versions change."""
        self._stopping = stopping
        # at the start no calls compete with loads, so every core loads, as in TensorFlow Serving
        self._pool = futures.ThreadPoolExecutor(max(os.cpu_count() or 1, self._loading.num_load_threads), "load")
        self._is_start = True

    def apply(self, configs: Mapping[str, ModelConfig], now_s: float, at_once: bool = False) -> int:
        """Load the versions of these models, unload all others, and return the number of models served.

        A model that fails to load does not delay the others.

        Args:
            configs: the models to serve, by name.
            now_s: monotonic time, for the interval between retries.
            at_once: unload a model with an empty folder now, instead of at the second poll.
        """
        with self._lock:
            for name, config in configs.items():
                self._models.setdefault(name, Model(config)).config = config
            self._configured = set(configs)
            self._update(now_s, at_once)
        return len(self.served())

    def reconfigure(self, configs: Mapping[str, ModelConfig], now_s: float) -> None:
        """Replace the whole configuration, or leave it unchanged. Raises StatusError if a model cannot be served.

        As in tensorflow/serving's ServerCore::ReloadConfig, new models must become
        available, and a label moves only to a version that is already available.
        """
        with self._lock:
            # refuse empty folders before anything changes: the model may be served from another folder now
            empty = [name for name, config in configs.items() if not _aspired(config)]
            _raise_if_any({name: [f"{{name: {name}}} has no version to serve"] for name in empty})
            before = {name: self._models[name].config for name in self._configured}
            self._check_labels(configs, before)
            self.apply({**before, **configs}, now_s, at_once=True)
            failed = {}
            for name, config in configs.items():
                loaded = self._models[name].loaded_fingerprints.values()
                # a version that was loaded from the folder of before does not count
                if not any(version_files.folder_of(fingerprint).parent == config.base_path for fingerprint in loaded):
                    failed[name] = self._load_errors(name)
            if failed:
                self.apply(before, now_s, at_once=True)
            _raise_if_any(failed)
            self.apply(configs, now_s, at_once=True)

    def _load_errors(self, name: str) -> list[str]:
        """The errors of a model's versions that failed to load, with TensorFlow Serving's texts."""
        statuses = {version: self._models[name].states[version].status for version in sorted(self._models[name].failed)}
        return [
            f"{{name: {name} version: {version}}} due to error: {wire.Status.Code.Name(status.error_code)}: "
            f"{status.error_message}"
            for version, status in statuses.items()
        ]

    def _check_labels(self, configs: Mapping[str, ModelConfig], before: Mapping[str, ModelConfig]) -> None:
        """Raise StatusError if a label of a configuration would move to a version that is not loaded."""
        for name, config in configs.items():
            previous_labels = before[name].labels if name in before else {}
            loaded = self._models[name].servables if name in self._models else {}
            for label, version in config.labels.items():
                is_moved = previous_labels.get(label, version) != version
                if version not in loaded and (is_moved or not self._loading.allow_labels_for_unavailable):
                    raise StatusError(
                        StatusCode.FAILED_PRECONDITION,
                        f"Request to assign label to version {version} of model {name}, "
                        "which is not currently available for inference",
                    )

    def _update(self, now_s: float, at_once: bool) -> None:
        """Load and unload versions of every model, in the pool's threads."""
        tasks = {self._pool.submit(self._update_model, name, now_s, at_once): name for name in sorted(self._models)}
        for task in futures.as_completed(tasks):
            error = task.exception()
            if error is not None:
                log.error("updating model %s failed; other models are not affected", tasks[task], exc_info=error)
        if self._is_start:
            self._is_start = False
            self._pool.shutdown()
            self._pool = futures.ThreadPoolExecutor(max(1, self._loading.num_load_threads), "load", _lower_priority)

    def _update_model(self, name: str, now_s: float, at_once: bool) -> None:
        """Execute version_policy's actions for one model until none remains."""
        if self._stopping.is_set():
            return
        model = self._models[name]
        try:
            on_disk = version_files.versions(model.config.base_path) if name in self._configured else {}
        except OSError as error:
            if str(error) != model.unread:  # once, not at every poll
                log.error("the versions of model %s cannot be listed, and stay as they are: %s", name, error)
            model.unread = str(error)
            return
        model.unread = ""
        # a version that is being replaced by renames is missing for a moment: unload at the second empty poll
        model.was_empty = not on_disk and bool(model.servables) and not (model.was_empty or at_once)
        if model.was_empty:
            return
        for version in sorted(model.config.policy.aspired(on_disk)):
            if version not in model.states:
                self._set_state(model, version, wire.ModelVersionStatus.START)
        while not self._stopping.is_set():
            failed = {
                version: failure.fingerprint
                for version, failure in model.failed.items()
                if not self._may_retry(failure, now_s)
            }
            action = next_servable_action(on_disk, model.loaded_fingerprints, failed, model.config.policy)
            if action is None:
                return
            if action.operation is Operation.LOAD:
                self._load_version(name, model, action.version, on_disk[action.version], now_s)
            else:
                self._unload_version(name, model, action.version)

    def _may_retry(self, failure: Failure, now_s: float) -> bool:
        """Tell whether a failed version is due for a retry although its files are unchanged."""
        waited_s = now_s - failure.last_try_s
        is_due = waited_s > 0 and waited_s >= self._loading.load_retry_interval_s
        return is_due and failure.tries <= self._loading.max_num_load_retries

    def _load_version(self, name: str, model: Model, version: int, files: Fingerprint, now_s: float) -> None:
        begin = time.perf_counter()
        is_served = version in model.servables
        if not is_served:
            self._set_state(model, version, wire.ModelVersionStatus.LOADING)
        try:
            servable = self.load(name, version_files.folder_of(files))
        except Exception as error:
            if not isinstance(error, LoadError):
                log.exception("loading version %d of %s failed unexpectedly", version, name)
            previous = model.failed.get(version)
            tries = previous.tries + 1 if previous and previous.fingerprint == files else 1
            model.failed[version] = Failure(files, tries, now_s)
            # a loaded version stays available if invalid files overwrite its own
            state = wire.ModelVersionStatus.AVAILABLE if is_served else wire.ModelVersionStatus.END
            self._set_state(model, version, state, str(error))
            self._metrics.loads.labels(name, "fail").inc()
            event("load_failed", logging.ERROR, model=name, version=version, tries=tries, error=error)
            return
        seconds = time.perf_counter() - begin
        model.failed.pop(version, None)
        model.servables = {**model.servables, version: servable}
        model.loaded_fingerprints[version] = files
        self._set_state(model, version, wire.ModelVersionStatus.AVAILABLE)
        self._metrics.loads.labels(name, "success").inc()
        self._metrics.load_s.labels(name).set(seconds)
        event("loaded", model=name, version=version, ms=1000 * seconds)

    def _unload_version(self, name: str, model: Model, version: int) -> None:
        self._set_state(model, version, wire.ModelVersionStatus.UNLOADING)
        # a new dictionary, because other threads read this one without the lock
        model.servables = {v: servable for v, servable in model.servables.items() if v != version}
        model.loaded_fingerprints.pop(version, None)
        self._set_state(model, version, wire.ModelVersionStatus.END)
        event("unloaded", model=name, version=version)

    def _set_state(self, model: Model, version: int, state: wire.ModelVersionStatus.State, error: str = "") -> None:
        status = wire.Status(error_code=wire.Status.UNKNOWN if error else wire.Status.OK, error_message=error)
        model.states = {**model.states, version: wire.ModelVersionStatus(version=version, state=state, status=status)}

    def close(self) -> None:
        """Wait for loads in progress, then unload everything."""
        self._pool.shutdown(wait=True)
        with self._lock:
            for model in self._models.values():
                model.servables = {}

    def is_known(self, name: str) -> bool:
        """Tell whether a model of this name is configured, or was."""
        return name in self._models

    def versions_by_state(self) -> dict[str, int]:
        """State's name -> number of versions in it."""
        counts = dict.fromkeys(wire.ModelVersionStatus.State.keys(), 0)
        for model in list(self._models.values()):
            for status in model.states.values():
                counts[wire.ModelVersionStatus.State.Name(status.state)] += 1
        return counts

    def served(self) -> dict[str, list[int]]:
        """Model -> loaded versions, for models that have any."""
        return {name: sorted(model.servables) for name, model in list(self._models.items()) if model.servables}

    def find(self, spec: wire.ModelSpec) -> tuple[int, Servable]:
        """Resolve a model spec to (version, servable). Raises StatusError with TensorFlow Serving's texts."""
        if not spec.name:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified.")
        model = self._models.get(spec.name)
        served = model.servables if model else {}
        choice = spec.WhichOneof("version_choice")
        if choice is None:
            if not served:
                raise StatusError(StatusCode.NOT_FOUND, f"Servable not found for request: Latest({spec.name})")
            version = max(served)
            return version, served[version]
        version = spec.version.value
        if choice == "version_label":
            labels = model.config.labels if model else {}
            if spec.version_label not in labels:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT, f"Unrecognized servable version label: {spec.version_label}"
                )
            version = labels[spec.version_label]
        if version not in served:
            raise StatusError(StatusCode.NOT_FOUND, f"Servable not found for request: Specific({spec.name}, {version})")
        return version, served[version]

    def states(self, spec: wire.ModelSpec) -> list[wire.ModelVersionStatus]:
        """The states of the version that a spec names by number, or of all versions, newest first.

        As in TensorFlow Serving, a label is ignored. Raises StatusError.
        """
        model = self._models.get(spec.name)
        states = model.states if model else {}
        if spec.HasField("version"):
            version = spec.version.value
            if version not in states:
                raise StatusError(StatusCode.NOT_FOUND, f"Could not find version {version} of model {spec.name}")
            return [states[version]]
        if not states:
            raise StatusError(StatusCode.NOT_FOUND, f"Could not find any versions of model {spec.name}")
        return [states[version] for version in sorted(states, reverse=True)]
