"""`python -m evaluation`: compare served policies with baselines in paired simulations, and decide whether they are better."""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from city import config, names, network
from city.arguments import Parser, host_and_port
from city.errors import InputError, path_errors_as_input_errors
from evaluation import arms as arm_names
from evaluation import detector_faults, paired_runs, results_files
from evaluation.arms import SERVED, Arm
from evaluation.detector_faults import NO_FAULTS
from evaluation.simulation import EvaluationTask, Outcome, by_arm, outcome_values
from evaluation.statistics import paired
from training import model_files
from training.demand import Demand, varied
from training.processes import Processes, ThisProcess
from training.ray_tasks import RayTasks
from training.street_simulation import SimulationFailed
from training.termination import sigterm_interrupts

MAX_COUNT = 100_000
EVALUATION_SEED = 1_000_033
"""Begins the seeds of varied demand, which no training has."""
COLUMNS = ("delay_s", "waiting_s", "stops", "finished", "worst_tl_s")
"""Of the printed table."""


def main(argv: list[str] | None = None, prog: str = "python -m evaluation") -> int:
    try:
        with path_errors_as_input_errors(), sigterm_interrupts():
            return _evaluate(_parse(argv, prog))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except SimulationFailed as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
    return 1


def _parse(argv: list[str] | None, prog: str) -> argparse.Namespace:
    parser = Parser(prog=prog, description="Compare served policies with baselines on the same demand.")
    parser.add_argument("--city", type=Path, default=Path("city.toml"), help="city.toml (default: ./city.toml)")
    parser.add_argument("--tl", action="append", metavar="TL", help="TLs that are compared (default: all)")
    parser.add_argument(
        "--arms", default="served,fixed,actuated,max-pressure", metavar="ARM,...",
        help="served, served:NUMBER, fixed, actuated, max-pressure; the first is the candidate (default: all)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="simulations of each arm (default: 10)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N", help="seed of the first one (default: 1)")
    parser.add_argument("--vary-demand", action="store_true", help="vary the demand between the seeds, as training does")
    parser.add_argument("--seconds", type=float, metavar="S", help="simulated time (default: as the sumocfg)")
    parser.add_argument("--server", metavar="HOST:PORT", help="server of the models (default: an embedded one is started)")
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)")
    parser.add_argument(
        "--model", action="append", default=[], metavar="TL=MODEL",
        help="what arm served uses for a TL: NUMBER, DIR or DIR:NUMBER (default: the newest in --models-dir)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument("--ray", metavar="ADDRESS", help="simulate on a Ray cluster: HOST:PORT of its head, or auto")
    parser.add_argument(
        "--faults", metavar="FAULT=SHARE,...",
        help="simulate served and max-pressure once more with faulty detectors: missing, stuck, noisy (such as missing=0.1)",
    )  # fmt: skip
    parser.add_argument("--emissions", action="store_true", help="compute the vehicles' emissions (slower)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report.html, results.json and results.csv there")
    parser.add_argument(
        "--gate", metavar="ARM", help="exit 1 unless the candidate's delay is lower than this arm's by its interval"
    )
    args = parser.parse_args(argv)
    if args.ray is not None and args.workers != 1:
        raise InputError("--workers is for this machine, and --ray simulates on every CPU of its cluster; leave one of them out")
    for name, low in (("seeds", 1), ("first_seed", 0), ("workers", 1)):
        if not low <= getattr(args, name) <= MAX_COUNT:
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)} must lie between {low} and {MAX_COUNT}")
    if args.server is not None and args.models_dir is not None:
        raise InputError("--server and --models-dir both name the models; pass one of them")
    if args.server is not None:
        if not args.server.startswith("unix:"):
            host_and_port(args.server, "--server")
        if args.ray is not None:
            raise InputError("--ray starts servers of the models beside its simulations; leave --server out")
        if args.model:
            raise InputError("--model names files, and --server serves its own; leave one of them out")
    if args.model and SERVED not in [name.strip() for name in args.arms.split(",")]:
        raise InputError("--model needs the arm served in --arms")
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds:g} must be greater than 0")
    return args


