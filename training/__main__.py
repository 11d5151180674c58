"""`python -m training`: train TLs of a city by PPO, beside TLs that are served and others that run their fixed programs."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from city import config, names, network
from city.arguments import Parser, host_and_port
from city.errors import InputError, path_errors_as_input_errors
from training import model_files
from training.model_files import Versions
from training.model_server import model_server
from training.termination import sigterm_interrupts

MAX_COUNT = 1_000_000


def main(argv: list[str] | None = None, prog: str = "python -m training") -> int:
    try:
        with path_errors_as_input_errors(), sigterm_interrupts():
            return _train(_parse(argv, prog))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted; continue with --resume", file=sys.stderr)
        return 1


def _parse(argv: list[str] | None, prog: str) -> argparse.Namespace:
    from training.rewards import names as rewards

    parser = Parser(prog=prog, description="Train TLs of a city by PPO; their checkpoints are exported with greenserve export.")
    parser.add_argument("--city", type=Path, default=Path("city.toml"), help="city.toml (default: ./city.toml)")
    parser.add_argument(
        "--target-tl",
        "--target-TLs",
        action="append",
        metavar="TL",
        help="TLs that learn (default: all but the infer TLs)",
    )
    parser.add_argument(
        "--infer-tl", "--infer-TLs", action="append", metavar="TL", help="TLs that a served model controls (default: none)"
    )
    parser.add_argument("--infer-model-number", type=int, metavar="N", help="their model number (default: the newest)")
    parser.add_argument(
        "--infer-model-path", type=Path, metavar="DIR", help="folder of their models (default: [serving] models_dir)"
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="server of their models (default: an embedded one is started)")
    parser.add_argument("--reward", choices=rewards(), default="delay", help="what a TL is rewarded for (default: delay)")
    parser.add_argument("--shared", action="store_true", help="TLs of one shape share an actor")
    parser.add_argument("--hidden-sizes", default="64,64", metavar="N,N", help="units of the hidden layers (default: 64,64)")
    parser.add_argument("--episodes", type=int, default=150, help="episodes in all (default: 150)")
    parser.add_argument("--seconds", type=float, metavar="S", help="simulated time of an episode (default: as the sumocfg)")
    parser.add_argument("--episodes-per-update", type=int, default=2, metavar="N", help="episodes an update (default: 2)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--model-number", type=int, default=1, metavar="N", help="of the checkpoints (default: 1)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at the start; falls to 5 %% (default: 0.001)")
    parser.add_argument("--same-demand", action="store_true", help="do not vary the demand between episodes")
    parser.add_argument("--evaluate-every", type=int, default=10, metavar="N", help="updates between evaluations (default: 10)")
    parser.add_argument("--held-out", type=int, default=2, metavar="N", help="simulations of an evaluation (default: 2)")
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="N",
        help="evaluations without an improvement that end it (default: 0, none)",
    )
    parser.add_argument(
        "--format", action="append", default=[], metavar="TL=FORMAT", help="checkpoint format: tf1, tf2 or h5 (default: tf2)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("checkpoints"), metavar="DIR", help="folder of the results (default: checkpoints)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the training that was interrupted in --out")
    args = parser.parse_args(argv)
    for name, low in (
        ("episodes", 1), ("episodes_per_update", 1), ("workers", 1), ("model_number", 0), ("evaluate_every", 1), ("held_out", 1),
        ("patience", 0), ("seed", 0),
    ):  # fmt: skip
        if not low <= getattr(args, name) <= MAX_COUNT:
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)} must lie between {low} and {MAX_COUNT}")
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds:g} must be greater than 0")
    if not 0 < args.learning_rate < 1:
        raise InputError(f"--learning-rate {args.learning_rate:g} must lie between 0 and 1")
    return args


def _train(args: argparse.Namespace) -> int:
    city = config.load(args.city)
    street = network.of_city(city)
    targets, infers = _selected(args, city)
    if city.network.sumocfg is None:
        raise InputError(f"{city.path}: [network] sumocfg is missing; training needs the demand that it names")
    if args.seconds is None and street.end_s is None:
        raise InputError(f"{city.network.sumocfg}: has no end; add it, or pass --seconds")
    for tl in (*targets, *infers):
        network.signals_of(city, city.tls[tl], street)
    if args.server is not None and not args.server.startswith("unix:"):
        host_and_port(args.server, "--server")
    hidden, formats = _hidden_sizes(args.hidden_sizes), _formats(args.format, targets)
    # here, after the flags were checked: TensorFlow takes seconds
    from training.episode import TrainingTask
    from training.ppo import NotFinite, PpoConfig
    from training.street_simulation import SimulationFailed
    from training.trainer import Settings, Trainer, print_line

    versions: Versions = {}
    if infers and args.server is None:
        models_dir = args.infer_model_path or city.serving.models_dir
        versions = model_files.find(models_dir, dict.fromkeys(infers, args.infer_model_number))
    with model_server(versions) as embedded:
        server = args.server or embedded
        task = TrainingTask(
            city, tuple(targets), tuple(infers), server, args.infer_model_number, args.reward, args.shared, hidden, args.seconds
        )
        settings = Settings(
            out=args.out,
            number=args.model_number,
            episodes=args.episodes,
            episodes_per_update=args.episodes_per_update,
            seed=args.seed,
            workers=args.workers,
            ppo=PpoConfig(learning_rate=args.learning_rate),
            varies=not args.same_demand,
            evaluate_every=args.evaluate_every,
            held_out=args.held_out,
            patience=args.patience,
            formats=formats,
            resume=args.resume,
        )
        try:
            result = Trainer(task, settings).run(print_line)
        except (NotFinite, SimulationFailed) as error:
            print(f"error: {error}; the best state of the evaluations so far is in {args.out}", file=sys.stderr)
            return 1
    for tl, path in result.paths.items():
        print(f"{tl}: {path}")
    print(f"{result.episodes} episodes; mean delay {result.best_delay_s:.1f} s on held-out demand")
    return 0


def _selected(args: argparse.Namespace, city: config.City) -> tuple[list[str], list[str]]:
    """(target TLs, infer TLs). Raises InputError."""
    known = list(city.tls)
    infers = names.select(args.infer_tl, known, "--infer-tl") if args.infer_tl else []
    others = [tl for tl in known if tl not in infers]
    targets = names.select(args.target_tl, known, "--target-tl") if args.target_tl else others
    if not targets:
        raise InputError("--infer-tl names every TL; leave out those that are to learn")
    if both := [tl for tl in targets if tl in infers]:
        raise InputError(f"{', '.join(both)} cannot be --target-tl and --infer-tl at once; name it in one of them")
    for flag in ("infer_model_number", "infer_model_path", "server"):
        if getattr(args, flag) is not None and not infers:
            raise InputError(f"--{flag.replace('_', '-')} needs --infer-tl, the TLs that a served model controls")
    if args.server is not None and args.infer_model_path is not None:
        raise InputError("--server and --infer-model-path both name the models; pass one of them")
    return targets, infers


def _hidden_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0 < size <= 4096 for size in sizes):
        raise InputError(f"--hidden-sizes {text!r} must be numbers between 1 and 4096 separated by commas, such as 64,64")
    return sizes


def _formats(items: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    formats = {}
    for item in items:
        tl, _, kind = item.partition("=")
        if kind not in ("tf1", "tf2", "h5") or names.canonical(tl) not in targets:
            raise InputError(f"--format {item!r} must be TL=FORMAT with a target TL and tf1, tf2 or h5, such as {targets[0]}=tf1")
        formats[names.canonical(tl)] = kind
    return formats


if __name__ == "__main__":
    sys.exit(main())
