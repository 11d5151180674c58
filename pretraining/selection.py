"""From trained networks to one policy: the gate, and the product of the best networks that pass it."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from city import whole_files
from city.errors import InputError
from evaluation.arms import MAX_PRESSURE, POLICY, Arm
from export.actors.phase_competition import SHAPES
from export.checkpoints import phase_networks
from pretraining import gate, street_results
from pretraining.gate import REFERENCE, GateStreet, Verdict
from pretraining.packed_streets import for_jobs
from pretraining.state_files import AGAIN
from pretraining.street_results import StreetJob, StreetResult
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from training.phase_competition import policy_file
from training.phase_competition.networks import CRITIC_SHAPES
from training.saved_state import Arrays, SavedState, Values

PRODUCT = "product"
"""Name of the product at the gate."""


@dataclass(frozen=True)
class Selected:
    """The networks at the gate, and which are kept."""

    results: gate.Results
    verdicts: tuple[Verdict, ...]
    """On the networks, then on their product, if it has more than one."""
    kept: tuple[str, ...]
    """The networks that the policy consists of; empty if too few pass, and then there is no policy."""

    @property
    def passes(self) -> bool:
        """True if there is a policy, and it passes the gate, beside the networks that it consists of."""
        own = [verdict for verdict in self.verdicts if verdict.name in (*self.kept, PRODUCT)]
        return bool(own) and own[-1] in gate.best(own, len(own))

    def state(self, verdict: Verdict) -> str:
        """A verdict in a word."""
        if verdict.name == PRODUCT and not self.passes:
            return "fails"
        if verdict.failure:
            return "dropped"
        return "kept" if verdict.name in self.kept else "passes"


@dataclass
class Selection:
    """Gates networks and writes their product."""

    out: Path
    number: int
    """Model number of the product."""
    keep: int
    street_count: int
    seconds: float
    workers: int
    ray: str | None
    """Address of a Ray cluster that simulates; None: this machine."""
    resume: bool
    report: Callable[[str], None]
    """Called with lines of progress."""

    def __post_init__(self) -> None:
        """Raises InputError if it would replace files of an earlier run."""
        self.policy_file = policy_file.path_in(self.out, self.number)
        self._table_file = self.out / f"trial_{self.number}_gate.csv"
        self._state_file = self.out / f".trial_{self.number}.gate.npz"
        for path in (self.policy_file, self._table_file, self._state_file):
            if path.exists() and not self.resume:
                raise InputError(
                    f"{path}: already exists, with model number {self.number}; pass another --model-number or --out, "
                    "or --resume to continue"
                )
        self._saved: dict[str, dict[str, Sequence[Any]]] = {}
        """By simulation of a street, by digest of a policy's weights: the fields of StreetResult."""

    def run(self, networks: Mapping[str, Path]) -> Selected:
        """Gate networks, given as name -> policy file; write the results and, if enough pass, the product.

        Prints a line for each network.

        Raises:
            InputError: a file cannot be read or written.
            ProgramFailed: a street cannot be generated.
            SimulationFailed: SUMO has ended the simulation of each street.
        """
        for path in networks.values():
            phase_networks.load(path, CRITIC_SHAPES)
        streets = gate.streets(self.out / "gate_streets", self.street_count)
        names = [street.name for street in streets]
        identity = {"--gate-streets": names, "--seconds": self.seconds, "SUMO": version("eclipse-sumo")}
        self._state = SavedState(self._state_file, identity, AGAIN, "gate")
        if self.resume and self._state.path.exists():
            self._state.restore(self._set_state)
        # a policy of an earlier selection must not stand beside new results
        self.policy_file.unlink(missing_ok=True)
        results = self._simulate(streets, networks)
        verdicts = gate.judge(results, list(networks))
        self._print(verdicts)
        kept = gate.best(verdicts, self.keep)
        if len(kept) < self.keep:
            whole_files.write(self._table_file, gate.table(streets, results))
            self.report(
                f"{len(kept)} of {len(networks)} networks pass the gate, fewer than --keep {self.keep}, with at most "
                f"{gate.MAX_MEAN_RATIO:g} times the least mean delay, so no policy is written; the networks and "
                f"{self._table_file} are kept: with --resume, pass a smaller --keep or more networks"
            )
            return Selected(results, tuple(verdicts), ())
        chosen = {verdict.name: networks[verdict.name] for verdict in kept}
        own, judged = kept[0], verdicts
        if len(chosen) > 1:
            # what is used is simulated, not only its parts
            draft = self.out / f".{PRODUCT}.{os.getpid()}.draft"
            try:
                _save_product(draft, chosen.values(), {})
                together = self._simulate(streets, {**networks, PRODUCT: draft})
            finally:
                draft.unlink(missing_ok=True)
            results = together
            (own,) = gate.judge(results, [PRODUCT])
            self._print([own])
            judged = [*verdicts, own]
        self._write(chosen, streets, results, verdicts, own)
        whole_files.write(self._table_file, gate.table(streets, results))
        selected = Selected(results, tuple(judged), tuple(chosen))
        if not selected.passes and not own.failure:
            self.report(
                f"warning: the product fails the gate: its mean delay is more than {gate.MAX_MEAN_RATIO:g} times its "
                "best network's"
            )
        return selected

    def _simulate(self, streets: Sequence[GateStreet], networks: Mapping[str, Path]) -> gate.Results:
        """The results by simulation and network. Saves each, apart from those that SUMO has ended early."""
        keys = {name: _digest(path) for name, path in networks.items()} | {REFERENCE: REFERENCE}
        arms = [Arm(name, POLICY, policy=path) for name, path in networks.items()]
        arms.append(Arm(REFERENCE, MAX_PRESSURE))
        with executor(self.workers, self.ray) as runner:
            contents = {arm.name: arm.policy.read_bytes() for arm in arms if arm.policy and runner.moves_files}
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
                for arm in arms
                if keys[arm.name] not in self._saved.get(street.name, {})
            ]
            if jobs:
                self.report(f"gate: {len(jobs)} simulations of {len({street.folder for street in streets})} streets")
            for job, result in street_results.outcomes(runner, jobs, self.report):
                if result is not None:
                    self._saved.setdefault(job.name, {})[keys[job.arm.name]] = astuple(result)
                    self._state.save({"results": self._saved}, {})
        saved = {street.name: self._saved.get(street.name, {}) for street in streets}
        if not any(REFERENCE in by_key for by_key in saved.values()):
            raise SimulationFailed(
                f"SUMO has ended {REFERENCE}'s simulations of every street of the gate early; look at the reasons above"
            )
        return {
            street: {name: StreetResult(*by_key[key]) if key in by_key else None for name, key in keys.items()}
            for street, by_key in saved.items()
        }

    def _set_state(self, values: Values, _: Arrays) -> None:
        self._saved = values["results"]

    def _print(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            state = "fails" if verdict.failure else "passes"
            print(
                f"{verdict.name} {state} the gate: {verdict.mean_delay_s:.1f} s in the geometric mean, "
                f"{verdict.mean_ratio:.2f} times {REFERENCE}'s; {verdict.worst_ratio:.2f} times as slow "
                f"at worst ({verdict.worst_street}); {len(verdict.gridlocks)} gridlocks",
                flush=True,
            )
            if verdict.failure:
                dropped = "the product fails the gate" if verdict.name == PRODUCT else f"{verdict.name} is dropped"
                self.report(f"warning: {dropped}: {verdict.failure}")

    def _write(
        self,
        chosen: Mapping[str, Path],
        streets: Sequence[GateStreet],
        results: gate.Results,
        verdicts: Sequence[Verdict],
        product: Verdict,
    ) -> None:
        description = {
            "gate": {
                "streets": len({street.folder for street in streets if street.name in results}),
                "simulations": len(results),
                "first_seed": gate.FIRST_SEED,
                "last_seed": streets[-1].seed % gate.SEED_STEP,
                "seconds": self.seconds,
                "max_ratio": gate.MAX_RATIO,
                "max_mean_ratio": gate.MAX_MEAN_RATIO,
                "sumo": version("eclipse-sumo"),
                "reference": {"name": REFERENCE, "mean_delay_s": round(gate.reference_delay_s(results), 3)},
                "product": _facts(product),
                "networks": [_facts(verdict) | {"is_kept": verdict.name in chosen} for verdict in verdicts],
            }
        }
        _save_product(self.policy_file, chosen.values(), description)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names of files that tell them apart: their paths without the folders that they share."""
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [str(path.absolute().relative_to(shared)) for path in paths]


def _save_product(path: Path, networks: Iterable[Path], description: dict[str, Any]) -> None:
    """Write the networks of several policies as one. Raises InputError."""
    loaded = [phase_networks.load(own, CRITIC_SHAPES) for own in networks]
    actors = {name: np.concatenate([actor[name] for actor, _ in loaded]) for name in SHAPES}
    critics = {name: np.concatenate([critic[name] for _, critic in loaded]) for name in CRITIC_SHAPES}
    trainings = [training for own in networks for training in phase_networks.trainings(own)]
    phase_networks.save(path, actors, critics, {"training": trainings} | description)


def _facts(verdict: Verdict) -> dict[str, Any]:
    """A verdict for the description of a product; JSON has no infinite number."""
    values = {
        name: (round(value, 3) if math.isfinite(value) else None) if isinstance(value, float) else value
        for name, value in asdict(verdict).items()
    }
    return values | {"failure": verdict.failure}


def _digest(path: Path) -> str:
    """A digest of the actors' weights of a policy. Raises InputError."""
    actors, _ = phase_networks.load(path)
    return hashlib.sha256(b"".join(actors[name].tobytes() for name in SHAPES)).hexdigest()
