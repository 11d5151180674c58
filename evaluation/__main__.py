"""`python -m evaluation`: compare served policies with baselines in paired simulations, and decide whether they are
better."""

import argparse
import sys
from pathlib import Path

from city import program
from city.arguments import MAX_SECONDS, Parser, bounded, check_server
from city.errors import InputError
from evaluation.arms import SERVED

MAX_COUNT = 100_000


def main(argv: list[str] | None = None, prog: str = "python -m evaluation") -> int:
    """Run an evaluation. Exit code: 0; 3 if the gate is not passed; 2 if the input is wrong; 1 if the work fails."""

    def evaluate() -> int:
        args = _parse(argv, prog)
        # after the checks of the flags: the imports take a second
        from evaluation import command

        return command.run(args)

    return program.run(evaluate)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Compare served policies with baselines on the same demand.")
    parser.add_city()
    parser.add_argument(
        "--tl", action="append", metavar="TL,...",
        help="TLs that are compared; if the city's description has no TL, every signal with two greens or more is one "
        "(default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--arms", default="served,fixed,actuated,max-pressure", metavar="ARM,...",
        help="served, served:NUMBER, pretrained, policy:FILE, fixed, actuated, max-pressure, greedy (default: "
        "served,fixed,actuated,max-pressure)",
    )  # fmt: skip
    parser.add_argument(
        "--candidate", metavar="ARM",
        help="the arm that is proposed: the others are compared with it (default: the first that is not fixed)",
    )  # fmt: skip
    count, seed = bounded(int, 1, MAX_COUNT), bounded(int, 0, MAX_COUNT)
    parser.add_argument("--seeds", type=count, default=10, metavar="N", help="simulations of each arm (default: 10)")
    parser.add_argument("--first-seed", type=seed, default=1, metavar="N", help="seed of the first one (default: 1)")
    demand = parser.add_mutually_exclusive_group()
    demand.add_argument(
        "--vary-demand",
        action="store_true",
        help="vary the demand between the seeds, as training does; --gate does it too",
    )
    demand.add_argument(
        "--same-demand", action="store_true", help="vary the drivers alone between the seeds, also with --gate"
    )
    parser.add_argument(
        "--seconds",
        type=bounded(float, 1, MAX_SECONDS),
        metavar="S",
        help="simulated time (default: until the sumocfg's end)",
    )
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="server of the models (default: an embedded one is started)"
    )
    parser.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="TL=MODEL",
        help="what arm served uses for a TL: NUMBER, DIR or DIR:NUMBER (default: the newest in --models-dir)",
    )  # fmt: skip
    parser.add_strict()
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument("--ray", metavar="ADDRESS", help="simulate on a Ray cluster: HOST:PORT of its head, or auto")
    parser.add_argument(
        "--faults", metavar="FAULT=SHARE,...",
        help="simulate arms of the controller once more with faulty detectors: missing, stuck, noisy (such as "
        "missing=0.1)",
    )  # fmt: skip
    parser.add_argument("--emissions", action="store_true", help="compute the vehicles' emissions (slower)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write report.html with pages of signals, results.json and results.csv there",
    )
    parser.add_argument(
        "--gate",
        metavar="ARM",
        help="exit 3 unless the candidate's delay is lower than this arm's by its interval over varied demands (with "
        "--same-demand: over drivers)",
    )
    return parser


def _parse(argv: list[str] | None, prog: str) -> argparse.Namespace:
    args = parser(prog).parse_args(argv)
    if args.ray is not None and args.workers != 1:
        raise InputError(
            "--ray uses every CPU of its cluster, and --workers is for this machine; leave one of them out"
        )
    if args.server is not None and args.models_dir is not None:
        raise InputError("--server and --models-dir both name the models; pass one of them")
    if args.server is not None:
        check_server(args.server, "--server")
        if args.ray is not None:
            raise InputError("--ray starts its own model servers; leave --server out")
        if args.model:
            raise InputError("--model names files, and --server has models of its own; leave one of them out")
    if args.model and SERVED not in [name.strip() for name in args.arms.split(",")]:
        raise InputError("--model needs the arm served in --arms")
    if args.emissions and args.out is None:
        raise InputError("--emissions needs --out: the printed table has no emissions")
    args.vary_demand = args.vary_demand or (args.gate is not None and not args.same_demand)
    return args


if __name__ == "__main__":
    sys.exit(main())
