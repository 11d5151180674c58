"""Paired simulations: every arm with the same demands, in this process, in several, or on Ray."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.arms import Arm
from evaluation.simulation import ArmSimulator, EvaluationTask, Outcome, ServedModels
from serving.client import Client
from simulation import model_files
from simulation.demand import Demand
from simulation.executors import Executor
from simulation.executors.this_process import ThisProcess
from simulation.model_files import Versions
from simulation.model_server import model_server


@dataclass(frozen=True)
class SimulationBatch:
    """The simulations of some demands, for one process."""

    task: EvaluationTask
    arms: tuple[Arm, ...]
    demands: tuple[Demand, ...]
    models: Mapping[str, Versions | bytes]
    """By arm with models, its versions as folders or packed; those of served arms are not used with `server`."""
    server: str = ""
    """HOST:PORT of a running model server; empty to start servers of `models`."""
    records_signals: bool = False
    """True if the signals are recorded in the simulations of the first demand."""


def run(
    executor: Executor,
    task: EvaluationTask,
    arms: Sequence[Arm],
    demands: Sequence[Demand],
    models: Mapping[str, Versions],
    server: str = "",
    records_signals: bool = False,
    report: Callable[[Sequence[Outcome]], None] = lambda outcomes: None,
) -> list[Outcome]:
    """The outcomes of every arm with every demand, demand by demand. Raises InputError, SimulationFailed.

    Args:
        executor: runs the simulations.
        task: the city and its TLs.
        arms: the arms to compare.
        demands: one for each simulation of an arm.
        models: by served arm, its versions; TLs without one run their own programs.
        server: HOST:PORT of a running server of the served arms' models; empty to start servers of `models`.
        records_signals: record the signals in the simulations of the first demand.
        report: called with the new outcomes after each simulation in this process, else after all arms of a demand.
    """
    if isinstance(executor, ThisProcess):
        # one job, so that the model servers start once
        batch = SimulationBatch(task, tuple(arms), tuple(demands), models, server, records_signals)
        ((_, outcomes),) = executor.run(functools.partial(simulate, report=report), [batch])
        return outcomes
    packed = (
        {arm: model_files.pack_versions(versions) for arm, versions in models.items()}
        if executor.moves_files
        else models
    )
    # a job for each demand, so that a process that has finished takes the next one, and the progress is reported
    jobs = [
        SimulationBatch(task, tuple(arms), (demand,), packed, server, records_signals and k == 0)
        for k, demand in enumerate(demands)
    ]
    by_demand: dict[int, list[Outcome]] = {}
    for index, results in executor.run(simulate, jobs):
        by_demand[index] = results
        report(results)
    return [outcome for index in range(len(jobs)) for outcome in by_demand[index]]


def simulate(
    job: SimulationBatch, report: Callable[[Sequence[Outcome]], None] = lambda outcomes: None
) -> list[Outcome]:
    """The outcomes of a job, demand by demand. `report`: called with each outcome."""
    outcomes: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        models = {
            arm.name: stack.enter_context(_served(job, arm))
            for arm in job.arms
            if arm.has_models and not arm.has_faults
        }
        simulator = ArmSimulator(job.task)
        for demand in job.demands:
            for arm in job.arms:
                records = job.records_signals and demand == job.demands[0]
                outcomes.append(simulator.run(arm, demand, models.get(arm.models), records))
                report(outcomes[-1:])
    return outcomes


@contextlib.contextmanager
def _served(job: SimulationBatch, arm: Arm) -> Iterator[ServedModels]:
    """The models of an arm, on a server."""
    if job.server and arm.policy is None:
        with Client(job.server, retries=2) as client:
            yield ServedModels(client, job.task.tls, arm.model_number)
        return
    versions = job.models[arm.name]
    with tempfile.TemporaryDirectory(prefix="greenserve-") as folder:
        if isinstance(versions, bytes):
            versions = model_files.unpack_versions(versions, Path(folder))
        with model_server(versions) as server, Client(server, retries=2) as client:
            yield ServedModels(client, tuple(versions))
