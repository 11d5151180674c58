"""`greenserve pretrain select`: put trained networks through the gate, and keep the best one that passes."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import GATE_FAILED, print_line
from export.checkpoints.phase_networks import SUFFIX
from pretraining.gate import STREETS
from pretraining.selection import NetworkSelection, state_file
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from training import flags
from training.saved_state import locked, run_resumable

SECONDS = 1200.0
"""Default of the simulated time."""


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
    flags.add_count(parser, "--gate-streets", 1, "synthetic streets of the gate, beside the plain ones", STREETS)
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
        if not path.is_file() or path.suffix != SUFFIX:
            raise InputError(f"{path}: no such {SUFFIX} file; pass files of greenserve pretrain train")
    names = _names_of(args.files)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{repeated} is named twice; remove one")
    with locked(args.out, args.model_number):
        selection = NetworkSelection(
            args.out,
            args.model_number,
            networks=dict(zip(names, args.files, strict=True)),
            street_count=args.gate_streets,
            seconds=args.seconds,
            workers=args.workers,
            ray=args.ray,
            resume=args.resume,
            report=print_line,
        )
        check_cluster(args)
        try:
            return GATE_FAILED if selection.run() is None else exported(selection.policy_file)
        except SimulationFailed as error:
            raise ProgramFailed(str(error)) from None


def _names_of(paths: Sequence[Path]) -> list[str]:
    """Names of files that tell them apart: their paths without the folders that they share."""
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [str(path.absolute().relative_to(shared)) for path in paths]
