"""Instruments that `benchmarks.control_loop` puts into a running loop: a recorder and a stopwatch."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controller.decision_step import DecisionLoop
from controller.sumo.connection import StepResult
from signals.observation import Observation
from signals.policy import Answer
from signals.safety.signal_safety import PermittedState, SignalCommand


class RunRecorder:
    """Records the commands and messages to SUMO, and the actions."""

    def __init__(self, loop: DecisionLoop, connection: Any, policies: Any) -> None:
        self.segments: list[tuple[list[tuple[str, str]], float]] = []
        """((signal, state) commands, second to which SUMO simulates after them)."""
        self.exchanges: list[tuple[str, int, float, int]] = []
        """(bytes sent, in hex; number of answers; second to which SUMO simulates; bytes of the answers)."""
        self.actions: list[dict[str, list[float]]] = []
        """The actions by TL, one item for each request to the policies."""
        messages = connection._messages
        self._socket, self._sent = messages.socket, bytearray()
        # original methods, which the recording ones call
        set_, advance, read, answers, ask = (
            connection.set,
            connection.advance,
            connection.read,
            messages.answers,
            policies.ask,
        )
        pending: list[tuple[str, str]] = []

        def recording_set(commands: Sequence[SignalCommand]) -> None:
            for command in commands:
                if not isinstance(command, PermittedState):
                    raise RuntimeError(f"only signal states can be replayed, not {command!r}")
                pending.append((command.signal, command.state))
            set_(commands)

        def recording_advance(until_s: float) -> None:
            self.segments.append((pending.copy(), until_s))
            pending.clear()
            advance(until_s)

        received, received_bytes, is_reading = 0, 0, False

        def recording_answers(count: int) -> Iterator[bytes]:
            nonlocal received, received_bytes
            for k, answer in enumerate(answers(count), 1):
                received += 1
                received_bytes += len(answer)
                if is_reading and k == count:
                    until_s = self.segments[-1][1] if self.segments else 0.0
                    self.exchanges.append((self._sent.hex(), received, until_s, received_bytes))
                    self._sent.clear()
                    received = received_bytes = 0
                yield answer

        def recording_read(due: tuple[str, ...]) -> StepResult:
            nonlocal is_reading
            is_reading = True
            try:
                result: StepResult = read(due)
                return result
            finally:
                is_reading = False

        def recording_ask(
            observations: Mapping[str, Observation], observed_s: float | None = None
        ) -> dict[str, Answer | Exception]:
            answers: dict[str, Answer | Exception] = ask(observations, observed_s)
            actions = {tl: answer.action for tl, answer in answers.items() if isinstance(answer, Answer)}
            self.actions.append(
                {tl: np.ravel(np.asarray(action, np.float64)).tolist() for tl, action in actions.items()}
            )
            return answers

        connection.set, connection.advance, connection.read = recording_set, recording_advance, recording_read
        messages.answers, messages.socket = recording_answers, self
        policies.ask = recording_ask

    def send(self, data: bytearray, flags: int = 0) -> int:
        count: int = self._socket.send(data, flags)
        self._sent += data[:count]
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"segments": self.segments, "exchanges": self.exchanges, "actions": self.actions}))


class Stopwatch:
    """Exclusive wall time of the parts of a decision step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Measure a method as part `name`, without the time of other wrapped methods that it calls."""
        function = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                duration_s = time.perf_counter() - begin
                self.seconds[name] = self.seconds.get(name, 0.0) + duration_s - self._inner.pop()
                self._inner[-1] += duration_s

        setattr(owner, method, timed)
