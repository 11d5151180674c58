"""Cost of a record: the controlled simulation with and without it, and the bytes it writes.

    python -m benchmarks.record [--seconds 1200] [--rounds 3] [--street NAME ...] [--transport traci|libsumo]

All TLs of a street are controlled, in the sumo-rl dialect, with the same random actions (and scores) in each case. The
cases run interleaved, each in a process of its own, in turns of a twelfth of the simulated time (`benchmarks.turns`):

- without a record;
- recorded, as a simulation at full speed does it: a chunk each second of wall time;
- recorded with a chunk at each step, as a run in real time does it: more bytes, because a chunk is compressed by
  itself;
- recorded with the detectors of `greenserve detectors`, which SUMO simulates too and which are read after each of its
  steps.

The last turn includes the end of the record: all of it is written, with its index, and on the disk (fsync). Not
included is the start, before control begins, when the network is compressed. Printed are the time of a round, the ratio
of the sums and the median of the turns' ratios to the case without a record, and the bytes by TL and hour, without the
network's files.
Streets: the sample city; cologne8 and ingolstadt7 of RESCO, which sumo-rl's wheel has (pip install sumo-rl); a
generated grid of 1,000 signals, for a tenth of the time.
Budget: 1.03 x the case without a record; detectors have none.
"""

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from benchmarks import harness, thousand_signals
from benchmarks.control_cases import RandomPolicies, check_connection, contracts_of, open_connection
from benchmarks.control_loop import TURNS, parts
from benchmarks.turns import ROOT, Command, serve_turns, take_turns
from city import config, network, sumo_files
from controller.assembly import ControlledTls, checked_start, loop_from, take_over
from controller.recording import recorder
from controller.recording.detectors import track_detectors
from controller.recording.record_folder import RecordFolder
from controller.recording.recorder import Recorder
from controller.recording.run_start import of_tls
from controller.telemetry.metrics import RecordMetrics
from protos import policy_pb2 as pb
from records.atspm import detectors
from records.record_reader import RecordReader
from signals.observation import Observation
from signals.policy import Answer

PLAIN, RECORDED, REAL_TIME = "without a record", "recorded", "recorded, a chunk a step"
WITH_DETECTORS = "recorded, with detectors"
CASES = (PLAIN, RECORDED, REAL_TIME, WITH_DETECTORS)
GRID, THOUSAND = "grid", "thousand"
RESCO = ("cologne8", "ingolstadt7")
MAX_BYTES = 10**12


class ScoredPolicies:
    """Random actions with all that a record keeps of an answer."""

    def __init__(self, contracts: list[pb.PolicyContract]) -> None:
        self._random = RandomPolicies(contracts)
        self._scores = {
            c.tl: np.random.default_rng(1).dirichlet(np.ones(c.action.size)).astype(np.float32) for c in contracts
        }

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        return {
            tl: Answer(answer.action, 1, tl, self._scores[tl]) if isinstance(answer, Answer) else answer
            for tl, answer in self._random.ask(observations).items()
        }


def controlled(sumocfg: Path, seconds: float, case: str, transport: str, folder: str) -> Iterator[float]:
    """The controller's decision steps on a street, recorded into `folder` if the case records."""
    if case == REAL_TIME:
        recorder.FLUSH_INTERVAL_S = 0.0
    street = network.of_sumocfg(sumocfg)
    contracts = contracts_of(street, "sumo-rl")
    options: list[str] = []
    if case == WITH_DETECTORS:
        additional = Path(folder).with_suffix(".add.xml")
        detectors.write(additional, detectors.place(street))
        listed = sumo_files.listed_files(sumocfg, "additional-files")
        options = ["--additional-files", ",".join(map(str, [*listed, additional]))]
    connection = open_connection(transport, sumocfg, options)
    check_connection(connection, transport)
    start = checked_start(connection, street, contracts)
    tls = ControlledTls(street, tuple(contracts), config.Safety(), config.Controller())
    metrics, subscribers = RecordMetrics(CollectorRegistry()), []
    if case != PLAIN:
        found = track_detectors(connection, start.signals, start.sumo_step_s)
        run = of_tls(tls, start, found)
        subscribers.append(Recorder(RecordFolder(Path(folder), MAX_BYTES), run, metrics))
    loop = loop_from(start, connection, tls, ScoredPolicies(contracts), subscribers)
    take_over(connection, street, start)
    end_s = loop.now + seconds
    yield loop.now
    while loop.now < end_s:
        loop.step(end_s)
        if loop.now >= end_s:
            loop.finish()
            loop.close()
        yield loop.now
    connection.close()
    dropped = metrics.dropped_steps.collect()[0].samples[0].value
    if loop.counters.missing_answers or metrics.stopped.collect()[0].samples[0].value or dropped:
        raise RuntimeError(f"the figures would be invalid: the record is not whole ({dropped:g} steps are missing)")


