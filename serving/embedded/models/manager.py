"""Load and unload versions of models, and resolve a request's ModelSpec to a loaded version.

`apply` reads the models' folders and executes version_policy's actions until none
is left, several models at once; requests meanwhile find a loaded version by one
dictionary look-up. `reconfigure` replaces the set of configured models.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

from protos import predict_pb2 as wire
from serving.embedded.models import version_files
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.servable import Servable
from serving.embedded.models.version_files import Fingerprint, VersionFiles
from serving.embedded.models.version_policy import Operation, next_servable_action
from serving.embedded.status import StatusError, failed_precondition, invalid_argument, not_found, unknown
from serving.embedded.telemetry.logs import event, log
from serving.embedded.telemetry.metrics import ServerMetrics

LOAD_THREAD_NICENESS = 10


@dataclass(frozen=True)
class LoadOptions:
    """How versions are loaded."""

    num_load_threads: int = 1
    """Models loaded at once while the server serves. At the start every core loads."""
    max_num_load_retries: int = 5
    load_retry_interval_s: float = 60.0
    allow_labels_for_unavailable: bool = True
    """Whether a new label may name a version that is not available yet."""


@dataclass(frozen=True)
class Failure:
    """A version that failed to load."""

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
    """Version -> fingerprint of the files it was loaded from."""
    failed: dict[int, Failure] = field(default_factory=dict)
    was_empty: bool = False
    """Whether the last poll found no version in the folder."""


def _aspired(config: ModelConfig) -> set[int]:
    """The versions in a model's folder that its policy wants. Raises StatusError if the folder cannot be read."""
    try:
        return config.policy.aspired(version_files.versions(config.base_path))
    except (OSError, ValueError) as error:
        raise invalid_argument(f"model {config.name}: {str(config.base_path)!r} cannot be read: {error}") from None


