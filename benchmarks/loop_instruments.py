"""What `benchmarks.control_loop` puts into a running loop to look at it."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from controller.decision_step import DecisionSteps
from controller.safety.signal_safety import PermittedState
from controller.sumo.link import StepResult


class Noted:
    """Notes the settings on their way to SUMO, and the messages."""

    def __init__(self, steps: DecisionSteps, link: Any) -> None:
        self.steps: list[tuple[list[tuple[str, str]], float]] = []
        self.exchanges: list[tuple[str, int, float]] = []
        """(bytes sent, in hex; answers to them; the second that they lead to)."""
        messages = link._messages
        self._socket, self._sent = messages.socket, bytearray()
        set_, go, read, answers = link.set, link.go, link.read, messages.answers
        newest: list[tuple[str, str]] = []

        def setting(settings: Sequence[PermittedState]) -> None:
            newest.extend((s.signal, s.state) for s in settings)
            set_(settings)

        def going(until_s: float) -> None:
            self.steps.append((newest.copy(), until_s))
            newest.clear()
            go(until_s)

        received, is_reading = 0, False

        def receiving(count: int) -> Iterator[bytes]:
            nonlocal received
            for k, answer in enumerate(answers(count), 1):
                received += 1
                if is_reading and k == count:
                    self.exchanges.append((self._sent.hex(), received, self.steps[-1][1] if self.steps else 0.0))
                    self._sent.clear()
                    received = 0
                yield answer

        def reading(due: tuple[str, ...]) -> StepResult:
            nonlocal is_reading
            is_reading = True
            try:
                moment: StepResult = read(due)
                return moment
            finally:
                is_reading = False

        link.set, link.go, link.read = setting, going, reading
        messages.answers, messages.socket = receiving, self

    def send(self, data: bytearray, flags: int) -> int:
        count: int = self._socket.send(data, flags)
        self._sent += data[:count]
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"steps": self.steps, "exchanges": self.exchanges}))


class Clocked:
    """Exclusive wall time of the parts of a decision step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def wrap(self, owner: Any, method: str, name: str) -> None:
        function = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - begin
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, method, timed)