def measure(name: str, sumocfg: Path, seconds: float, rounds: int, transport: str) -> None:
    """Run and print the cases of a street."""
    street = network.of_sumocfg(sumocfg)
    tls = len(contracts_of(street, "sumo-rl"))
    times: dict[str, list[float]] = {case: [] for case in CASES}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as text:
            folders = {case: Path(text) / str(k) for k, case in enumerate(CASES)}
            commands = {}
            for case, folder in folders.items():
                folder.mkdir()
                arguments = ("--case", str(sumocfg), str(seconds), case, transport, str(folder))
                commands[case] = Command(("-m", "benchmarks.record", *arguments))
            for case, times_s in take_turns(commands, parts(street.begin_s, seconds)).items():
                times[case] += times_s
            sizes = {case: sum(steps_bytes(path) for path in folders[case].iterdir()) for case in CASES[1:]}
    print(f"\n{name}: {tls} TLs, {seconds:g} s simulated over {transport}, {rounds} rounds in {TURNS} turns each")
    for case, times_s in times.items():
        ratio = sum(times_s) / sum(times[PLAIN])
        median = statistics.median(a / b for a, b in zip(times_s, times[PLAIN], strict=True))
        line = f"  {case:<26}{sum(times_s) / rounds:>9.2f} s{ratio:>8.3f}{median:>8.3f} x"
        if case in sizes:
            line += f"{sizes[case] / 1000 / tls / (seconds / 3600):>10.0f} kB a TL and hour"
        print(line, flush=True)


def steps_bytes(path: Path) -> int:
    """The size of a file without the network's files."""
    with RecordReader(path) as reader:
        if not list(reader.steps()) or reader.missing:
            raise RuntimeError(f"{path} is not whole: {reader.missing}")
        return path.stat().st_size - sum(map(len, reader.attachments.values()))


def resco(name: str) -> Path | None:
    """The .sumocfg of a street of RESCO in sumo-rl's wheel, if it is installed."""
    spec = importlib.util.find_spec("sumo_rl")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "nets" / "RESCO" / name / f"{name}.sumocfg"


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        cfg, seconds, case, transport, folder = sys.argv[2:]
        serve_turns(controlled(Path(cfg), float(seconds), case, transport, folder))
        return
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=1200, help="simulated time; a tenth of it on the generated street"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case (default: %(default)s)")
    parser.add_argument("--street", action="append", choices=(GRID, *RESCO, THOUSAND), help="default: all")
    parser.add_argument("--transport", choices=("traci", "libsumo"), default="traci", help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.street or (GRID, *RESCO, THOUSAND):
            seconds = args.seconds / 10 if name == THOUSAND else args.seconds
            if name == THOUSAND:
                path: Path | None = thousand_signals.write(Path(folder), thousand_signals.DAY)
            else:
                path = resco(name) if name in RESCO else ROOT / "examples" / "grid" / "grid.sumocfg"
            if path is None:
                print(f"\n{name}: left out; pip install sumo-rl")
                continue
            measure(name, path, seconds, args.rounds, args.transport)


if __name__ == "__main__":
    main()
