"""`python -m training`: train TLs of a city by PPO.

Served models control other TLs meanwhile, and all other signals run their own programs.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from city import config, names
from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import print_line
from signals import contract
from simulation import model_files
from simulation.model_server import model_server
from simulation.street_simulation import street_with_demand
from simulation.target_tls import select_tls
from training import flags
from training.saved_state import locked, run_resumable, state_file


def main(argv: list[str] | None = None, prog: str = "python -m training") -> int:
    return run_resumable(parser(prog), argv, _train, lambda args: [state_file(args.out, args.model_number)])


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Train TLs of a city by PPO; their checkpoints are exported with greenserve export.",
        epilog="See also greenserve rounds and greenserve pretrain train.",
    )
    parser.add_city()
    parser.add_argument(
        "--target-tl",
        "--target-TLs",
        action="append",
        metavar="TL,...",
        help="TLs that learn (default: all but the infer TLs)",
    )
    parser.add_argument(
        "--infer-tl",
        "--infer-TLs",
        action="append",
        metavar="TL,...",
        help="TLs that a served model controls (default: none)",
    )
    flags.add_count(parser, "--infer-model-number", 0, "their model number (default: the newest)")
    parser.add_argument(
        "--infer-model-path", type=Path, metavar="DIR", help="folder of their models (default: [serving] models_dir)"
    )
    parser.add_argument(
        "--infer-model", action="append", default=[], metavar="TL=MODEL",
        help="model of an infer TL: NUMBER, DIR or DIR:NUMBER (default: that of --infer-model-number)",
    )  # fmt: skip
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="server of their models (default: an embedded one is started)"
    )
    flags.add(parser)
    flags.add_count(parser, "--model-number", 0, "model number of the checkpoints", 1)
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="TL=FORMAT",
        help="checkpoint format: tf1, tf2 or h5 (default: tf2)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("checkpoints"),
        metavar="DIR",
        help="folder of the results (default: checkpoints)",
    )
    parser.add_argument(
        "--checkpoint", choices=("best", "newest"),
        help="state to write: best on validation demand, or newest (after each update); with --resume also of a "
        "finished training (default: best)",
    )  # fmt: skip
    parser.add_strict()
    parser.add_argument("--resume", action="store_true", help="continue the training that was interrupted in --out")
    return parser


def _train(args: argparse.Namespace) -> int:
    flags.check(args)
    city = config.load(args.city)
    served = {
        "--server": args.server,
        "--infer-model-path": args.infer_model_path,
        "--infer-model-number": args.infer_model_number,
        "--infer-model": args.infer_model or None,
    }
    if args.server is not None and args.infer_model:
        raise InputError("--server and --infer-model both name the models; pass one of them")
    named = ("--target-tl", args.target_tl or None), ("--infer-tl", args.infer_tl or ())
    targets, infers = select_tls(city, *named, served)
    street = street_with_demand(city, (*targets, *infers), args.seconds)
    targets, notes = contract.require_controllable(city, targets, street, args.strict)
    for line in [*notes, *contract.program_notes(city, targets, street)]:
        print(line, file=sys.stderr)
    flags.check_applicable(args, city, targets, street)
    formats = _formats(args.format, targets)
    with locked(args.out, args.model_number):
        return _train_locked(args, city, targets, infers, formats)


def _train_locked(
    args: argparse.Namespace, city: config.City, targets: list[str], infers: list[str], formats: dict[str, str]
) -> int:
    """Train, while the lock of the model number is held. Raises InputError, ProgramFailed."""
    # after the checks of the flags: importing TensorFlow takes seconds
    from simulation.street_simulation import SimulationFailed
    from training.episode import TrainingTask
    from training.statistics import NotFinite
    from training.trainer import Trainer

    settings = flags.settings(args, city, targets, args.out, args.model_number)
    settings = replace(settings, formats=formats, resume=args.resume, writes_newest=args.checkpoint == "newest")
    versions: dict[str, Path] = {}
    if infers and args.server is None:
        models_dir = args.infer_model_path or city.serving.models_dir
        named = model_files.requested(args.infer_model, "--infer-model", infers, "--infer-tl", models_dir)
        for tl in infers:
            folder, number = named.get(tl, (models_dir, args.infer_model_number))
            versions |= model_files.find(folder, {tl: number})
    with model_server(versions) as embedded:
        task = TrainingTask(
            city,
            tuple(targets),
            tuple(infers),
            server=args.server or embedded,
            infer_model_number=args.infer_model_number if args.server is not None else None,
            reward=args.reward,
            shared=args.shared,
            hidden=settings.ppo.hidden_sizes,
            activation=settings.activation,
            seconds=args.seconds,
        )
        try:
            result = Trainer(task, settings, report=print_line).run()
        except (NotFinite, SimulationFailed) as error:
            raise ProgramFailed(f"{error}; the last checkpoints that were written, if any, are in {args.out}") from None
    for tl, path in result.paths.items():
        print(f"{tl}: {path}")
    assert result.fresh is not None, "it was asked for"
    print(f"{result.episodes} episodes; {result.fresh.text()}")
    return 0


def _formats(items: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    formats, index = {}, names.Index(targets)
    for item in items:
        name, _, kind = item.partition("=")
        tl = index.find(name)
        if kind not in ("tf1", "tf2", "h5") or tl is None:
            raise InputError(
                f"--format {item!r} must be TL=FORMAT with a target TL and tf1, tf2 or h5, such as {targets[0]}=tf1"
            )
        formats[tl] = kind
    return formats


if __name__ == "__main__":
    sys.exit(main())
