"""One evaluation: simulations, table, files and gate."""

import argparse
import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from city import config, names, program, street_shapes
from city.errors import InputError
from city.network import StreetNetwork
from city.version import VERSION
from controller.policies import no_policies
from evaluation import detector_faults, paired_runs, policy_models, results_files
from evaluation.arms import ACTUATED, FIXED, POLICY, SERVED, Arm, with_faults
from evaluation.arms import parse as parse_arms
from evaluation.detector_faults import NO_FAULTS
from evaluation.paired_runs import PairedRuns
from evaluation.policy_models import with_street_dialect
from evaluation.progress import Progress
from evaluation.simulation import (
    EvaluationTask,
    Outcome,
    delays_s,
    describe_overrides,
    outcome_values,
    unchanged_greens,
)
from evaluation.statistics import paired, population
from protos import policy_pb2 as pb
from signals import contract
from signals.change_times import describe_arms, signal_safeties
from simulation import model_files
from simulation.demand import Demand, varied
from simulation.executors import executor
from simulation.street_simulation import street_with_demand

VARIED_DEMAND_SEED = 1_000_033
"""First part of the seeds of varied demand, which no training uses."""
COLUMNS = ("delay_s", "duration_s", "waiting_s", "stops", "finished", "worst_tl_s")


def run(args: argparse.Namespace) -> int:
    """Evaluate and return the exit code. Raises InputError, SimulationFailed."""
    arms = _arms(args)
    task, street, change_times = _task(args, arms)
    if args.out is not None:
        # before an hour of simulations, not after
        results_files.check_writable(args.out)
    with tempfile.TemporaryDirectory(prefix="greenserve-") as folder:
        models = _models(args, arms, task) if args.server is None else {}
        for k, arm in enumerate(arms):
            if arm.policy is not None and not arm.has_faults:
                models[arm.name] = dict(policy_models.export(task.city, task.tls, arm.policy, Path(folder) / str(k)))
        results = _simulated(args, task, arms, models)
    print(_table(arms, results))
    for line in [*unchanged_greens(arms, results), *describe_overrides(arms, results)]:
        print(line)
    print(f"change times: {change_times}")
    simulated = len(results[arms[0].name])
    if len(arms) > 1 and simulated > 1:
        print(population(simulated, args.vary_demand))
    is_better = args.gate is None or _passes_gate(results, arms[0].name, args.gate)
    if args.out is not None:
        conditions = _conditions(args, task, arms, models) | {"change_times": change_times}
        results_files.write(args.out, arms, results, conditions)
        # not at the top: importing matplotlib takes a second
        from evaluation import report
        from evaluation.report_figures import StreetMap

        signals_of = {tl: task.city.tls[tl].signals for tl in task.tls}
        street_map = StreetMap(street_shapes.read(street.net_file), signals_of)
        print(f"report: {report.write(args.out, arms, results, conditions, street=street_map)}")
    return 0 if is_better else program.GATE_FAILED


def _arms(args: argparse.Namespace) -> list[Arm]:
    """The arms, those with faulty detectors included. Raises InputError."""
    arms = parse_arms(args.arms, args.candidate)
    if args.faults is not None:
        arms = with_faults(arms)
        if not any(arm.has_faults for arm in arms):
            raise InputError(
                "--faults needs an arm of the controller in --arms: served, pretrained, max-pressure or greedy"
            )
    if args.gate is not None and args.gate not in [arm.name for arm in arms[1:]]:
        raise InputError(f"--gate {args.gate!r} must be one of --arms, and not the candidate {arms[0].name}")
    if args.gate is not None and args.seeds < 2:
        raise InputError("--gate needs --seeds of at least 2: one pair has no interval")
    return arms


def _task(args: argparse.Namespace, arms: Sequence[Arm]) -> tuple[EvaluationTask, StreetNetwork, str]:
    """(the city and the TLs that are evaluated, their street, the change times of the arms), with remarks on stderr.
    Raises InputError."""
    city = config.load(args.city)
    if not city.tls and (served := next((arm.name for arm in arms if arm.kind == SERVED), None)):
        raise InputError(
            f"{args.city}: has no tables [tl.NAME], which arm {served} needs for its models; write them with "
            f"greenserve city init --out FILE, or leave {served} out of --arms"
        )
    city = no_policies.with_tls(city)  # if it describes none, every signal is one
    tls = names.select(args.tl or ["all"], list(city.tls), "--tl", city.tl_of_signal)
    street = street_with_demand(city, tls, args.seconds)
    tls, notes = contract.require_controllable(city, tls, street, args.strict)
    for line in [*notes, *contract.program_notes(city, tls, street)]:
        program.print_line(line)
    faults = detector_faults.parse(args.faults) if args.faults is not None else NO_FAULTS
    change_times = describe_arms(
        (built, signal_safeties(built, street, city.safety)) for built in _contracts_of_arms(city, tls, street, arms)
    )
    return EvaluationTask(city, tuple(tls), args.seconds, args.emissions, faults), street, change_times


