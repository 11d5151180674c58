"""A run of the sample city, in the real SUMO, and files of its record.

Detectors of every signal, TLs of three dialects, signals with two programs each, missing answers (hold, fallback,
recovery), overrides, a fleet's answer and a version that changes.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from city import config, network
from controller.decision_step import DecisionLoop
from controller.events import Subscriber
from controller.recording import run_start
from controller.recording.messages import Encoder
from controller.recording.record_writer import NS, RecordWriter
from controller.recording.run_start import RunStart
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from records.atspm import detectors
from signals import contract
from tests.conftest import GRID
from tests.records.replayed_city import ProjectingPolicies, run_city

SECONDS = 300
BEGIN_UNIX_NS = 1_790_000_000 * NS
RUN = "5f2c9a"
STREET_TL, SILENT_TL, FLEET_TL = "SA106", "SA104", "SA102"
SILENT_S = (60, 130)
"""When the policy of SILENT_TL gives no answer."""
NEW_VERSION_S = 150
"""From when on version 8 answers, not 7."""


class Policies(ProjectingPolicies):
    """Random valid actions. One TL gets no answer for a time, another a fleet's; the version changes."""

    def __init__(self, contracts: Sequence[pb.PolicyContract]) -> None:
        super().__init__(contracts)
        self.now, self._rng = 0.0, np.random.default_rng(1)

    def _answer(self, tl, observation):
        if tl == SILENT_TL and SILENT_S[0] <= self.now < SILENT_S[1]:
            return TimeoutError("no answer within 500 ms")
        model, version = "fleet" if tl == FLEET_TL else tl, 7 if self.now < NEW_VERSION_S else 8
        return super()._answer(tl, self._rng.normal(size=observation.size))._replace(model=model, version=version)


class Messages:
    def __init__(self, run: RunStart) -> None:
        self._encoder = Encoder(run)
        self.steps: list[tuple[record.Step, dict[str, record.TlStep], int]] = []

    def add(self, event):
        step, tl_steps = self._encoder.encode(event)
        self.steps.append((step, tl_steps, BEGIN_UNIX_NS + round(event.at_s * NS / 10)))

    def close(self):
        pass


@dataclass
class RecordedCity:
    start: RunStart
    steps: list[tuple[record.Step, dict[str, record.TlStep], int]]

    def write(self, path: Path, begin=0, end=None, file_number=0, run=RUN, flush_every=5, is_finished=True) -> Path:
        """A file with the steps from `begin` up to `end`, in chunks of `flush_every` steps."""
        city = run_start.encode(self.start, run, BEGIN_UNIX_NS, file_number)
        with path.open("wb") as stream:
            writer = RecordWriter(stream, city, self.start.network_files, BEGIN_UNIX_NS)
            writer.flush()
            for k, (step, tl_steps, publish_ns) in enumerate(self.steps[begin:end]):
                writer.add(step, tl_steps, publish_ns)
                if k % flush_every == flush_every - 1:
                    writer.flush()
            writer.flush()
            if is_finished:
                writer.finish()
        return path


def record_city(
    seconds: float = SECONDS,
    watch: Callable[[RunStart], list[Subscriber]] = lambda run: [],
    operate: Callable[[DecisionLoop], None] = lambda loop: None,
) -> RecordedCity:
    """Run the sample city.

    Args:
        seconds: simulated time.
        watch: makes subscribers beside the record.
        operate: called before each step, as an operator.
    """
    city = config.load(GRID / "city.toml")
    tls = {**city.tls, STREET_TL: replace(city.tls[STREET_TL], dialect="street")}
    safety = replace(city.safety, min_yellow_s=4, all_red_s=1, min_green_s=9)
    street = network.of_city(city)
    contracts = [contract.build(replace(city, safety=safety), tl, street) for tl in tls.values()]
    policies, messages = Policies(contracts), []

    def subscribe(run: RunStart) -> list[Subscriber]:
        messages.append(Messages(run))
        return [*messages, *watch(run)]

    def note_second(loop: DecisionLoop) -> None:
        policies.now = loop.now
        operate(loop)

    with tempfile.TemporaryDirectory() as folder:
        placed = Path(folder) / "detectors.add.xml"
        detectors.write(placed, detectors.place(street))
        run = run_city(
            replace(city, safety=safety),
            seconds,
            *("-a", f"{GRID / 'fixed_time.add.xml'},{placed}", "--seed", "1"),
            subscribe=subscribe,
            policies=policies,
            contracts=contracts,
            operate=note_second,
            releases_until_s=30.0,
        )
    return RecordedCity(run, messages[0].steps)
