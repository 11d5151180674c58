"""The TL that a browser has selected: its steps are encoded, as a record has them, when a frame is made."""

import math

from controller.operator.page.panels import TlHistory
from controller.operator.run_state import RunState
from controller.operator.tl_layout import TlLayout
from controller.recording.messages import encode_tl_step
from protos import record_pb2 as record
from signals.fallback.control_mode import ControlMode


class WatchedTl:
    """Tells what is new at a TL since a browser's last frame. Used by the page's thread.

    Browsers whose newest step is the same have the same of a TL, so that they can share one of these.
    """

    def __init__(self, state: RunState, layout: TlLayout, tl: str) -> None:
        """`layout`: with the lanes of the readings."""
        self.contract = layout.contracts[tl]
        self._state, self._index = state, layout.index[tl]
        self._place, self._rows = layout.places[tl], layout.lane_rows[tl]
        self.number = -1
        """Number of the newest step that the browser has."""
        self._after_s = -math.inf
        self._steps: list[record.TlStep] = []
        """The newest with a decision, and the newest with states."""

    @property
    def is_first(self) -> bool:
        """True while the browser has nothing of this TL yet."""
        return self.number < 0

    def news(self) -> TlHistory:
        """Return the steps since the last call; at first, the whole history."""
        steps = [*self._steps]
        band = []
        queue = []
        kept = self._state.since(self.number)
        for step in kept:
            band += [[shown.begin_s, shown.end_s, *shown.states[self._place]] for shown in step.event.shown]
            encoded = encode_tl_step(step.event, self.contract, ControlMode(step.modes[self._index]))
            if encoded is None:
                continue
            steps.append(encoded)
            if encoded.HasField("decision"):
                queue.append([encoded.at_s, int(step.halting[self._rows].sum())])
        history = TlHistory(steps, band, queue, self._after_s)
        if kept:
            self.number, newest = kept[-1].number, kept[-1].event
            # what was sent for the seconds up to the next reading is part of this step
            self._after_s = max([newest.at_s, *(sent.at_s for sent in newest.sent)])
        decided = [k for k, step in enumerate(steps) if step.HasField("decision")]
        stated = [k for k, step in enumerate(steps) if step.states]
        self._steps = [steps[k] for k in sorted({*decided[-1:], *stated[-1:]})]
        return history
