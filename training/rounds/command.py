"""`python -m training rounds`: distributed training in rounds, in local processes or on a Ray cluster."""

import argparse
import os
import sys
from pathlib import Path

from city import config, names, network
from city.arguments import Parser
from city.errors import InputError
from training import flags


def run(argv: list[str], prog: str) -> int:
    """Run the rounds and return the exit code. Raises InputError."""
    args = _parse(argv, prog)
    city = config.load(args.city)
    street = network.of_city(city)
    groups = _groups(args.groups, list(city.tls))
    if city.network.sumocfg is None:
        raise InputError(f"{city.path}: [network] sumocfg is missing; training needs the demand that it names")
    if args.seconds is None and street.end_s is None:
        raise InputError(f"{city.network.sumocfg}: has no end; add it, or pass --seconds")
    for tl in city.tls:
        network.signals_of(city, city.tls[tl], street)
    # here, after the flags were checked: TensorFlow takes seconds
    from export import quiet
    from export.saved_model.verify import NotInferenceOnly, ParityError
    from training.episode import TrainingTask
    from training.processes import Processes
    from training.ray_tasks import RayTasks
    from training.rounds.rounds import Plan, Rounds
    from training.street_simulation import SimulationFailed
    from training.trainer import print_line

    quiet.first_session()
    task = TrainingTask(city, (), reward=args.reward, shared=args.shared, hidden=args.hidden_sizes, seconds=args.seconds)
    plan = Plan(city, groups, args.rounds, task, flags.settings(args, args.out, 1), args.seeds)
    at_once = args.tasks or max(1, min(len(groups), (os.cpu_count() or 1) // args.workers))
    try:
        with RayTasks(args.ray, args.workers) if args.ray is not None else Processes(at_once) as executor:
            kept = Rounds(plan, executor, args.resume, print_line).run()
    except (SimulationFailed, ParityError, NotInferenceOnly) as error:
        print(f"error: {error}; finished groups are in {args.out}: continue with --resume", file=sys.stderr)
        return 1
    for tl in city.tls:
        print(f"{tl}: {kept.get(tl, 'no model was better than its own program')}")
    return 0


def _parse(argv: list[str], prog: str) -> argparse.Namespace:
    parser = Parser(prog=prog, description="Train groups of TLs in rounds, each beside the models of the round before.")
    parser.add_argument("--city", type=Path, default=Path("city.toml"), help="city.toml (default: ./city.toml)")
    parser.add_argument(
        "--groups", required=True, metavar="TL,TL;TL", help="TLs that are trained together, groups separated by semicolons"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds in all (default: 3)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="simulations of each arm that decide (default: 10)")
    parser.add_argument("--ray", metavar="ADDRESS", help="run tasks on a Ray cluster: HOST:PORT of its head, or auto")
    parser.add_argument("--tasks", type=int, metavar="N", help="local tasks at once (default: cores / workers)")
    flags.add(parser)
    parser.add_argument("--out", type=Path, default=Path("rounds"), metavar="DIR", help="folder of the results (default: rounds)")
    parser.add_argument("--resume", action="store_true", help="continue the rounds that were interrupted in --out")
    args = parser.parse_args(argv)
    flags.check(args)
    for name, low in (("rounds", 1), ("seeds", 2)):
        flags.check_count(args, name, low)
    if args.tasks is not None:
        flags.check_count(args, "tasks", 1)
        if args.ray is not None:
            raise InputError("--tasks is for local tasks, and --ray runs as many as its cluster has cores; leave one of them out")
    return args


def _groups(text: str, known: list[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of TLs. Raises InputError: a TL is in two groups, or in none."""
    groups = tuple(tuple(names.select([part], known, "--groups")) for part in text.split(";") if part.strip())
    listed = [tl for group in groups for tl in group]
    if twice := sorted({tl for tl in listed if listed.count(tl) > 1}):
        raise InputError(f"--groups: {', '.join(twice)} is in two groups; name it in one")
    if missing := [tl for tl in known if tl not in listed]:
        raise InputError(f"--groups: {', '.join(missing)} is in no group; add it to one, or remove it from city.toml")
    return groups