def _evaluate(args: argparse.Namespace) -> int:
    arms = arm_names.parse(args.arms)
    if args.faults is not None:
        arms = arm_names.with_faults(arms)
        if not any(arm.has_faults for arm in arms):
            raise InputError("--faults needs an arm of the controller's in --arms: served or max-pressure")
    if args.gate is not None and args.gate not in [arm.name for arm in arms[1:]]:
        raise InputError(f"--gate {args.gate!r} must be one of --arms, after the candidate {arms[0].name}")
    if args.gate is not None and args.seeds < 2:
        raise InputError("--gate needs --seeds 2 at least: one pair has no interval")
    city = config.load(args.city)
    street = network.of_city(city)
    tls = names.select(args.tl or ["all"], list(city.tls), "--tl")
    if city.network.sumocfg is None:
        raise InputError(f"{city.path}: [network] sumocfg is missing; an evaluation needs the demand that it names")
    if args.seconds is None and street.end_s is None:
        raise InputError(f"{city.network.sumocfg}: has no end; add it, or pass --seconds")
    faults = detector_faults.parse(args.faults) if args.faults is not None else NO_FAULTS
    task = EvaluationTask(city, tuple(tls), args.seconds, args.emissions, faults)
    models = _models(args, arms, tls, args.models_dir or city.serving.models_dir) if args.server is None else {}
    demands = [_demand(seed, args.vary_demand) for seed in range(args.first_seed, args.first_seed + args.seeds)]
    if args.out is not None:
        # now: not after an hour of simulations
        args.out.mkdir(parents=True, exist_ok=True)
    with _executor(args) as executor:
        outcomes = paired_runs.run(executor, task, arms, demands, models, args.server or "", args.out is not None)
    if not any(outcome.total for outcome in outcomes):
        raise InputError(f"{city.network.sumocfg}: no vehicle departs; name route files in it")
    results = by_arm(outcomes)
    print(_table(arms, results))
    if args.out is not None:
        results_files.write(args.out, arms, results)
        # here: matplotlib takes a second
        from evaluation import report

        print(f"report: {report.write(args.out, arms, results, _table(arms, results))}")
    if args.gate is None:
        return 0
    difference = paired(*([outcome.delay_s for outcome in results[name]] for name in (arms[0].name, args.gate)))
    is_better = difference.high < 0
    print(
        f"gate: {arms[0].name} - {args.gate}: {difference.mean:+.2f} s of mean delay, 95 % interval "
        f"{difference.low:+.2f} to {difference.high:+.2f}: {'better' if is_better else 'not better'}"
    )
    return 0 if is_better else 1


def _executor(args: argparse.Namespace) -> ThisProcess | Processes | RayTasks:
    if args.ray is not None:
        return RayTasks(args.ray)
    return Processes(args.workers) if args.workers > 1 else ThisProcess()


def _models(args: argparse.Namespace, arms: Sequence[Arm], tls: Sequence[str], models_dir: Path) -> dict[str, dict[str, Path]]:
    """The versions of every served arm. Raises InputError."""
    models = {}
    chosen: dict[str, tuple[Path, int | None]] = {}
    for item in args.model:
        name, equals, text = item.partition("=")
        if not equals or not text or names.canonical(name) not in tls:
            raise InputError(f"--model {item!r} must be TL=NUMBER, TL=DIR or TL=DIR:NUMBER with a TL of --tl, such as {tls[0]}=3")
        if names.canonical(name) in chosen:
            raise InputError(f"--model names {names.canonical(name)} twice; name it once")
        folder, _, number = text.rpartition(":") if not text.isdigit() else ("", "", text)
        is_numbered = number.isascii() and number.isdigit()
        chosen[names.canonical(name)] = (
            Path(folder) if is_numbered and folder else models_dir if is_numbered else Path(text),
            int(number) if is_numbered else None,
        )
    for arm in arms:
        if arm.kind == SERVED and not arm.has_faults:
            found = model_files.find(models_dir, {tl: arm.model_number for tl in tls if arm.name != SERVED or tl not in chosen})
            if arm.name == SERVED:
                for tl, (folder, number) in chosen.items():
                    found |= model_files.find(folder, {tl: number})
            models[arm.name] = {tl: found[tl] for tl in tls}
    return models


def _demand(seed: int, varies: bool) -> Demand:
    return varied(np.random.default_rng([EVALUATION_SEED, seed]), varies=True) if varies else Demand(seed)


def _table(arms: Sequence[Arm], results: Mapping[str, Sequence[Outcome]]) -> str:
    """Means by arm, and the candidate's paired differences in delay."""
    candidate = results[arms[0].name]
    width = max(12, *(len(arm.name) + 2 for arm in arms))
    lines = [f"{'':<{width}}" + "".join(f"{column:>14}" for column in COLUMNS) + f"{'candidate - arm, delay_s':>38}"]
    for arm in arms:
        values = [outcome_values(outcome) for outcome in results[arm.name]]
        cells = "".join(f"{np.mean([value[column] for value in values]):>14.1f}" for column in COLUMNS)
        difference = ""
        if arm is not arms[0]:
            d = paired([outcome.delay_s for outcome in candidate], [outcome.delay_s for outcome in results[arm.name]])
            difference = f"{d.mean:>+14.2f} ({d.low:+.2f} to {d.high:+.2f})"
        lines.append(f"{arm.name:<{width}}{cells}{difference:>38}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
