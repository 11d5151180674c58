"""`python -m evaluation`: paired simulations of served policies and baselines in the real SUMO."""

import argparse
import base64
import csv
import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from city import config, network
from city.errors import InputError
from city.version import VERSION
from controller.decision_step import DecisionLoop
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from evaluation import __main__ as program
from evaluation import actuated, arms, command, paired_runs, statistics
from evaluation import simulation as arm_simulation
from evaluation.arms import Arm
from evaluation.simulation import ArmSimulator, EvaluationTask, ServedModels
from serving.client import Client
from serving.embedded.config import ServerConfig
from simulation import model_files
from simulation.demand import Demand, varied
from simulation.executors import ThisProcess
from simulation.executors.processes import Processes
from simulation.street_simulation import SimulationFailed
from simulation.trips import read_trips
from tests.conftest import GRID
from tests.error_lines import assert_refused as refused
from tests.evaluation.outcomes import ZERO
from tests.serving.conftest import running

CITY = ("--city", str(GRID / "city.toml"))
SECONDS = 330.0


@pytest.fixture(scope="module")
def results(grid_models, tmp_path_factory):
    """(exit code, folder of the results) of an evaluation of every arm."""
    folder = tmp_path_factory.mktemp("results")
    flags = ("--models-dir", str(grid_models), "--seeds", "2", "--seconds", str(SECONDS), "--out", str(folder))
    return program.main([*CITY, *flags, "--arms", "served:1,fixed,actuated,max-pressure", "--emissions"]), folder


@pytest.fixture(scope="module")
def document(results):
    return json.loads((results[1] / "results.json").read_text())


@pytest.fixture
def outcomes(monkeypatch):
    """A function: every simulation has an outcome without delays, with changes: those of (arm's name, demand)."""

    def outcomes(changes):
        def run(self, arm, demand, *_):
            own = {"arm": arm.name, "seed": demand.seed, "delay_quantiles_s": tuple(map(float, range(101)))}
            return replace(ZERO, **own | changes(arm.name, demand))

        monkeypatch.setattr(ArmSimulator, "run", run)

    return outcomes


@pytest.fixture
def simulate(grid_city):
    """A function: the outcome of a baseline."""

    def simulate(arm="fixed", seconds=SECONDS, tls=("SA101",), city=grid_city, records=False):
        return ArmSimulator(EvaluationTask(city, tls, seconds)).run(Arm(arm, arm), Demand(7), None, records)

    return simulate


def test_every_arm_is_simulated_with_every_seed(results, document):
    code, _ = results
    totals = {}
    for simulation in document["simulations"]:
        totals.setdefault(simulation["seed"], set()).add(simulation["total"])
    assert code == 0 and document["candidate"] == "served:1" and len(document["simulations"]) == 8
    assert all(len(total) == 1 and min(total) > 50 for total in totals.values())
    assert len({simulation["delay_s"] for simulation in document["simulations"]}) == 8, "every arm acts differently"


@pytest.mark.parametrize(
    ("text", "candidate", "expected"),
    [
        ("fixed,served,actuated", None, ["served", "fixed", "actuated"]),
        ("actuated,fixed", None, ["actuated", "fixed"]),
        ("fixed", None, ["fixed"]),
        ("served,fixed,greedy", "greedy", ["greedy", "served", "fixed"]),
        ("served,fixed", "fixed", ["fixed", "served"]),
    ],
)
def test_candidate_is_the_first_arm_that_is_not_fixed_or_the_one_named(text, candidate, expected):
    assert [arm.name for arm in arms.parse(text, candidate)] == expected


@pytest.mark.parametrize(
    ("names", "reference"), [(["a", "b", "fixed"], "fixed"), (["a", "b"], "b"), (["fixed", "a"], "a"), (["a"], None)]
)
def test_candidate_is_compared_with_fixed_first_of_all(names, reference):
    assert arms.reference_of(names) == reference


