"""One evaluation: simulations, table, files and gate."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from city import config, names, program
from city.errors import InputError
from city.version import VERSION
from evaluation import arms as arm_names
from evaluation import detector_faults, paired_runs, results_files
from evaluation.arms import SERVED, Arm
from evaluation.detector_faults import NO_FAULTS
from evaluation.simulation import EvaluationTask, Outcome, by_arm, outcome_values
from evaluation.statistics import paired
from simulation import model_files
from simulation.demand import Demand, varied
from simulation.executors import executor
from simulation.street_simulation import street_with_demand

VARIED_DEMAND_SEED = 1_000_033
"""Begins the seeds of varied demand, which no training has."""
COLUMNS = ("delay_s", "waiting_s", "stops", "finished", "worst_tl_s")
"""Of the printed table."""


def run(args: argparse.Namespace) -> int:
    """Evaluate and return the exit code. Raises InputError, SimulationFailed."""
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
    tls = names.select(args.tl or ["all"], list(city.tls), "--tl")
    street_with_demand(city, tls, args.seconds)
    faults = detector_faults.parse(args.faults) if args.faults is not None else NO_FAULTS
    task = EvaluationTask(city, tuple(tls), args.seconds, args.emissions, faults)
    models = _models(args, arms, tls, args.models_dir or city.serving.models_dir) if args.server is None else {}
    demands = [_demand(seed, args.vary_demand) for seed in range(args.first_seed, args.first_seed + args.seeds)]
    if args.out is not None:
        # now: not after an hour of simulations
        results_files.check_writable(args.out)
    with executor(args.workers, args.ray) as runner:
        outcomes = paired_runs.run(runner, task, arms, demands, models, args.server or "", args.out is not None)
    if not any(outcome.total for outcome in outcomes):
        raise InputError(f"{city.network.sumocfg}: no vehicle departs; name route files in it")
    results = by_arm(outcomes)
    table = _table(arms, results)
    print(table)
    is_better = True
    if args.gate is not None:
        difference = paired(*([outcome.delay_s for outcome in results[name]] for name in (arms[0].name, args.gate)))
        is_better = difference.high < 0
        print(
            f"gate: {arms[0].name} - {args.gate}: {difference.mean:+.2f} s of mean delay, 95 % interval "
            f"{difference.low:+.2f} to {difference.high:+.2f}: {'better' if is_better else 'not better'}"
        )
    if args.out is not None:
        conditions = _conditions(args, task, models)
        results_files.write(args.out, arms, results, conditions)
        # here: matplotlib takes a second
        from evaluation import report

        print(f"report: {report.write(args.out, arms, results, table, conditions)}")
    return 0 if is_better else program.GATE_FAILED


def _models(args: argparse.Namespace, arms: Sequence[Arm], tls: Sequence[str], models_dir: Path) -> dict[str, dict[str, Path]]:
    """The versions of every served arm. Raises InputError."""
    models = {}
    chosen: dict[str, tuple[Path, int | None]] = {}
    for item in args.model:
        name, equals, text = item.partition("=")
        tl = names.find(name, tls)
        if not equals or not text or tl is None:
            raise InputError(f"--model {item!r} must be TL=NUMBER, TL=DIR or TL=DIR:NUMBER with a TL of --tl, such as {tls[0]}=3")
        if tl in chosen:
            raise InputError(f"--model names {tl} twice; name it once")
        folder, _, number = text.rpartition(":") if not text.isdigit() else ("", "", text)
        is_numbered = number.isascii() and number.isdigit()
        chosen[tl] = (
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


def _conditions(args: argparse.Namespace, task: EvaluationTask, models: Mapping[str, Mapping[str, Path]]) -> dict[str, Any]:
    """What was simulated, so that a reader of the files can judge and repeat it."""
    return {
        "greenserve": VERSION,
        "sumo": metadata.version("libsumo"),
        "city": str(task.city.path.resolve()),
        "sumocfg": str(task.city.network.sumocfg),
        "tls": list(task.tls),
        "seconds": task.seconds,
        "seeds": args.seeds,
        "first_seed": args.first_seed,
        "varied_demand": args.vary_demand,
        "emissions": task.emissions,
        "faults": asdict(task.faults) if args.faults is not None else None,
        "server": args.server,
        "models": {arm: {tl: str(path) for tl, path in versions.items()} for arm, versions in models.items()},
    }


def _demand(seed: int, varies: bool) -> Demand:
    return varied(np.random.default_rng([VARIED_DEMAND_SEED, seed]), varies=True) if varies else Demand(seed)


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
