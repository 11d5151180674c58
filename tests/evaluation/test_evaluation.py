"""`python -m evaluation`: paired simulations of served policies and baselines in the real SUMO."""

import csv
import functools
import json
import math
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from city import config, network
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import read_trips
from evaluation import __main__ as program
from evaluation import actuated, arms, statistics
from evaluation.arms import Arm
from evaluation.simulation import Outcome, Simulation, Task
from export.__main__ import main as export
from export.contract import build
from serving.embedded.config import ServerConfig
from tests.conftest import GRID
from tests.serving.conftest import running
from training import checkpoints
from training.demand import Demand
from training.street_simulation import SimulationFailed
from training.workers import Workers

CITY = ("--city", str(GRID / "city.toml"))
SECONDS = 400.0


@pytest.fixture(scope="module")
def results(grid_models, tmp_path_factory):
    """(exit code, folder of the results) of an evaluation of every arm."""
    folder = tmp_path_factory.mktemp("results")
    flags = ("--models-dir", str(grid_models), "--seeds", "2", "--seconds", str(SECONDS), "--out", str(folder))
    return program.main([*CITY, *flags, "--arms", "served:1,fixed,actuated,max-pressure"]), folder


def test_every_arm_meets_the_same_demand(results):
    code, folder = results
    document = json.loads((folder / "results.json").read_text())
    totals = {}
    for simulation in document["simulations"]:
        totals.setdefault(simulation["seed"], set()).add(simulation["total"])
    assert code == 0 and document["candidate"] == "served:1" and len(document["simulations"]) == 8
    assert all(len(total) == 1 and min(total) > 50 for total in totals.values())
    assert len({simulation["delay_s"] for simulation in document["simulations"]}) == 8, "every arm acts differently"


def test_differences_are_paired(results):
    document = json.loads((results[1] / "results.json").read_text())
    delays = {arm: [s["delay_s"] for s in document["simulations"] if s["arm"] == arm] for arm in document["arms"]}
    for arm, values in document["arms"].items():
        difference = values["delay_s"]["difference"]
        pairs = np.subtract(delays["served:1"], delays[arm])
        assert difference["mean"] == pytest.approx(pairs.mean()) and values["delay_s"]["mean"] == pytest.approx(
            np.mean(delays[arm])
        )
    with (results[1] / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in rows[:2]] == [("served:1", "1"), ("served:1", "2")]
    assert float(rows[0]["delay_s"]) == pytest.approx(delays["served:1"][0], abs=1e-3)


def test_fixed_arm_is_sumo_alone(tmp_path):
    task = Task(config.load(GRID / "city.toml"), ("SA101",), seconds=SECONDS)
    outcome = Simulation(task).run(Arm("fixed", "fixed"), Demand(7))
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "7", "--no-step-log", "--no-warnings"]
    options += [
        "--tripinfo-output",
        str(tmp_path / "t.xml"),
        "--tripinfo-output.write-unfinished",
        "--tripinfo-output.write-undeparted",
    ]
    connection = start_libsumo([*options, "--end", str(SECONDS)])
    connection.api.simulationStep(SECONDS)
    connection.close()
    trips = read_trips(tmp_path / "t.xml")
    assert (outcome.delay_s, outcome.finished, outcome.total) == (trips.delay_s, trips.finished, trips.total)


def test_workers_give_the_same_outcomes():
    task = Task(config.load(GRID / "city.toml"), ("SA101", "SA102"), seconds=200.0)
    jobs = [(arm, Demand(seed)) for seed in (1, 2) for arm in arms.parse("max-pressure,fixed")]
    simulation = Simulation(task)
    alone = [simulation.run(*job) for job in jobs]
    with Workers(simulation, functools.partial(Simulation, task), 2) as workers:
        pooled = workers.run(jobs)
    assert alone == pooled


def test_delay_by_tl_adds_up_to_the_delay_on_their_roads(grid_models):
    city = config.load(GRID / "city.toml")
    outcome = Simulation(Task(city, tuple(city.tls), seconds=SECONDS)).run(Arm("fixed", "fixed"), Demand(7))
    assert outcome.delay_by_tl.keys() == city.tls.keys()
    # what is lost inside junctions, on roads out of the city and between two samples is missing or counted twice
    assert sum(outcome.delay_by_tl.values()) == pytest.approx(outcome.delay_s, rel=0.25)
    assert outcome.worst_road and 0 < outcome.worst_road_s <= max(outcome.delay_by_tl.values())


def test_actuated_programs_are_the_networks_own_phases_with_bounds(grid_street, tmp_path):
    path = actuated.write(tmp_path / "a.add.xml", grid_street.signals.values())
    read = network.read(grid_street.net_file, [path]).signals
    root = ET.parse(path).getroot()
    assert {logic.get("type") for logic in root} == {"actuated"} and len(root) == len(grid_street.signals)
    for signal, own in grid_street.signals.items():
        assert read[signal].active_program == actuated.PROGRAM
        assert [p.state for p in read[signal].plan.phases] == [p.state for p in own.plan.phases]
        for phase in read[signal].plan.phases:
            assert (phase.min_s < phase.max_s) == ("G" in phase.state and "y" not in phase.state)


