"""Which versions are served, and what state each is in.

`follow` looks at the models' folders and does what version_policy says until
there is nothing left to do, several models at once; requests meanwhile find the
version that is served by one dictionary look-up. `reconfigure` replaces the
models that there are to serve.
"""

import contextlib
import gc
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protos import predict_pb2 as wire
from serving.embedded.models import version_files
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import Verb, next_action
from serving.embedded.status import StatusError, failed_precondition, invalid_argument, not_found, unknown
from serving.embedded.telemetry.logs import event, log
from serving.embedded.telemetry.metrics import Metrics

State = wire.ModelVersionStatus
_UNKNOWN = 2


@dataclass(frozen=True)
class Loading:
    """How versions are loaded; the names are tensorflow_model_server's flags."""

    num_load_threads: int = 1
    """Models that are loaded at once, once the server is up."""
    max_num_load_retries: int = 5
    load_retry_interval_s: float = 60.0
    allow_labels_for_unavailable: bool = True
    """Whether a label may name a version that is not served yet."""


@dataclass(frozen=True)
class Failure:
    """A version that could not be loaded."""

    fingerprint: Any
    tries: int
    at_s: float
    """When it was last tried."""


@dataclass
class Model:
    config: ModelConfig
    served: dict[int, Any] = field(default_factory=dict)
    """Version -> session."""
    states: dict[int, wire.ModelVersionStatus] = field(default_factory=dict)
    loaded: dict[int, Any] = field(default_factory=dict)
    """Version -> fingerprint of the files that are served."""
    failed: dict[int, Failure] = field(default_factory=dict)
    missed: bool = False
    """Whether the last look found no version at all."""


