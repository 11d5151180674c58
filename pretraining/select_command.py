"""`greenserve pretrain select`: put trained networks through the gate, and keep the best one that passes."""

import argparse
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

from city import whole_files
from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import GATE_FAILED, print_line
from evaluation.arms import BASELINES, POLICY, Arm
from export.actors.phase_competition import SHAPES
from export.checkpoints import phase_networks
from pretraining import gate, street_results
from pretraining.gate import REFERENCE, GateStreet, Verdict
from pretraining.street_results import StreetJob, StreetResult
from pretraining.streets import for_jobs
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from training import flags
from training.phase_competition.networks import CRITIC_SHAPES, policy_path
from training.saved_state import Arrays, TrainingState, Values, locked, run_resumable

SECONDS = 1200.0
"""Default of the simulated time."""


def state_file(out: Path, number: int) -> Path:
    """The file from which a gate resumes."""
    return out / f".trial_{number}.gate.npz"


def main(argv: list[str], prog: str) -> int:
    """Select. Exit code: 0; 3 if no network passes the gate; 2 if the input is wrong; 1 if the work fails."""
    return run_resumable(parser(prog), argv, _select, lambda args: [state_file(args.out, args.model_number)])


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog, description="Put trained networks through the gate, and write the best one that passes as a policy."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".policy files of pretrain train")
    flags.add_seconds(parser, f"simulated time of a street (default: {SECONDS:g})", SECONDS)
    flags.add_workers(parser)
    flags.add_count(parser, "--gate-streets", 1, "synthetic streets of the gate, beside the plain ones", gate.STREETS)
    add_results(parser)
    return parser


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the Ray cluster, and of where the results are."""
    parser.add_argument("--ray", metavar="ADDRESS", help="simulate on a Ray cluster: HOST:PORT of its head, or auto")
    flags.add_count(parser, "--model-number", 0, "model number of the policy", 1)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("checkpoints"),
        metavar="DIR",
        help="folder of the results (default: checkpoints)",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run that was interrupted in --out")


def check_ray(args: argparse.Namespace) -> None:
    """Raise InputError if --ray and --workers are given."""
    if args.ray is not None and args.workers != 1:
        raise InputError(
            "--ray uses every CPU of its cluster, and --workers is for this machine; leave one of them out"
        )


def check_cluster(args: argparse.Namespace) -> None:
    """Raise InputError if the Ray cluster does not answer: before streets are generated, not after."""
    with executor(args.workers, args.ray):
        pass


def exported(path: Path) -> int:
    """Print the file of a policy, and how it is exported."""
    print(f"{path}: one policy for any junction; export it with greenserve export --model-path {path.parent} --tl all")
    return 0


def _select(args: argparse.Namespace) -> int:
    check_ray(args)
    for path in args.files:
        if not path.is_file() or path.suffix != phase_networks.SUFFIX:
            raise InputError(f"{path}: no such {phase_networks.SUFFIX} file; pass files of greenserve pretrain train")
    names = _names_of(args.files)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{repeated} is named twice; remove one")
    with locked(args.out, args.model_number):
        selection = NetworkSelection(args, dict(zip(names, args.files, strict=True)))
        check_cluster(args)
        try:
            return GATE_FAILED if selection.run() is None else exported(selection.policy_file)
        except SimulationFailed as error:
            raise ProgramFailed(str(error)) from None


def _names_of(paths: Sequence[Path]) -> list[str]:
    """Names of files that tell them apart: their paths without the folders that they share."""
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [str(path.absolute().relative_to(shared)) for path in paths]


class NetworkSelection:
    """Judges networks, and writes the best one that passes."""

    def __init__(self, args: argparse.Namespace, networks: Mapping[str, Path]) -> None:
        """Read the networks. Raises InputError if one is invalid, or files that are no earlier gate's would be
        replaced.

        `networks`: policy files by name.
        """
        self._args, self._networks = args, networks
        self._state_file = state_file(args.out, args.model_number)
        self.policy_file = policy_path(args.out, args.model_number)
        self._table_file = args.out / f"trial_{args.model_number}_gate.csv"
        if any(path.resolve() == self.policy_file.resolve() for path in networks.values()):
            raise InputError(
                f"{self.policy_file}: is a network and the file of the result; pass another --model-number or --out"
            )
        for path in (self.policy_file, self._table_file, self._state_file):
            if path.exists() and not (args.resume and self._state_file.exists()):
                raise InputError(
                    f"{path}: already exists, with model number {args.model_number}; pass another --model-number or "
                    "--out, or --resume to continue a gate"
                )
        self._digests = {name: _digest(path) for name, path in networks.items()}
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
        streets = gate.streets(self._args.out / "gate_streets", self._args.gate_streets)
        plain = gate.plain_streets(self._args.out / "plain_streets")
        identity = {
            "--gate-streets": [street.name for street in streets],
            "--seconds": self._args.seconds,
            "SUMO": version("eclipse-sumo"),
            "plain streets": [street.name for street in plain],
        }
        state = TrainingState(self._state_file, identity, "remove it and repeat the command", "gate")
        if self._args.resume and self._state_file.exists():
            state.restore(self._set_state)
        # a policy of an earlier selection must not stand beside new results
        self.policy_file.unlink(missing_ok=True)
        results = self._simulate([*streets, *plain], state)
        whole_files.write(self._table_file, gate.table([*streets, *plain], results))
        synthetic = {street.name: results[street.name] for street in streets}
        verdicts = gate.judge(synthetic, gate.by_street(plain, results), list(self._networks))
        for verdict in verdicts:
            print(verdict.text, flush=True)
            if verdict.failure:
                print_line(f"warning: {verdict.name} is dropped: {verdict.failure}")
        best = gate.best(verdicts)
        if best is None:
            print_line(f"no network passes the gate, so no policy is written; {self._table_file} has the results")
        else:
            self._write(best, streets)
        return best

    def _simulate(self, streets: Sequence[GateStreet], state: TrainingState) -> gate.Results:
        """Simulate networks and baselines; save each result, apart from those that SUMO has ended early."""
        networks = [Arm(name, POLICY, policy=path) for name, path in self._networks.items()]
        keys = self._digests | {name: name for name in BASELINES}
        with executor(self._args.workers, self._args.ray) as runner:
            contents = {arm.name: arm.policy.read_bytes() for arm in networks if arm.policy and runner.moves_files}
            jobs = [
                StreetJob(
                    street.name,
                    for_jobs(runner, street.folder),
                    street.seed,
                    street.vehicles_per_lane_h,
                    self._args.seconds,
                    arm,
                    contents.get(arm.name),
                )
                for street in streets
                for arm in (*networks, *(Arm(name, name) for name in street.baselines))
                if keys[arm.name] not in self._saved.get(street.name, {})
            ]
            if jobs:
                print_line(f"gate: {len(jobs)} simulations of {len({street.folder for street in streets})} streets")
            for job, result in street_results.outcomes(runner, jobs, print_line):
                if result is not None:
                    self._saved.setdefault(job.name, {})[keys[job.arm.name]] = astuple(result)
                    state.save({"results": self._saved}, {})
        if not any(REFERENCE in by_key for by_key in self._saved.values()):
            raise SimulationFailed(
                f"SUMO has ended {REFERENCE}'s simulations of every street of the gate early; look at the reasons above"
            )
        results: dict[str, dict[str, StreetResult | None]] = {}
        for street in streets:
            saved = {key: StreetResult(*fields) for key, fields in self._saved.get(street.name, {}).items()}
            results[street.name] = {name: saved.get(keys[name]) for name in (*self._networks, *street.baselines)}
        return results

    def _set_state(self, values: Values, _: Arrays) -> None:
        self._saved = values["results"]

    def _write(self, best: Verdict, streets: Sequence[GateStreet]) -> None:
        """Write the policy: the network as it is, with its verdict."""
        path = self._networks[best.name]
        facts = {
            name: (round(value, 3) if math.isfinite(value) else None) if isinstance(value, float) else value
            for name, value in asdict(best).items()
        }
        facts |= {
            "streets": len({street.folder for street in streets}),
            "simulations": len(streets),
            "first_seed": gate.FIRST_SEED,
            "last_seed": streets[-1].seed % gate.SEED_STEP,
            "seconds": self._args.seconds,
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
