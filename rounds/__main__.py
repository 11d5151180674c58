"""`python -m rounds`: distributed training in rounds, in local processes or on a Ray cluster."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from city import config, names, run_lock
from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import print_line
from signals import contract
from simulation.street_simulation import street_with_demand
from training import flags
from training.saved_state import run_resumable

LOCK_FILE = ".rounds.lock"
"""File that is locked while rounds run in a folder."""


def main(argv: list[str] | None = None, prog: str = "python -m rounds") -> int:
    return run_resumable(parser(prog), argv, _run, lambda args: [args.out / "rounds.json"])


def _run(args: argparse.Namespace) -> int:
    flags.check(args)
    if args.tasks is not None and args.ray is not None:
        raise InputError(
            "--tasks is for local tasks, and --ray runs as many as its cluster has cores; leave one of them out"
        )
    city = config.load(args.city)
    groups = _groups(args.groups, list(city.tls))
    street = street_with_demand(city, list(city.tls), args.seconds)
    tls, notes = contract.require_controllable(city, list(city.tls), street, args.strict)
    for line in notes:
        print_line(line)
    flags.check_applicable(args, city, tls, street)
    groups = tuple(fit for group in groups if (fit := tuple(tl for tl in group if tl in tls)))
    # imported after the flags are checked: TensorFlow takes seconds
    from export import quiet
    from export.saved_model.verify import NotInferenceOnly, ParityError
    from rounds.rounds import Rounds, RoundsConfig
    from simulation.executors.processes import Processes
    from simulation.executors.ray_tasks import RayTasks
    from simulation.street_simulation import SimulationFailed
    from training.episode import TrainingTask

    quiet.first_session()
    settings = flags.settings(args, city, tls, args.out, 1)
    task = TrainingTask(
        city,
        (),
        reward=args.reward,
        shared=args.shared,
        hidden=settings.ppo.hidden_sizes,
        activation=settings.activation,
        seconds=args.seconds,
    )
    rounds_config = RoundsConfig(city, groups, args.rounds, task, settings, args.seeds)
    tasks = args.tasks or max(1, (os.cpu_count() or 1) // args.workers)
    try:
        with RayTasks(args.ray) if args.ray is not None else Processes(tasks * args.workers) as executor:
            message = f"{args.out}: other rounds run in this folder; wait for their end, or pass another --out"
            with run_lock.held(args.out / LOCK_FILE, message):
                kept = Rounds(rounds_config, executor, args.resume, print_line).run()
    except (SimulationFailed, ParityError, NotInferenceOnly) as error:
        raise ProgramFailed(f"{error}; --resume continues from the groups that are finished in {args.out}") from None
    for tl in tls:
        print(f"{tl}: {kept.get(tl, 'no new model was kept; it runs its own program')}")
    return 0


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Train groups of TLs in rounds, each beside the models of the round before.")
    parser.add_city()
    parser.add_argument(
        "--groups",
        required=True,
        metavar="TL,TL;TL",
        help="TLs that are trained together; separate groups by semicolons, and name every TL in one",
    )
    flags.add_count(parser, "--rounds", 1, "number of rounds", 3)
    flags.add_count(parser, "--seeds", 2, "simulations of each arm in a round's evaluation", 10)
    parser.add_argument("--ray", metavar="ADDRESS", help="run tasks on a Ray cluster: HOST:PORT of its head, or auto")
    flags.add_count(parser, "--tasks", 1, "local tasks at once (default: cores / workers)")
    flags.add(parser)
    parser.add_strict()
    parser.add_argument(
        "--out", type=Path, default=Path("rounds"), metavar="DIR", help="folder of the results (default: rounds)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the rounds that were interrupted in --out")
    return parser


def _groups(text: str, city_tls: list[str]) -> tuple[tuple[str, ...], ...]:
    """Parse --groups. Raises InputError unless every TL is once in one group."""
    groups, index = [], names.Index(city_tls)
    for part in filter(None, map(str.strip, text.split(";"))):
        groups.append(tuple(names.select([part], index, "--groups")))
        named = [tl for name in part.split(",") if (tl := index.find(name))]
        if repeated := _repeated(named):
            raise InputError(f"--groups: {', '.join(repeated)} is twice in {part!r}; name it once")
    grouped = [tl for group in groups for tl in group]
    known = set(grouped)
    if repeated := _repeated(grouped):
        raise InputError(f"--groups: {', '.join(repeated)} is in two groups; name it in one")
    if missing := [tl for tl in city_tls if tl not in known]:
        raise InputError(
            f"--groups: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} in no group; name each TL of "
            "city.toml"
        )
    return tuple(groups)


def _repeated(tls: list[str]) -> list[str]:
    return sorted(tl for tl, count in Counter(tls).items() if count > 1)


if __name__ == "__main__":
    sys.exit(main())