def _contracts_of_arms(
    city: config.City, tls: Sequence[str], street: StreetNetwork, arms: Sequence[Arm]
) -> list[pb.PolicyContract]:
    """The contracts whose times some arm's controlled TLs have: a policy for any junction has its own dialect's."""
    kinds = {arm.kind for arm in arms} - {FIXED, ACTUATED}
    cities = [city] if kinds - {POLICY} else []
    if POLICY in kinds:
        cities.append(with_street_dialect(city))
    signals = {signal for tl in tls for signal in city.tls[tl].signals}
    return [
        contract.build(each, tl, street)
        for each in cities
        for tl in each.tls.values()
        if signals.issuperset(tl.signals)
    ]


def _simulated(
    args: argparse.Namespace, task: EvaluationTask, arms: Sequence[Arm], models: Mapping[str, Mapping[str, Path]]
) -> dict[str, list[Outcome]]:
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    demands = [Demand(seed) for seed in seeds]
    if args.vary_demand:
        demands = [varied(np.random.default_rng([VARIED_DEMAND_SEED, seed]), varies=True) for seed in seeds]
    runs = PairedRuns(task, arms, demands, models, args.server or "", records_signals=args.out is not None)
    with executor(args.workers, args.ray) as runner, Progress(arms, len(arms) * len(demands)) as progress:
        return paired_runs.run(runner, runs, progress.add)


def _passes_gate(results: Mapping[str, Sequence[Outcome]], candidate: str, reference: str) -> bool:
    """Print the difference in delay; whether the candidate is better by its interval."""
    difference = paired(*(delays_s(results[name]) for name in (candidate, reference)))
    verdict = "better" if difference.high < 0 else "not better"
    print(
        f"gate: {candidate} - {reference}: {difference.mean:+.2f} s of mean delay, 95 % interval "
        f"{difference.low:+.2f} to {difference.high:+.2f}: {verdict}"
    )
    return difference.high < 0


def _models(args: argparse.Namespace, arms: Sequence[Arm], task: EvaluationTask) -> dict[str, dict[str, Path]]:
    """The versions of every served arm. Raises InputError."""
    models_dir = args.models_dir or task.city.serving.models_dir
    requested = model_files.requested(args.model, "--model", task.tls, "--tl", models_dir)
    models: dict[str, dict[str, Path]] = {}
    for arm in arms:
        if arm.kind == SERVED and not arm.has_faults:
            by_tl = requested if arm.name == SERVED else {}
            models[arm.name] = {}
            for tl in task.tls:
                folder, model_number = by_tl.get(tl, (models_dir, arm.model_number))
                models[arm.name] |= model_files.find(folder, {tl: model_number})
    return models


def _conditions(
    args: argparse.Namespace, task: EvaluationTask, arms: Sequence[Arm], models: Mapping[str, Mapping[str, Path]]
) -> dict[str, Any]:
    """The conditions of the simulations, which the files report so that a reader can repeat them."""
    policies = {arm.name: arm.policy for arm in arms if arm.policy is not None}
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
        "models": {
            arm: {tl: str(path) for tl, path in versions.items()}
            for arm, versions in models.items()
            if arm not in policies
        },
        "policies": {arm: [str(path), hashlib.sha256(path.read_bytes()).hexdigest()] for arm, path in policies.items()},
    }


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
            d = paired(delays_s(candidate), delays_s(results[arm.name]))
            bounds = f"{d.low:+.2f} to {d.high:+.2f}" if math.isfinite(d.low) else "one seed, no interval"
            difference = f"{d.mean:>+14.2f} ({bounds})"
        lines.append(f"{arm.name:<{width}}{cells}{difference:>38}".rstrip())
    return "\n".join(lines)