def test_named_candidate_is_that_of_table_gate_and_files(outcomes, tmp_path, capsys):
    delays_s = {"fixed": 30.0, "actuated": 20.0, "greedy": 10.0}
    outcomes(lambda arm, demand: {"delay_s": delays_s[arm] + demand.seed / 10})
    flags = ("--arms", "fixed,actuated,greedy", "--seeds", "2", "--same-demand", "--out", str(tmp_path))
    assert program.main([*CITY, *flags, "--candidate", "greedy", "--gate", "actuated"]) == 0
    assert "gate: greedy - actuated: -10.00 s" in (out := capsys.readouterr().out)
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["greedy", "fixed", "actuated"]
    assert json.loads((tmp_path / "results.json").read_text())["candidate"] == "greedy"
    page = (tmp_path / "report.html").read_text()
    assert "In simulation, greedy control cuts the mean delay of fixed control by 66\N{NO-BREAK SPACE}%" in page
    assert program.main([*CITY, *flags, "--gate", "fixed"]) == 0
    assert "gate: actuated - fixed: -10.00 s" in capsys.readouterr().out


def test_results_have_the_mean_greens_of_movements_and_the_traffic_of_lane_groups(results, document):
    assert document["movements"].keys() == document["lane_groups"].keys() == document["arms"].keys()
    fixed = document["movements"]["fixed"]["A0"]["northbound left (protected)"]
    assert fixed["skipped_share"] == 0.0 and fixed["longest_red_s"] == 41.0 and 60 < fixed["greens_per_h"] < 90
    group = document["lane_groups"]["fixed"]["A0"]["northbound through + right"]
    assert (
        group["saturation"] == pytest.approx(group["volume_veh_h"] / group["capacity_veh_h"])
        and group["level"] in "ABCDEF"
    )
    assert not {"signals", "movements", "lane_groups", "pictures"} & document["simulations"][0].keys()
    page = (results[1] / "report.html").read_text()
    assert "<summary>A0 (SA101)</summary>" in page and "<td>northbound left (protected)</td>" in page


def test_every_arm_meets_the_same_vehicles(grid_city, monkeypatch):
    vehicles = []

    def read(tripinfo, end_s):
        trips = [element.attrib for _, element in ET.iterparse(tripinfo) if element.tag == "tripinfo"]
        vehicles.append({trip["id"]: trip["speedFactor"] for trip in trips})
        return read_trips(tripinfo, end_s)

    monkeypatch.setattr(arm_simulation, "read_trips", read)
    simulator = ArmSimulator(EvaluationTask(grid_city, ("SA101",), 200.0))
    demand = varied(np.random.default_rng(5), varies=True)
    for arm in arms.parse("fixed,actuated,max-pressure"):
        simulator.run(arm, demand)
    simulator.run(Arm("fixed", "fixed"), varied(np.random.default_rng(6), varies=True))
    assert vehicles[0] == vehicles[1] == vehicles[2] != vehicles[3] and len(vehicles[0]) > 50


def test_results_compare_tls_queues_and_emissions(document, grid_city):
    tls = grid_city.tls.keys()
    for arm, by_tl in document["delay_by_tl"].items():
        own = [s["delay_by_tl"]["SA101"] for s in document["simulations"] if s["arm"] == arm]
        assert by_tl.keys() == tls and by_tl["SA101"]["mean"] == pytest.approx(np.mean(own))
        assert document["arms"][arm]["CO2_g"]["mean"] > 50, "a car emits that much on a few hundred metres"
    for simulation in document["simulations"]:
        quantiles = simulation["delay_quantiles_s"]
        assert len(quantiles) == 101 and quantiles == sorted(quantiles)
        assert quantiles[0] < simulation["delay_s"] < quantiles[-1]
        assert simulation["delay_by_departure"].keys() == {"0", "300"} and max(simulation["queue_by_road"].values()) > 0


def test_report_has_every_plot_and_links_the_pages_of_signals(results):
    page = (results[1] / "report.html").read_text()
    pictures = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)" width="\d+">', page)
    titles = [title for title, _ in pictures]
    assert {"Delay over time", "Signals in time and space: actuated"} < set(titles) and len(set(titles)) == 9
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for _, data in pictures)
    assert "max-pressure" in page and not re.findall(r'src="(?!data:)', page), "no other file is needed"
    assert all(f'id="{each}"' in page for each in re.findall(r'href="#([^"]*)', page))
    links = re.findall(r'href="(?!data:|#)([^"]*)', page)
    assert links and all(re.fullmatch(r"signals-\d+-[\w.-]+\.html", link) for link in links)
    assert all((results[1] / link).is_file() for link in links)