def _step_back() -> None:
    """Let this thread run where no call wants the core (Linux, where a thread has a niceness of its own)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class ModelManager:
    """Serves the wanted versions of the models that are configured."""

    def __init__(
        self,
        load: Callable[[Path], Any],
        load_error: type[Exception],
        stopping: threading.Event,
        loading: Loading | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`stopping`: once it is set, no further model is looked at."""
        self._metrics = metrics or Metrics()
        self._load, self._load_error = load, load_error
        self._loading = loading or Loading()
        self._models: dict[str, Model] = {}
        self._wanted: set[str] = set()
        self._generations = itertools.count(1)
        self.generation = 0
        """Another number after every change of what `find` answers."""
        self._busy = threading.RLock()
        self._stopping = stopping
        # nobody is disturbed by what is loaded at the start, so all cores load then, as TensorFlow Serving does
        self._pool = futures.ThreadPoolExecutor(max(os.cpu_count() or 1, self._loading.num_load_threads), "load")
        self._is_start = True

    def follow(self, configs: Mapping[str, ModelConfig], now_s: float, at_once: bool = False) -> int:
        """Serve these models, as far as they can be, and drop all others; the number of models served.

        What does not load does not hold up the rest. `at_once`: a model without
        any version is dropped at the first look, not at the second.
        """
        with self._busy:
            for name, config in configs.items():
                model = self._models.setdefault(name, Model(config))
                if model.config != config:
                    model.config = config
                    self.generation = next(self._generations)
            self._wanted = set(configs)
            self._refresh(now_s, at_once)
        return len(self.served())

    def reconfigure(self, configs: Mapping[str, ModelConfig], now_s: float) -> None:
        """Replace the whole configuration, or nothing of it. Raises StatusError where a part cannot be had.

        As tensorflow/serving's ServerCore::ReloadConfig: new models must become
        available, labels must name versions that are.
        """
        with self._busy:
            # what has no version at all is refused before anything is touched: its model may be answering now
            self._refuse(
                name for name, config in configs.items() if not config.policy.aspired(version_files.versions(config.base_path))
            )
            before = {name: self._models[name].config for name in self._wanted}
            self.follow({**before, **configs}, now_s, at_once=True)
            try:
                self._refuse(name for name, config in configs.items() if not self._is_served_from(name, config))
                if wrong_label := self._wrong_label(configs, before):
                    raise failed_precondition(wrong_label)
            except StatusError:
                self.follow(before, now_s, at_once=True)
                raise
            self.follow(configs, now_s, at_once=True)

    def _is_served_from(self, name: str, config: ModelConfig) -> bool:
        """Whether a version of the folder that is configured answers, and not one of where the model was before."""
        return any(version_files.is_in(fingerprint, config.base_path) for fingerprint in self._models[name].loaded.values())

    def _refuse(self, names: Iterable[str]) -> None:
        """Raise StatusError where there are models that cannot be served."""
        if missing := sorted(names):
            raise unknown(f"{len(missing)} servable(s) did not become available: {{{', '.join(missing)}}}")

    def _wrong_label(self, configs: Mapping[str, ModelConfig], before: Mapping[str, ModelConfig]) -> str:
        """What is wrong with the labels of a configuration; empty: nothing."""
        for name, config in configs.items():
            known = before[name].labels if name in before else {}
            for label, version in config.labels.items():
                is_new = known.get(label, version) == version
                if version not in self._models[name].served and not (self._loading.allow_labels_for_unavailable and is_new):
                    return (
                        f"Request to assign label to version {version} of model {name}, "
                        "which is not currently available for inference"
                    )
        return ""

    def _refresh(self, now_s: float, at_once: bool) -> None:
        work = {self._pool.submit(self._look_after, name, now_s, at_once): name for name in sorted(self._models)}
        for done in futures.as_completed(work):
            error = done.exception()
            if error is not None:
                log.error("looking after model %s failed; the others go on", work[done], exc_info=error)
        if self._is_start:
            self._is_start = False
            self._pool.shutdown()
            self._pool = futures.ThreadPoolExecutor(max(1, self._loading.num_load_threads), "load", _step_back)
            # what was made up to here stays: Python need not look through it for garbage again and again
            gc.collect()
            gc.freeze()

    def _look_after(self, name: str, now_s: float, at_once: bool) -> None:
        if self._stopping.is_set():
            return
        model = self._models[name]
        on_disk = version_files.versions(model.config.base_path) if name in self._wanted else {}
        if not on_disk and model.served and not (model.missed or at_once):
            # a version that is being replaced is away for a moment: gone is what is gone twice
            model.missed = True
            return
        model.missed = False
        prints = {version: found.fingerprint for version, found in on_disk.items()}
        for version in sorted(model.config.policy.aspired(on_disk)):
            if version not in model.states:
                self._mark(model, version, State.START)
        while not self._stopping.is_set():
            failed = {version: failure.fingerprint for version, failure in model.failed.items() if not self._due(failure, now_s)}
            action = next_action(prints, model.loaded, failed, model.config.policy)
            if action is None:
                return
            if action.verb is Verb.LOAD:
                self._take_up(name, model, action.version, on_disk[action.version], now_s)
            else:
                self._drop(name, model, action.version)

    def _due(self, failure: Failure, now_s: float) -> bool:
        """Whether a version that failed is tried again though its files are the same."""
        waited = now_s - failure.at_s >= self._loading.load_retry_interval_s
        return failure.tries <= self._loading.max_num_load_retries and waited and now_s > failure.at_s

    def _take_up(self, name: str, model: Model, version: int, found: version_files.VersionFiles, now_s: float) -> None:
        begin = time.perf_counter()
        is_served = version in model.served
        if not is_served:
            self._mark(model, version, State.LOADING)
        try:
            session = self._load(found.path)
        except Exception as error:
            if not isinstance(error, self._load_error):
                log.exception("loading version %d of %s failed in a way that was not thought of", version, name)
            before = model.failed.get(version)
            tries = before.tries + 1 if before and before.fingerprint == found.fingerprint else 1
            model.failed[version] = Failure(found.fingerprint, tries, now_s)
            # what is there goes on answering where its files were overwritten by worse ones
            self._mark(model, version, State.AVAILABLE if is_served else State.END, str(error))
            self._metrics.load_failed(name)
            event("load_failed", logging.ERROR, model=name, version=version, tries=tries, error=error)
            return
        model.failed.pop(version, None)
        model.served = {**model.served, version: session}
        self.generation = next(self._generations)
        model.loaded[version] = found.fingerprint
        self._mark(model, version, State.AVAILABLE)
        seconds = time.perf_counter() - begin
        self._metrics.loaded(name, seconds)
        event("loaded", model=name, version=version, ms=1000 * seconds)

    def _drop(self, name: str, model: Model, version: int) -> None:
        self._mark(model, version, State.UNLOADING)
        # a new dictionary: requests under way keep the session that they found
        model.served = {v: session for v, session in model.served.items() if v != version}
        self.generation = next(self._generations)
        model.loaded.pop(version, None)
        self._mark(model, version, State.END)
        event("unloaded", model=name, version=version)

    def _mark(self, model: Model, version: int, state: int, error: str = "") -> None:
        status = wire.ModelVersionStatus(version=version, state=state)  # type: ignore[arg-type]
        status.status.error_code = _UNKNOWN if error else 0
        status.status.error_message = error
        model.states = {**model.states, version: status}

    def close(self) -> None:
        """No model is looked after any more; what is loaded is let go."""
        self._pool.shutdown(wait=True)
        with self._busy:
            for model in self._models.values():
                model.served = {}

    def is_known(self, name: str) -> bool:
        """Whether there is, or was, a model of this name."""
        return name in self._models

    def versions_by_state(self) -> dict[str, int]:
        count = dict.fromkeys(State.State.keys(), 0)
        for model in list(self._models.values()):
            for status in model.states.values():
                count[State.State.Name(status.state)] += 1
        return count

    def served(self) -> dict[str, list[int]]:
        return {name: sorted(model.served) for name, model in list(self._models.items()) if model.served}

    def find(self, spec: wire.ModelSpec) -> tuple[int, Any]:
        """(version, session) of a model spec. Raises StatusError as TensorFlow Serving words it."""
        if not spec.name:
            raise invalid_argument("ServableRequest: name is empty" if spec.ByteSize() else "Missing ModelSpec")
        model = self._models.get(spec.name)
        served = model.served if model else {}
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
        """States of a model's versions, newest first. Raises StatusError."""
        model = self._models.get(spec.name)
        states = model.states if model else {}
        version = self._version(spec, model)
        if version is not None:
            if version not in states:
                raise not_found(f"Could not find version {version} of model {spec.name}")
            return [states[version]]
        if not states:
            raise not_found(f"Could not find any versions of model {spec.name}")
        return [states[version] for version in sorted(states, reverse=True)]
