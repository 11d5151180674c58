"""Paired simulations: every arm with the same demands, in this process, in several, or on Ray."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from city.errors import InputError
from city.program import print_line
from evaluation.arms import WITH_FAULTS, Arm
from evaluation.simulation import ArmSimulator, EvaluationTask, Outcome, ServedModels
from serving.client import Client
from simulation import model_files
from simulation.demand import Demand
from simulation.executors import Executor, ThisProcess, in_order
from simulation.model_files import Versions
from simulation.model_server import model_server


@dataclass(frozen=True)
class PairedRuns:
    """Simulations of every arm with every demand."""

    task: EvaluationTask
    arms: Sequence[Arm]
    demands: Sequence[Demand]
    models: Mapping[str, Versions | bytes]
    """By arm with models, its versions as folders or packed; TLs without one run their own programs. Those of served
    arms are not used with `server`."""
    server: str = ""
    """HOST:PORT of a running model server; empty to start servers of `models`."""
    records_signals: bool = False
    """True if the signals are recorded in the simulations of the first demand."""


def run(
    executor: Executor, runs: PairedRuns, report: Callable[[Sequence[Outcome]], None] = lambda outcomes: None
) -> dict[str, list[Outcome]]:
    """The outcomes by arm, in the order of their demands. A demand without any vehicle is left out, with a line on
    stderr: its delays of 0 would be differences of 0. Raises InputError, SimulationFailed.

    `report`: called with the new outcomes after each simulation in this process, else after all arms of a demand.
    """
    results: list[tuple[int, list[Outcome]]] = []
    if isinstance(executor, ThisProcess):
        # one job, so that the model servers start once
        results += executor.run(functools.partial(simulate, report=report), [runs])
    else:
        if executor.moves_files:
            packed = {arm: model_files.pack_versions(cast(Versions, files)) for arm, files in runs.models.items()}
            runs = replace(runs, models=packed)
        # a job for each demand, so that a process that has finished takes the next one, and the progress is reported
        jobs = [
            replace(runs, demands=(demand,), records_signals=runs.records_signals and k == 0)
            for k, demand in enumerate(runs.demands)
        ]
        for result in executor.run(simulate, jobs):
            results.append(result)
            report(result[1])
    by_arm: dict[str, list[Outcome]] = {}
    for outcomes in in_order(results):
        for outcome in outcomes:
            by_arm.setdefault(outcome.arm, []).append(outcome)
    total = [sum(outcome.total for outcome in outcomes) for outcomes in zip(*by_arm.values(), strict=True)]
    if not any(total):
        raise InputError(f"{runs.task.city.network.sumocfg}: no vehicle departs; name route files in it")
    if empty := [str(demand.seed) for demand, count in zip(runs.demands, total, strict=True) if not count]:
        print_line(f"left out SUMO's seeds without a vehicle: {', '.join(empty)}")
    return {arm: [o for o, count in zip(own, total, strict=True) if count] for arm, own in by_arm.items()}


def simulate(runs: PairedRuns, report: Callable[[Sequence[Outcome]], None] = lambda outcomes: None) -> list[Outcome]:
    """The outcomes in this process, demand by demand. `report`: called with each outcome."""
    outcomes: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        models = {
            arm.name: stack.enter_context(_served(runs, arm))
            for arm in runs.arms
            if arm.has_models and not arm.has_faults
        }
        simulator = ArmSimulator(runs.task)
        for demand in runs.demands:
            for arm in runs.arms:
                records = runs.records_signals and demand == runs.demands[0]
                with_models = arm.name.removesuffix(WITH_FAULTS) if arm.has_faults else arm.name
                outcomes.append(simulator.run(arm, demand, models.get(with_models), records))
                report(outcomes[-1:])
    return outcomes


@contextlib.contextmanager
def _served(runs: PairedRuns, arm: Arm) -> Iterator[ServedModels]:
    if runs.server and arm.policy is None:
        with Client(runs.server, retries=2) as client:
            yield ServedModels(client, runs.task.tls, arm.model_number)
        return
    versions = runs.models[arm.name]
    with tempfile.TemporaryDirectory(prefix="greenserve-") as folder:
        if isinstance(versions, bytes):
            versions = model_files.unpack_versions(versions, Path(folder))
        with model_server(versions) as server, Client(server, retries=2) as client:
            yield ServedModels(client, tuple(versions))