def test_results_name_city_tls_and_models(results, document, grid_city, grid_models):
    """And all that repeats them."""
    conditions = document["conditions"]
    assert conditions["tls"] == list(grid_city.tls) and conditions["seconds"] == SECONDS
    assert (conditions["seeds"], conditions["first_seed"], conditions["emissions"]) == (2, 1, True)
    assert conditions["models"]["served:1"]["SA101"] == str(grid_models.resolve() / "SA101" / "1")
    assert conditions["change_times"] == "every arm has those of each signal's own program"
    page = (results[1] / "report.html").read_text()
    assert "every arm has those of each signal&#39;s own program" in page or conditions["change_times"] in page
    # the page, which is passed on, has the last folders of a path alone
    model = "/".join(grid_models.resolve().parts[-1:])
    for text in (f"examples/grid/{GRID.name}.sumocfg", f"{model}/SA101/1", f"greenserve: {VERSION}", "sumo: "):
        assert text in page
    assert str(grid_models) not in page and str(GRID) not in page


def test_served_arm_of_a_city_without_tables_is_refused_with_the_remedy(tmp_path, capsys):
    (tmp_path / "city.toml").write_text(f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n')
    assert program.main(["--city", str(tmp_path / "city.toml"), "--arms", "fixed,served:3"]) == 2
    refused(
        capsys, "which arm served:3 needs for its models", "greenserve city init", "or leave served:3 out of --arms"
    )


@pytest.mark.parametrize("name", ["results.json", "results.csv", "report.html"])
def test_file_that_cannot_be_written_is_named_and_nothing_half_written_stays(name, tmp_path, capsys):
    (tmp_path / name).mkdir()
    flags = ("--arms", "fixed", "--seeds", "1", "--seconds", "50", "--out", str(tmp_path))
    assert program.main([*CITY, *flags]) == 2
    refused(capsys, f"error: {tmp_path / name}: cannot be written: Is a directory")
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*"))


def test_outcomes_stay_in_the_order_of_their_demands(grid_city, outcomes):
    """SUMO's seeds of varied demand are random; the first demand is the one whose signals are recorded."""
    outcomes(lambda arm, demand: {})
    demands = [Demand(seed) for seed in (9, 3, 7)]
    runs = paired_runs.PairedRuns(EvaluationTask(grid_city, ("SA101",)), arms.parse("fixed,greedy"), demands, {})
    for own in paired_runs.run(ThisProcess(), runs).values():
        assert [outcome.seed for outcome in own] == [9, 3, 7]


def test_version_that_is_a_link_is_moved_with_its_files(grid_models, tmp_path):
    (tmp_path / "SA101").mkdir()
    (tmp_path / "SA101" / "1").symlink_to(grid_models / "SA101" / "1")
    data = model_files.pack_versions(model_files.find(tmp_path, {"SA101": None}))
    (version,) = model_files.unpack_versions(data, tmp_path / "moved").values()
    assert (version / "saved_model.pb").read_bytes() == (grid_models / "SA101" / "1" / "saved_model.pb").read_bytes()


def test_differences_are_paired(results, document):
    delays = {arm: [s["delay_s"] for s in document["simulations"] if s["arm"] == arm] for arm in document["arms"]}
    for arm, values in document["arms"].items():
        difference = values["delay_s"]["difference"]
        assert difference["mean"] == pytest.approx(np.subtract(delays["served:1"], delays[arm]).mean())
        assert values["delay_s"]["mean"] == pytest.approx(np.mean(delays[arm]))
    with (results[1] / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in rows[:2]] == [("served:1", "1"), ("served:1", "2")]
    assert float(rows[0]["delay_s"]) == pytest.approx(delays["served:1"][0], abs=1e-3)


def test_fixed_arm_is_sumo_alone(simulate, tmp_path):
    outcome = simulate()
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "7", "--no-step-log", "--no-warnings"]
    options += ["--tripinfo-output", str(tmp_path / "t.xml"), *TRIPINFO_OPTIONS]
    connection = start_libsumo([*options, "--end", str(SECONDS)])
    connection.api.simulationStep(SECONDS)
    connection.close()
    trips = read_trips(tmp_path / "t.xml")
    assert (outcome.delay_s, outcome.finished, outcome.total) == (trips.delay_s, trips.finished, trips.total)