def _lower_priority() -> None:
    """Let calls run before this thread (Linux, where each thread has a niceness of its own)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOAD_THREAD_NICENESS)


class ModelManager:
    """Keeps the configured versions of the configured models loaded. `find` and `states` are thread-safe."""

    def __init__(
        self,
        load: Callable[[Path], Servable],
        load_error: type[Exception],
        stopping: threading.Event,
        loading: LoadOptions | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        """Start without models.

        Args:
            load: from a version's folder to a servable.
            load_error: what `load` raises for an invalid version; any other exception is logged with its traceback.
            stopping: once it is set, no further version is loaded.
            loading: threads and retries.
            metrics: counts loads.
        """
        self._metrics = metrics or ServerMetrics()
        self.load, self._load_error = load, load_error
        self._loading = loading or LoadOptions()
        self._models: dict[str, Model] = {}
        self._configured: set[str] = set()
        self._lock = threading.RLock()
        """Held while versions change."""
        self._stopping = stopping
        # no calls compete with the first loads, so every core loads then, as in TensorFlow Serving
        self._pool = futures.ThreadPoolExecutor(max(os.cpu_count() or 1, self._loading.num_load_threads), "load")
        self._is_first = True

    def apply(self, configs: Mapping[str, ModelConfig], now_s: float, at_once: bool = False) -> int:
        """Load the versions of these models, unload all others, and return the number of models served.

        A model that fails to load does not delay the others.

        Args:
            configs: the models to serve, by name.
            now_s: monotonic time, for the interval between retries.
            at_once: unload a model whose folder is empty now, instead of after two polls.
        """
        with self._lock:
            for name, config in configs.items():
                self._models.setdefault(name, Model(config)).config = config
            self._configured = set(configs)
            self._update(now_s, at_once)
        return len(self.served())

    def reconfigure(self, configs: Mapping[str, ModelConfig], now_s: float) -> None:
        """Replace the whole configuration, or nothing of it. Raises StatusError if a part cannot be served.

        As in tensorflow/serving's ServerCore::ReloadConfig new models must become
        available, and a label moves only to a version that is available before.
        """
        with self._lock:
            # refuse empty folders before anything changes: the model may be served from another folder now
            self._refuse({name: "has no version to serve" for name, config in configs.items() if not _aspired(config)})
            before = {name: self._models[name].config for name in self._configured}
            if label_error := self._label_error(configs, before):
                raise failed_precondition(label_error)
            self.apply({**before, **configs}, now_s, at_once=True)
            try:
                self._refuse({name: "" for name, config in configs.items() if not self._is_served_from(name, config)})
            except StatusError:
                self.apply(before, now_s, at_once=True)
                raise
            self.apply(configs, now_s, at_once=True)

    def _is_served_from(self, name: str, config: ModelConfig) -> bool:
        """Whether a version of the configured folder is loaded; one of the model's previous folder does not count."""
        return any(
            version_files.is_in(fingerprint, config.base_path) for fingerprint in self._models[name].loaded_fingerprints.values()
        )

    def _refuse(self, reasons: Mapping[str, str]) -> None:
        """Raise StatusError, with TensorFlow Serving's text, if there are models that cannot be served.

        `reasons`: by model, why; "": its versions failed to load.
        """
        texts = []
        for name, reason in sorted(reasons.items()):
            if reason:
                texts.append(f"{{{{name: {name}}} {reason}}}, ")
                continue
            model = self._models[name]
            for version in sorted(model.failed):
                status = model.states[version].status
                code = wire.Status.Code.Name(status.error_code)
                texts.append(f"{{{{name: {name} version: {version}}} due to error: {code}: {status.error_message}}}, ")
        if reasons:
            raise unknown(f"{len(reasons)} model(s) did not become available: {{{''.join(texts)}}}")

    def _label_error(self, configs: Mapping[str, ModelConfig], before: Mapping[str, ModelConfig]) -> str:
        """The first error in the labels of a configuration; empty: none."""
        for name, config in configs.items():
            old_labels = before[name].labels if name in before else {}
            loaded = self._models[name].servables if name in self._models else {}
            for label, version in config.labels.items():
                is_moved = old_labels.get(label, version) != version
                if version not in loaded and (is_moved or not self._loading.allow_labels_for_unavailable):
                    return (
                        f"Request to assign label to version {version} of model {name}, "
                        "which is not currently available for inference"
                    )
        return ""

    def _update(self, now_s: float, at_once: bool) -> None:
        """Load and unload versions of every model, in the pool's threads."""
        tasks = {self._pool.submit(self._update_model, name, now_s, at_once): name for name in sorted(self._models)}
        for task in futures.as_completed(tasks):
            error = task.exception()
            if error is not None:
                log.error("updating model %s failed; other models are not affected", tasks[task], exc_info=error)
        if self._is_first:
            self._is_first = False
            self._pool.shutdown()
            self._pool = futures.ThreadPoolExecutor(max(1, self._loading.num_load_threads), "load", _lower_priority)

    def _update_model(self, name: str, now_s: float, at_once: bool) -> None:
        """Execute version_policy's actions for one model until none is left."""
        if self._stopping.is_set():
            return
        model = self._models[name]
        on_disk = version_files.versions(model.config.base_path) if name in self._configured else {}
        if not on_disk and model.servables and not (model.was_empty or at_once):
            # a version that is replaced by renames is missing for a moment: unload after two empty polls
            model.was_empty = True
            return
        model.was_empty = False
        fingerprints = {version: files.fingerprint for version, files in on_disk.items()}
        for version in sorted(model.config.policy.aspired(on_disk)):
            if version not in model.states:
                self._set_state(model, version, wire.ModelVersionStatus.START)
        while not self._stopping.is_set():
            failed = {
                version: failure.fingerprint for version, failure in model.failed.items() if not self._may_retry(failure, now_s)
            }
            action = next_servable_action(fingerprints, model.loaded_fingerprints, failed, model.config.policy)
            if action is None:
                return
            if action.operation is Operation.LOAD:
                self._load_version(name, model, action.version, on_disk[action.version], now_s)
            else:
                self._unload_version(name, model, action.version)

    def _may_retry(self, failure: Failure, now_s: float) -> bool:
        """Whether a version that failed is tried again although its files are unchanged."""
        waited = now_s - failure.last_try_s >= self._loading.load_retry_interval_s
        return failure.tries <= self._loading.max_num_load_retries and waited and now_s > failure.last_try_s

    def _load_version(self, name: str, model: Model, version: int, files: VersionFiles, now_s: float) -> None:
        begin = time.perf_counter()
        is_served = version in model.servables
        if not is_served:
            self._set_state(model, version, wire.ModelVersionStatus.LOADING)
        try:
            servable = self.load(files.path)
        except Exception as error:
            if not isinstance(error, self._load_error):
                log.exception("loading version %d of %s failed unexpectedly", version, name)
            before = model.failed.get(version)
            tries = before.tries + 1 if before and before.fingerprint == files.fingerprint else 1
            model.failed[version] = Failure(files.fingerprint, tries, now_s)
            # a loaded version stays available if its files were overwritten by invalid ones
            self._set_state(
                model, version, wire.ModelVersionStatus.AVAILABLE if is_served else wire.ModelVersionStatus.END, str(error)
            )
            self._metrics.count_failed_load(name)
            event("load_failed", logging.ERROR, model=name, version=version, tries=tries, error=error)
            return
        model.failed.pop(version, None)
        model.servables = {**model.servables, version: servable}
        model.loaded_fingerprints[version] = files.fingerprint
        self._set_state(model, version, wire.ModelVersionStatus.AVAILABLE)
        seconds = time.perf_counter() - begin
        self._metrics.count_load(name, seconds)
        event("loaded", model=name, version=version, ms=1000 * seconds)

    def _unload_version(self, name: str, model: Model, version: int) -> None:
        self._set_state(model, version, wire.ModelVersionStatus.UNLOADING)
        # a new dictionary: calls in flight keep the servable that they found
        model.servables = {v: servable for v, servable in model.servables.items() if v != version}
        model.loaded_fingerprints.pop(version, None)
        self._set_state(model, version, wire.ModelVersionStatus.END)
        event("unloaded", model=name, version=version)

    def _set_state(self, model: Model, version: int, state: wire.ModelVersionStatus.State, error: str = "") -> None:
        status = wire.ModelVersionStatus(version=version, state=state)
        status.status.error_code = wire.Status.UNKNOWN if error else wire.Status.OK
        status.status.error_message = error
        model.states = {**model.states, version: status}

    def close(self) -> None:
        """Wait for loads in progress, then unload everything."""
        self._pool.shutdown(wait=True)
        with self._lock:
            for model in self._models.values():
                model.servables = {}

    def is_known(self, name: str) -> bool:
        """Whether a model of this name is or was configured."""
        return name in self._models

    def versions_by_state(self) -> dict[str, int]:
        """The number of versions in each state, by the state's name."""
        count = dict.fromkeys(wire.ModelVersionStatus.State.keys(), 0)
        for model in list(self._models.values()):
            for status in model.states.values():
                count[wire.ModelVersionStatus.State.Name(status.state)] += 1
        return count

    def served(self) -> dict[str, list[int]]:
        """Model -> its loaded versions, for models that have any."""
        return {name: sorted(model.servables) for name, model in list(self._models.items()) if model.servables}

    def find(self, spec: wire.ModelSpec) -> tuple[int, Servable]:
        """(version, servable) of a model spec. Raises StatusError with TensorFlow Serving's texts."""
        if not spec.name:
            raise invalid_argument("ModelSpec has no name specified.")
        model = self._models.get(spec.name)
        served = model.servables if model else {}
        version = self._version(spec, model)
        if version is not None:
            if version not in served:
                raise not_found(f"Servable not found for request: Specific({spec.name}, {version})")
            return version, served[version]
        if not served:
            raise not_found(f"Servable not found for request: Latest({spec.name})")
        newest = max(served)
        return newest, served[newest]

    def _version(self, spec: wire.ModelSpec, model: Model | None) -> int | None:
        """The version that a spec names by number or label; None: the newest. Raises StatusError."""
        match spec.WhichOneof("version_choice"):
            case "version_label":
                labels = model.config.labels if model else {}
                if spec.version_label not in labels:
                    raise invalid_argument(f"Unrecognized servable version label: {spec.version_label}")
                return labels[spec.version_label]
            case "version":
                return spec.version.value
        return None

    def states(self, spec: wire.ModelSpec) -> list[wire.ModelVersionStatus]:
        """States of a version, or of all a model's versions, newest first; labels are ignored, as by TensorFlow Serving.

        Raises StatusError.
        """
        model = self._models.get(spec.name)
        states = model.states if model else {}
        if spec.HasField("version"):
            version = spec.version.value
            if version not in states:
                raise not_found(f"Could not find version {version} of model {spec.name}")
            return [states[version]]
        if not states:
            raise not_found(f"Could not find any versions of model {spec.name}")
        return [states[version] for version in sorted(states, reverse=True)]
