"""Detections, made of the vehicles that came onto detectors and left them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from controller.recording.detectors import Detector
from protos import record_pb2 as record
from records.atspm.analysis_period import Detection
from records.atspm.spool import Series, Spool


class DetectionCollector:
    """Collects entries and exits; a detector is occupied while a vehicle is on it."""

    def __init__(self, detectors: Sequence[Detector], spool: Spool | None = None) -> None:
        self._detectors = detectors
        self._changes = {detector.signal: Series[tuple[int, bool, int]](spool) for detector in detectors}
        """By signal, (ms, whether it is an exit, detector): an entry comes before an exit of the same moment."""
        self._on: Counter[int] = Counter()
        """Vehicles on each detector."""

    def add(self, changes: record.DetectorChanges) -> None:
        """Add the entries and exits of a step. An exit without an entry is left out: the entry was in a hole."""
        for detector, time_s, is_entry in zip(changes.detector, changes.time_s, changes.is_entry, strict=False):
            if detector < len(self._detectors) and (is_entry or self._on[detector]):
                self._on[detector] += 1 if is_entry else -1
                self._change(time_s, not is_entry, detector)

    def end_all(self, time_s: float) -> None:
        """Free every detector, because what follows is not known."""
        for detector in self._on.elements():
            self._change(time_s, True, detector)
        self._on.clear()

    def _change(self, time_s: float, is_exit: bool, detector: int) -> None:
        self._changes[self._detectors[detector].signal].append((round(1000 * time_s), is_exit, detector))

    def detections(self, signals: Iterable[str] | None = None) -> Iterator[Detection]:
        """Each detector of some signals that became occupied or free, in order of time. `signals`: None for all."""
        on: Counter[int] = Counter()
        own = (self._changes.get(signal, ()) for signal in (self._changes if signals is None else signals))
        for time_ms, is_exit, detector in sorted(change for changes in own for change in changes):
            on[detector] += -1 if is_exit else 1
            if on[detector] == (0 if is_exit else 1):
                yield Detection(self._detectors[detector].id, time_ms / 1000, not is_exit)