@pytest.mark.parametrize("begin_s", [0, 57600])
def test_vehicles_that_never_depart_are_in_the_window_of_their_schedule(simulate, grid_city, tmp_path, begin_s):
    """A road takes a vehicle every second or two; 700 are scheduled on it in 350 s."""
    vehicles = "".join(
        f'<vehicle id="{k}" depart="{begin_s + k / 2}"><route edges="A1B1"/></vehicle>' for k in range(700)
    )
    (tmp_path / "a.rou.xml").write_text(f"<routes>{vehicles}</routes>")
    (tmp_path / "a.sumocfg").write_text(
        f'<configuration><input><net-file value="{GRID / "grid.net.xml"}"/><route-files value="a.rou.xml"/></input>'
        f'<time><begin value="{begin_s}"/><end value="{begin_s + 360}"/></time></configuration>'
    )
    outcome = simulate(seconds=None, city=replace(grid_city, network=config.Network(tmp_path / "a.sumocfg")))
    windows = outcome.delay_by_departure
    assert outcome.total == 700 and windows.keys() == {begin_s, begin_s + 300}
    # the newest 100 vehicles are all before the road, the last ones for 10 s
    assert windows[begin_s + 300] == pytest.approx(np.mean([360 - k / 2 for k in range(600, 700)]), abs=1.0)


@pytest.mark.slow
def test_processes_give_the_same_outcomes_in_the_same_order(grid_city, grid_models):
    task = EvaluationTask(grid_city, ("SA101", "SA102"), seconds=100.0)
    compared, demands = arms.parse("served,max-pressure,fixed"), [Demand(seed) for seed in (1, 2, 3)]
    models = {"served": model_files.find(grid_models, {"SA101": None, "SA102": 1})}
    runs = paired_runs.PairedRuns(task, compared, demands, models)
    alone = paired_runs.run(ThisProcess(), runs)
    with Processes(2) as processes:
        assert paired_runs.run(processes, runs) == alone
        processes.moves_files = True
        assert paired_runs.run(processes, runs) == alone, "models as bytes"
    assert {arm: [each.seed for each in outcomes] for arm, outcomes in alone.items()} == {
        arm.name: [1, 2, 3] for arm in compared
    }


def test_delay_by_tl_adds_up_to_the_delay_on_their_roads(simulate, grid_city):
    outcome = simulate(tls=tuple(grid_city.tls))
    assert outcome.delay_by_tl.keys() == grid_city.tls.keys()
    # what is lost inside junctions, on roads out of the city and between two samples is missing or counted twice
    assert sum(outcome.delay_by_tl.values()) == pytest.approx(outcome.delay_s, rel=0.25)
    assert outcome.worst_road and 0 < outcome.worst_road_s <= max(outcome.delay_by_tl.values())


@pytest.mark.parametrize("arm", ["fixed", "max-pressure"])
def test_last_interval_of_a_simulation_counts_for_its_own_length(simulate, grid_city, arm):
    """One second more of 60 must not count as ten."""
    whole, longer = (simulate(arm, seconds, tuple(grid_city.tls)) for seconds in (60.0, 61.0))
    lost_s = [sum(each.delay_by_tl.values()) * each.total for each in (whole, longer)]
    queued = [sum(each.queue_by_road.values()) for each in (whole, longer)]
    assert 0 < lost_s[0] < lost_s[1] < 1.1 * lost_s[0] and queued[0] < queued[1] < 1.1 * queued[0]


def test_arms_end_at_the_same_ms(simulate):
    """SUMO counts whole ms."""
    fixed, pressure, exact = simulate("fixed", 60.0001), simulate("max-pressure", 60.0001), simulate("fixed", 60.0)
    assert fixed.total == pressure.total == exact.total


@pytest.mark.timeout(60)  # it would wait for a moment that SUMO never reports
def test_simulation_with_steps_of_a_tenth_of_a_second_ends(simulate, grid_city, tmp_path):
    times = '<begin value="0.3"/><step-length value="0.1"/>'
    city = city_with(grid_city, tmp_path, '<begin value="0"/>', times)
    assert simulate("max-pressure", 40.0, city=city).total > 0


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


