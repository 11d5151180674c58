"""The gate for trained networks, and the policy of the best one that passes it."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from city import whole_files
from city.errors import InputError
from evaluation.arms import BASELINES, POLICY, Arm
from export.actors.phase_competition import SHAPES
from export.checkpoints import phase_networks
from pretraining import gate, street_results
from pretraining.gate import REFERENCE, GateStreet, Verdict
from pretraining.packed_streets import for_jobs
from pretraining.street_results import StreetJob, StreetResult
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from training.phase_competition import policy_file
from training.phase_competition.networks import CRITIC_SHAPES
from training.saved_state import Arrays, TrainingState, Values


def state_file(out: Path, number: int) -> Path:
    """The file from which a gate resumes."""
    return out / f".trial_{number}.gate.npz"


@dataclass
class NetworkSelection:
    """Judges networks, and writes the best one that passes."""

    out: Path
    number: int
    """Model number of the policy."""
    networks: Mapping[str, Path]
    """Policy files by name."""
    street_count: int
    """Number of synthetic streets."""
    seconds: float
    workers: int
    ray: str | None
    """Address of a Ray cluster that simulates; None: this machine."""
    resume: bool
    report: Callable[[str], None]
    """Called with lines of progress."""

    def __post_init__(self) -> None:
        """Read the networks. Raises InputError if one is invalid, or files that are no earlier gate's would be
        replaced."""
        self.policy_file = policy_file.path_in(self.out, self.number)
        self._table_file = self.out / f"trial_{self.number}_gate.csv"
        state = state_file(self.out, self.number)
        if any(path.resolve() == self.policy_file.resolve() for path in self.networks.values()):
            raise InputError(
                f"{self.policy_file}: is a network and the file of the result; pass another --model-number or --out"
            )
        for path in (self.policy_file, self._table_file, state):
            if path.exists() and not (self.resume and state.exists()):
                raise InputError(
                    f"{path}: already exists, with model number {self.number}; pass another --model-number or --out, "
                    "or --resume to continue a gate"
                )
        self._digests = {name: _digest(path) for name, path in self.networks.items()}
        self._saved: dict[str, dict[str, Sequence[Any]]] = {}
        """By simulation of a street, by digest of a network's weights or name of a baseline: the fields of
        StreetResult."""

    def run(self) -> Verdict | None:
        """Simulate, write the table and the policy, and return its verdict; None if no network passes.

        Prints a line for each network.

        Raises:
            InputError: a file cannot be read or written.
            ProgramFailed: a street cannot be generated.
            SimulationFailed: SUMO has ended the simulation of each street.
        """
        streets = gate.streets(self.out / "gate_streets", self.street_count)
        plain = gate.plain_streets(self.out / "plain_streets")
        identity = {
            "--gate-streets": [street.name for street in streets],
            "--seconds": self.seconds,
            "SUMO": version("eclipse-sumo"),
            "plain streets": [street.name for street in plain],
        }
        remedy = "remove it and repeat the command"
        self._state = TrainingState(state_file(self.out, self.number), identity, remedy, "gate")
        if self.resume and self._state.path.exists():
            self._state.restore(self._set_state)
        # a policy of an earlier selection must not stand beside new results
        self.policy_file.unlink(missing_ok=True)
        results = self._simulate([*streets, *plain])
        whole_files.write(self._table_file, gate.table([*streets, *plain], results))
        synthetic = {street.name: results[street.name] for street in streets}
        verdicts = gate.judge(synthetic, gate.by_street(plain, results), list(self.networks))
        for verdict in verdicts:
            self._print(verdict)
        best = gate.best(verdicts)
        if best is None:
            self.report(f"no network passes the gate, so no policy is written; {self._table_file} has the results")
        else:
            self._write(best, streets)
        return best

    def _simulate(self, streets: Sequence[GateStreet]) -> gate.Results:
        """Simulate networks and baselines; save each result, apart from those that SUMO has ended early."""
        networks = [Arm(name, POLICY, policy=path) for name, path in self.networks.items()]
        keys = self._digests | {name: name for name in BASELINES}
        with executor(self.workers, self.ray) as runner:
            contents = {arm.name: arm.policy.read_bytes() for arm in networks if arm.policy and runner.moves_files}
            jobs = [
                StreetJob(
                    street.name,
                    for_jobs(runner, street.folder),
                    street.seed,
                    street.vehicles_per_lane_h,
                    self.seconds,
                    arm,
                    contents.get(arm.name),
                )
                for street in streets
                for arm in (*networks, *(Arm(name, name) for name in street.baselines))
                if keys[arm.name] not in self._saved.get(street.name, {})
            ]
            if jobs:
                self.report(f"gate: {len(jobs)} simulations of {len({street.folder for street in streets})} streets")
            for job, result in street_results.outcomes(runner, jobs, self.report):
                if result is not None:
                    self._saved.setdefault(job.name, {})[keys[job.arm.name]] = astuple(result)
                    self._state.save({"results": self._saved}, {})
        if not any(REFERENCE in by_key for by_key in self._saved.values()):
            raise SimulationFailed(
                f"SUMO has ended {REFERENCE}'s simulations of every street of the gate early; look at the reasons above"
            )
        return {street.name: self._results(street, keys) for street in streets}

    def _results(self, street: GateStreet, keys: Mapping[str, str]) -> dict[str, StreetResult | None]:
        """The saved results of a simulation, by name of a network or baseline."""
        saved = self._saved.get(street.name, {})
        names = (*self.networks, *street.baselines)
        return {name: StreetResult(*saved[keys[name]]) if keys[name] in saved else None for name in names}

    def _set_state(self, values: Values, _: Arrays) -> None:
        self._saved = values["results"]

    def _print(self, verdict: Verdict) -> None:
        print(
            f"{verdict.name} {'fails' if verdict.failure else 'passes'} the gate: {verdict.mean_delay_s:.1f} s in the "
            f"geometric mean, {verdict.mean_ratio:.2f} times {REFERENCE}'s; {verdict.worst_ratio:.2f} times as slow "
            f"at worst ({verdict.worst_street}); {len(verdict.gridlocks)} gridlocks; less delay than every baseline on "
            f"{verdict.plain_better} of {verdict.plain_count} plain streets",
            flush=True,
        )
        if verdict.failure:
            self.report(f"warning: {verdict.name} is dropped: {verdict.failure}")

    def _write(self, best: Verdict, streets: Sequence[GateStreet]) -> None:
        """Write the policy: the network as it is, with its verdict."""
        path = self.networks[best.name]
        facts = {
            name: (round(value, 3) if math.isfinite(value) else None) if isinstance(value, float) else value
            for name, value in asdict(best).items()
        }
        facts |= {
            "streets": len({street.folder for street in streets}),
            "simulations": len(streets),
            "first_seed": gate.FIRST_SEED,
            "last_seed": streets[-1].seed % gate.SEED_STEP,
            "seconds": self.seconds,
            "max_ratio": gate.MAX_RATIO,
            "max_plain_ratio": gate.MAX_PLAIN_RATIO,
            "sumo": version("eclipse-sumo"),
            "reference": REFERENCE,
        }
        description = phase_networks.description_of(path) | {"gate": facts}
        phase_networks.save(self.policy_file, *phase_networks.load(path, CRITIC_SHAPES), description)


def _digest(path: Path) -> str:
    """A digest of the actor's weights of a policy. Raises InputError."""
    actor, _ = phase_networks.load(path, CRITIC_SHAPES)
    return hashlib.sha256(b"".join(actor[name].tobytes() for name in SHAPES)).hexdigest()
