"""Which versions are served, and what state each is in.

`refresh` looks at the folder and does what version_policy says until there is
nothing left to do; requests meanwhile find the version that is served by one
dictionary look-up.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protos import predict_pb2 as wire
from serving.embedded import files
from serving.embedded.status import invalid_argument, not_found
from serving.embedded.version_policy import Verb, next_action

State = wire.ModelVersionStatus
log = logging.getLogger("serving")
_UNKNOWN = 2


@dataclass
class Model:
    served: dict[int, Any] = field(default_factory=dict)
    """Version -> session."""
    states: dict[int, wire.ModelVersionStatus] = field(default_factory=dict)
    loaded: dict[int, Any] = field(default_factory=dict)
    """Version -> fingerprint of the files that are served."""
    failed: dict[int, Any] = field(default_factory=dict)
    """Version -> fingerprint of the files that failed to load."""
    missed: bool = False
    """Whether the last look found no version at all."""


class ModelManager:
    """Serves the newest version of every model under a folder."""

    def __init__(
        self, models_dir: Path, load: Callable[[Path], Any], load_error: type[Exception], stopping: threading.Event
    ) -> None:
        """`stopping`: once it is set, no further model is looked at."""
        self._models_dir = models_dir
        self._load, self._load_error = load, load_error
        self._models: dict[str, Model] = {}
        self._busy = threading.Lock()
        self._stopping = stopping

    def refresh(self) -> int:
        """Bring what is served up to what lies in the folder; the number of models served."""
        with self._busy:
            found = files.scan(self._models_dir)
            for name in sorted({*found, *self._models}):
                if self._stopping.is_set():
                    break
                model = self._models.setdefault(name, Model())
                on_disk = found.get(name, {})
                if not on_disk and model.served and not model.missed:
                    # a version that is being replaced is away for a moment: gone is what is gone twice
                    model.missed = True
                    continue
                model.missed = False
                try:
                    self._settle(name, model, on_disk)
                except Exception:
                    log.exception("looking after model %s failed; the others go on", name)
        return len(self.served())

    def _settle(self, name: str, model: Model, on_disk: dict[int, files.VersionFiles]) -> None:
        prints = {version: found.fingerprint for version, found in on_disk.items()}
        while (action := next_action(prints, model.loaded, model.failed)) is not None:
            if action.verb is Verb.LOAD:
                self._take_up(name, model, action.version, on_disk[action.version])
            else:
                self._mark(model, action.version, State.UNLOADING)
                # a new dictionary: requests under way keep the session that they found
                model.served = {v: session for v, session in model.served.items() if v != action.version}
                model.loaded.pop(action.version, None)
                self._mark(model, action.version, State.END)
                log.info("unloaded %s version %d", name, action.version)

    def _take_up(self, name: str, model: Model, version: int, found: files.VersionFiles) -> None:
        begin = time.perf_counter()
        self._mark(model, version, State.LOADING)
        try:
            session = self._load(found.path)
        except self._load_error as error:
            model.failed[version] = found.fingerprint
            self._mark(model, version, State.END, str(error))
            log.error("%s version %d cannot be loaded: %s", name, version, error)
            return
        model.failed.pop(version, None)
        model.served = {**model.served, version: session}
        model.loaded[version] = found.fingerprint
        self._mark(model, version, State.AVAILABLE)
        log.info("loaded %s version %d in %.0f ms", name, version, 1000 * (time.perf_counter() - begin))

    def _mark(self, model: Model, version: int, state: int, error: str = "") -> None:
        status = wire.ModelVersionStatus(version=version, state=state)  # type: ignore[arg-type]
        status.status.error_code = _UNKNOWN if error else 0
        status.status.error_message = error
        model.states = {**model.states, version: status}

    def served(self) -> dict[str, list[int]]:
        return {name: sorted(model.served) for name, model in list(self._models.items()) if model.served}

    def find(self, spec: wire.ModelSpec) -> tuple[int, Any]:
        """(version, session) of a model spec. Raises StatusError as TensorFlow Serving words it."""
        if not spec.name:
            raise invalid_argument("ServableRequest: name is empty" if spec.ByteSize() else "Missing ModelSpec")
        if spec.WhichOneof("version_choice") == "version_label":
            raise invalid_argument(f"Unrecognized servable version label: {spec.version_label}")
        model = self._models.get(spec.name)
        served = model.served if model else {}
        if spec.HasField("version"):
            version = spec.version.value
            if version not in served:
                raise not_found(f"Servable not found for request: Specific({spec.name}, {version})")
            return version, served[version]
        if not served:
            raise not_found(f"Servable not found for request: Latest({spec.name})")
        newest = max(served)
        return newest, served[newest]

    def states(self, spec: wire.ModelSpec) -> list[wire.ModelVersionStatus]:
        """States of a model's versions, newest first. Raises StatusError."""
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