def test_actuated_programs_extend_no_transition(grid_street, tmp_path):
    signal = next(iter(grid_street.signals.values()))
    size = len(signal.links) - 2
    phases = tuple(
        network.ProgramPhase(state + "r" * size, s, s, s)
        for state, s in (("Gr", 20), ("yr", 3), ("ru", 1), ("rG", 20), ("ry", 3))
    )
    own = replace(signal, programs=(network.Program("0", "static", 0, phases),), active_program="0")
    logic = ET.parse(actuated.write(tmp_path / "a.add.xml", [own])).getroot()[0]
    assert ["minDur" in phase.attrib for phase in logic] == [True, False, False, True, False]


def test_actuated_arm_is_refused_where_sumo_would_not_run_it(grid_street, tmp_path):
    signal = next(iter(grid_street.signals.values()))
    switched = replace(signal, switches=(network.ProgramSwitch(0.0, "0", 0.0),))
    nema = replace(signal, programs=tuple(replace(program, type="NEMA") for program in signal.programs))
    for other, message in ((switched, "follows a WAUT"), (nema, "a program of type NEMA")):
        with pytest.raises(InputError, match=f"signal {signal.id} .*{message}.*leave actuated out"):
            actuated.write(tmp_path / "a.add.xml", [other])


@pytest.mark.parametrize(
    ("delays", "code", "text"),
    [
        (
            {"greedy": (20, 22, 21), "fixed": (30, 33, 31)},
            0,
            "-10.33 s of mean delay, 95 % interval -11.77 to -8.90: better",
        ),
        ({"greedy": (20, 40, 21), "fixed": (30, 33, 31)}, 3, "not better"),  # less on average, but by chance
        ({"greedy": (30, 33, 31), "fixed": (20, 22, 21)}, 3, "not better"),
    ],
)
def test_gate_decides_by_the_interval(delays, code, text, outcomes, capsys):
    outcomes(lambda arm, demand: {"delay_s": delays[arm][demand.seed - 1]})
    flags = (*CITY, "--seeds", "3", "--arms", "greedy,fixed", "--gate", "fixed")
    assert program.main([*flags, "--same-demand"]) == code
    out = capsys.readouterr().out
    assert text in out and "The intervals are over 3 simulations of one demand with other drivers." in out


@pytest.mark.parametrize(
    ("flags", "varies"),
    [
        (("--gate", "fixed"), True),
        (("--gate", "fixed", "--same-demand"), False),
        (("--vary-demand",), True),
        ((), False),
    ],
)
def test_gate_varies_the_demand_unless_told_otherwise(flags, varies, outcomes, tmp_path, capsys):
    demands = []
    outcomes(lambda arm, demand: demands.append(demand) or {"delay_s": 20.0 + len(demands)})
    command = (*CITY, "--seeds", "2", "--arms", "max-pressure,fixed", "--out", str(tmp_path))
    assert program.main([*command, *flags]) in (0, 3)
    assert {demand.resampled for demand in demands} == {varies}
    text = "The intervals are over 2 varied demands" if varies else "The intervals are over 2 simulations of one demand"
    assert text in capsys.readouterr().out and text in (tmp_path / "report.html").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["intervals"].startswith(text) and results["conditions"]["varied_demand"] is varies


@pytest.mark.parametrize("arm", ["fixed", "max-pressure"])
@pytest.mark.parametrize("period_s", [5, 7])
def test_delay_by_tl_does_not_depend_on_the_moment_of_the_decisions(period_s, arm, grid_city, monkeypatch):
    """A vehicle that loses time in one second of each period only."""

    class Periodic:
        def __init__(self, connection, lanes):
            self._time = connection.api.simulation.getTime

        def by_road(self):
            return {"SA101": {"road": 1.0 if self._time() % period_s == 0 else 0.0}}

    monkeypatch.setattr(arm_simulation, "LostTime", Periodic)
    outcome = ArmSimulator(EvaluationTask(grid_city, ("SA101",), 900.0)).run(arms.parse(arm)[0], Demand(1))
    assert outcome.delay_by_tl["SA101"] * outcome.total / 900 == pytest.approx(1 / period_s, abs=0.06)