@pytest.mark.parametrize(
    ("delays", "code", "text"),
    [
        ({"served": (20, 22, 21), "fixed": (30, 33, 31)}, 0, "-10.33 s of mean delay, 95 % interval -11.77 to -8.90: better"),
        ({"served": (20, 40, 21), "fixed": (30, 33, 31)}, 1, "not better"),  # less on average, but by chance
        ({"served": (30, 33, 31), "fixed": (20, 22, 21)}, 1, "not better"),
    ],
)
def test_gate_decides_by_the_interval(delays, code, text, grid_models, monkeypatch, capsys):
    def outcomes(self, jobs):
        zero = Outcome("", 0, 0.0, 0.0, 0.0, 0.0, 1, 1, {}, "", 0.0, 0)
        return [replace(zero, arm=arm.name, seed=demand.seed, delay_s=delays[arm.name][demand.seed - 1]) for arm, demand in jobs]

    monkeypatch.setattr(Workers, "run", outcomes)
    flags = (*CITY, "--models-dir", str(grid_models), "--seeds", "3", "--arms", "served,fixed", "--gate", "fixed")
    assert program.main([*flags]) == code
    assert text in capsys.readouterr().out


def test_model_numbers_are_arms_of_their_own(grid_models, tmp_path):
    """Version 2 of SA101 is another actor of the same shape; both are asked in one run."""
    shutil.copytree(grid_models / "SA101", tmp_path / "SA101")
    city = config.load(GRID / "city.toml")
    contract = build(city, city.tls["SA101"], network.of_city(city))
    sizes = contract.observation.size, contract.action.size
    last = np.zeros(sizes[1], np.float32)
    last[-1] = 9  # it always chooses the last green
    layers = [(np.zeros((sizes[0], 4), np.float32), np.zeros(4, np.float32)), (np.zeros((4, sizes[1]), np.float32), last)]
    checkpoints.write("tf2", tmp_path / "checkpoints", contract, layers, 2)
    models = ("--models-dir", str(tmp_path))
    flags = ("--model-path", str(tmp_path / "checkpoints"), "--tl", "SA101", "--model-number", "2")
    assert export([*CITY, *flags, *models]) == 0
    arguments = ("--tl", "SA101", "--seeds", "1", "--seconds", "400", "--out", str(tmp_path / "out"))
    assert program.main([*CITY, *models, *arguments, "--arms", "served:1,served:2,served"]) == 0
    first, second, newest = json.loads((tmp_path / "out" / "results.json").read_text())["simulations"]
    assert second["delay_s"] == newest["delay_s"] != first["delay_s"]


def test_served_arm_without_answers_ends_the_evaluation(grid_models, monkeypatch, capsys):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        task = Task(config.load(GRID / "city.toml"), ("SA101",), f"127.0.0.1:{server.port}", 100.0)
        simulation = Simulation(task)
        loop = simulation._loop

        def stopped(arm, connection):
            made = loop(arm, connection)
            server.stop()
            return made

        monkeypatch.setattr(simulation, "_loop", stopped)
        with pytest.raises(SimulationFailed, match="SA101 had no valid answer"):
            simulation.run(Arm("served", "served"), Demand(1))


def test_interval_is_students_t():
    found = statistics.interval([1.0, 2.0, 4.0])
    half = 4.302653 * np.std([1, 2, 4], ddof=1) / math.sqrt(3)  # t of 2 degrees of freedom, from a table
    assert (found.mean, found.low, found.high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half), rel=1e-5)
    assert statistics.interval([5.0]).high == math.inf
    assert statistics.paired([1, 2], [2, 4]).mean == -1.5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--arms", "served,random"), "'random' is not one of served"),
        (("--arms", "served:x"), "'served:x' is not one of"),
        (("--arms", "fixed,fixed"), "fixed is listed twice"),
        (("--arms", ","), "names no arm"),
        (("--arms", "served,fixed", "--gate", "actuated"), "--gate 'actuated' must be one of --arms"),
        (("--arms", "served,fixed", "--gate", "fixed", "--seeds", "1"), "--gate needs --seeds 2"),
        (("--tl", "SA999"), "there is no TL SA999"),
        (("--models-dir", "nowhere"), "there is no model in"),
        (("--arms", "served:77"), "SA101/77; SA101 has 1"),
        (("--server", "127.0.0.1:1"), "no model server answers"),
        (("--server", "foo"), "--server"),
        (("--server", "a:1", "--models-dir", "b"), "both name the models"),
        (("--seeds", "0"), "--seeds 0 must lie between 1"),
        (("--seconds", "0"), "--seconds 0 must be greater than 0"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(flags, message, grid_models, capsys):
    models = () if {"--models-dir", "--server"} & set(flags) else ("--models-dir", str(grid_models))
    assert program.main([*CITY, *models, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
