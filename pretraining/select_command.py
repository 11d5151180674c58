"""`greenserve pretrain select`: put trained networks through the gate, and make one policy of the best ones."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import GATE_FAILED, print_line
from pretraining.state_files import state_files
from simulation.executors import executor
from training import flags
from training.saved_state import locked, run_resumable

if TYPE_CHECKING:
    from pretraining.selection import Selected, Selection

DEFAULT_KEEP = 3
"""Networks of a policy, unless --keep says how many."""
SECONDS = 1200.0
"""Default of the simulated time."""


def main(argv: list[str] | None = None, prog: str = "python -m pretraining.select_command") -> int:
    """Select. Exit code: 0; 3 if no policy passes the gate; 2 if the input is wrong; 1 if the work fails."""
    return run_resumable(parser(prog), argv, _select, lambda args: state_files(args.out, args.model_number))


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Make one policy for any junction of those trained networks that are best at the gate.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".policy files of pretrain train")
    flags.add_seconds(parser, f"simulated time of a street (default: {SECONDS:g})", SECONDS)
    flags.add_workers(parser)
    add_gate(parser)
    return parser


def add_gate(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the gate, and of where the results are."""
    keep = f"networks that the policy is made of (default: {DEFAULT_KEEP}, or all if they are fewer)"
    flags.add_count(parser, "--keep", 1, keep)
    flags.add_count(parser, "--gate-streets", 1, "streets of the gate", 60)
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


def _select(args: argparse.Namespace) -> int:
    check_ray(args)
    # after the checks of the flags: importing TensorFlow takes seconds
    from pretraining.selection import names_of
    from simulation.street_simulation import SimulationFailed

    for path in args.files:
        if not path.is_file():
            raise InputError(f"{path}: no such file; pass .policy files of greenserve pretrain train")
    names = names_of(args.files)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{repeated} is named twice; remove one")
    with locked(args.out, args.model_number):
        try:
            own = selection(args, len(args.files))
            check_cluster(args)
            return exit_code(own, own.run(dict(zip(names, args.files, strict=True))))
        except SimulationFailed as error:
            raise ProgramFailed(str(error)) from None


def selection(args: argparse.Namespace, networks: int) -> "Selection":
    """The selection among a number of networks. Raises InputError."""
    from pretraining.selection import Selection

    keep = min(DEFAULT_KEEP, networks) if args.keep is None else args.keep
    if keep > networks:
        raise InputError(
            f"--keep {keep} is more than there are networks, {networks}; pass a smaller --keep or more networks"
        )
    return Selection(
        args.out,
        args.model_number,
        keep=keep,
        street_count=args.gate_streets,
        seconds=args.seconds,
        workers=args.workers,
        ray=args.ray,
        resume=args.resume,
        report=print_line,
    )


def check_cluster(args: argparse.Namespace) -> None:
    """Raise InputError if the Ray cluster does not answer: before streets are generated, not after."""
    with executor(args.workers, args.ray):
        pass


def exit_code(selection: "Selection", selected: "Selected") -> int:
    """Print the policy's file if it has passed the gate; the exit code."""
    return exported(selection.policy_file) if selected.passes else GATE_FAILED


def exported(path: Path) -> int:
    """Print the file of a policy, and how it is exported."""
    print(f"{path}: one policy for any junction; export it with greenserve export --model-path {path.parent} --tl all")
    return 0