def test_seed_without_a_vehicle_is_left_out_and_no_difference_of_zero(outcomes, capsys):
    delays_s = {"fixed": 20.0, "max-pressure": 10.0}
    outcomes(lambda arm, demand: {"total": 0} if demand.seed == 2 else {"total": 10, "delay_s": delays_s[arm]})
    assert program.main([*CITY, "--seeds", "3", "--arms", "max-pressure,fixed"]) == 0
    printed = capsys.readouterr()
    assert "left out SUMO's seeds without a vehicle: 2" in printed.err
    assert "-10.00 (-10.00 to -10.00)" in printed.out and "over 2 simulations" in printed.out


def test_model_numbers_are_arms_of_their_own(grid_city, grid_models, tmp_path):
    for number in "12":
        shutil.copytree(grid_models / "SA101" / "1", tmp_path / "SA101" / number)
    task = EvaluationTask(grid_city, ("SA101",))
    compared = arms.parse("served:1,served:2,served,fixed")
    args = argparse.Namespace(models_dir=tmp_path, model=[])
    found = {arm: by_tl["SA101"].name for arm, by_tl in command._models(args, compared, task).items()}
    assert found == {"served:1": "1", "served:2": "2", "served": "2"}
    for chosen, number in (("1", "1"), (str(tmp_path), "2"), (f"{tmp_path}:1", "1")):
        args = argparse.Namespace(models_dir=tmp_path, model=[f"SA 101={chosen}"])
        models = command._models(args, compared, task)
        assert [models[arm]["SA101"].name for arm in ("served", "served:2")] == [number, "2"]


def test_model_that_cannot_be_loaded_is_named(grid_models, tmp_path, capsys):
    shutil.copytree(grid_models / "SA101", tmp_path / "SA101")
    (tmp_path / "SA101" / "1" / "saved_model.pb").write_bytes(b"")
    flags = ("--models-dir", str(tmp_path), "--tl", "SA101", "--arms", "served", "--seeds", "1")
    assert program.main([*CITY, *flags]) == 2
    refused(capsys, f"error: {tmp_path}/SA101/1: cannot be loaded (", "export it again")


def test_served_arm_without_answers_ends_the_evaluation(grid_city, grid_models, monkeypatch, capsys):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server, Client(f"127.0.0.1:{server.port}") as client:
        simulator = ArmSimulator(EvaluationTask(grid_city, ("SA101",), 100.0))
        act = DecisionLoop.act

        def act_and_stop_server(loop, answers, end_s):
            monkeypatch.undo()
            act(loop, answers, end_s)
            server.stop()

        monkeypatch.setattr(DecisionLoop, "act", act_and_stop_server)
        with pytest.raises(SimulationFailed, match="SA101 had no valid answer from its policy at second 5;"):
            simulator.run(Arm("served", "served"), Demand(1), ServedModels(client, ("SA101",)))


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
        (("--arms", "fixed,served", "--gate", "served"), "and not the candidate served"),
        (("--arms", "served,fixed", "--candidate", "x"), "--candidate 'x' must be one of --arms: served, fixed"),
        (("--arms", "served,fixed", "--gate", "fixed", "--seeds", "1"), "--gate needs --seeds of at least 2"),
        (("--tl", "SA999"), "SA999 is not one of the TLs"),
        (("--models-dir", "nowhere"), "there is no model in"),
        (("--arms", "served:77"), "SA101/77; SA101 has 1"),
        (("--server", "127.0.0.1:1"), "no model server answers"),
        (("--server", "foo"), "--server"),
        (("--server", "a:1", "--models-dir", "b"), "both name the models"),
        (("--model", "SA101"), "must be TL=NUMBER, TL=DIR or TL=DIR:NUMBER"),
        (("--model", "SA999=1"), "must be TL=NUMBER"),
        (("--model", "SA101=7"), "SA101/7; SA101 has 1"),
        (("--model", "SA101=nowhere:1"), "there is no model in nowhere/SA101"),
        (("--model", "SA101=1", "--server", "127.0.0.1:1"), "--model names files"),
        (("--model", "SA101=1", "--arms", "fixed"), "--model needs the arm served"),
        (("--ray", "127.0.0.1:1", "--server", "127.0.0.1:1"), "leave --server out"),
        (("--ray", "127.0.0.1:1"), "no Ray cluster answers there"),
        (("--ray", "here"), "--ray 'here' must be HOST:PORT"),
        (("--faults", "missing"), "'missing' must be FAULT=SHARE"),
        (("--faults", "broken=0.1"), "each of missing, stuck, noisy once"),
        (("--faults", "missing=0.6,stuck=0.5"), "add up to 1 at most"),
        (("--faults", "missing=nan"), "must be FAULT=SHARE"),
        (("--faults", "missing=0.1", "--arms", "fixed,actuated"), "--faults needs an arm"),
        (("--ray", "127.0.0.1:1", "--workers", "2"), "leave one of them out"),
        (("--model", "SA101=1", "--model", "SA 101=1"), "--model names SA101 twice"),
        (("--arms", "served:99999999999999999999"), "is not one of served"),
        (("--faults", ""), "add up to 1 at most"),
        (("--seeds", "0"), "--seeds: 0 must lie between 1"),
        (("--seconds", "0.0001"), "--seconds: 0.0001 must lie between 1"),
        (("--emissions",), "--emissions needs --out"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(flags, message, grid_models, capsys):
    models = () if {"--models-dir", "--server"} & set(flags) else ("--models-dir", str(grid_models))
    assert program.main([*CITY, *models, *flags]) == 2
    refused(capsys, message)


def city_with(city, folder, old, new):
    """The sample city with a change in SUMO's configuration."""
    text = (GRID / "grid.sumocfg").read_text().replace('value="', f'value="{GRID}/', 3)
    (folder / "a.sumocfg").write_text(text.replace(old, new))
    return replace(city, network=replace(city.network, sumocfg=folder / "a.sumocfg"))


@pytest.mark.parametrize("arm", ["fixed", "actuated"])
def test_signals_that_are_switched_off_are_no_baseline(simulate, grid_city, tmp_path, arm):
    city = city_with(grid_city, tmp_path, "</processing>", '<tls.all-off value="true"/></processing>')
    with pytest.raises(InputError, match=r"SUMO runs program 'off' .* remove tls.all-off"):
        simulate(arm, 20.0, city=city)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            "max-pressure,fixed",
            "fixed and actuated have those of the programs, and the other arms others at A (yellow 6 s",
        ),
        # a policy for any junction has the times of its own dialect, and not those of [tl.A]
        ("pretrained,fixed", "every arm has those of each signal's own program"),
        ("fixed,actuated", "every arm has those of each signal's own program"),
    ],
)
def test_change_times_are_those_of_the_arms(names, line, tmp_path):
    city = tmp_path / "city.toml"
    city.write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.A]\nsignals = ["A0"]\ndialect = "sumo-rl"\nyellow_s = 6\n'
    )
    args = argparse.Namespace(city=city, tl=None, seconds=60.0, strict=False, faults=None, emissions=False)
    *_, change_times = command._task(args, arms.parse(names))
    assert change_times.startswith(line)


def test_overrides_are_named_by_reason_for_each_arm_that_has_some():
    outcomes = [replace(ZERO, overrides_by_reason=each) for each in ({"max_red": 4, "yellow": 1}, {"max_red": 5})]
    results = {"served": outcomes, "greedy": [ZERO, ZERO]}
    assert arm_simulation.describe_overrides(arms.parse("served,greedy"), results) == [
        "overrides in a simulation: served: 4.5 max_red, 0.5 yellow"
    ]


@pytest.mark.parametrize("key", ["left", "protected left"])
def test_max_red_of_a_movement_holds_in_an_evaluation(key, grid_city):
    safety = replace(grid_city.safety, max_red_s_of_signal={"A0": {key: 20.0}})
    overrides = [
        ArmSimulator(EvaluationTask(city, ("SA101",), 120.0))
        .run(*arms.parse("max-pressure"), Demand(1))
        .overrides_by_reason
        for city in (grid_city, replace(grid_city, safety=safety))
    ]
    assert "max_red" not in overrides[0] and overrides[1]["max_red"] > 0
