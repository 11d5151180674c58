"""The report: names and figures that fit on paper, maps, and what is better or worse."""

import html
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import sumo
from matplotlib.colors import to_hex

from city import config, street_shapes
from evaluation import __main__ as program
from evaluation import arms, report, report_figures
from evaluation.arms import Arm
from evaluation.report_figures import StreetMap
from evaluation.signal_recording import SignalBand
from evaluation.simulation import ArmSimulator, EvaluationTask
from greenserve.__main__ import main as greenserve
from simulation.demand import Demand
from tests.conftest import GRID
from tests.evaluation.outcomes import ZERO
from tests.networks import netgenerate

A4_IN = (297 - 2 * 16) / 25.4


def test_one_seed_has_no_interval_in_report_and_table(tmp_path, capsys):
    flags = ("--arms", "max-pressure,fixed", "--tl", "SA101", "--seeds", "1", "--seconds", "60", "--out", str(tmp_path))
    assert program.main(["--city", str(GRID / "city.toml"), *flags]) == 0
    shown = capsys.readouterr().out + re.sub(r"base64,[^\"]+", "", (tmp_path / "report.html").read_text())
    assert "(one seed, no interval)" in shown and "none (one seed)" in shown
    assert not re.search(r"\binf\b|\bnan\b", shown)


def test_passed_vehicles_are_those_that_leave_the_roads_to_the_signals(grid_city, tmp_path):
    """Ten vehicles pass the signal B1 and end on the road to C1."""
    route = '<route edges="A1B1 A1B1.70.00 B1C1"/>'
    vehicles = "".join(f'<vehicle id="{k}" depart="{5 * k}">{route}</vehicle>' for k in range(10))
    (tmp_path / "a.rou.xml").write_text(f"<routes>{vehicles}</routes>")
    (tmp_path / "a.sumocfg").write_text(
        f'<configuration><input><net-file value="{GRID / "grid.net.xml"}"/><route-files value="a.rou.xml"/></input>'
        '<time><end value="400"/></time></configuration>'
    )
    city = replace(grid_city, network=config.Network(tmp_path / "a.sumocfg"))
    outcome = ArmSimulator(EvaluationTask(city, tuple(city.tls))).run(Arm("fixed", "fixed"), Demand(1))
    passing = {tl: count for tl, count in outcome.passed_by_tl.items() if count}
    (tl,) = [name for name, own in city.tls.items() if "B1" in own.signals]
    assert passing == {tl: 10} and outcome.total == 10
    assert outcome.delay_per_vehicle_s(tl) == pytest.approx(outcome.delay_by_tl[tl])


def test_long_names_stay_different_and_are_explained(tmp_path):
    names = [f"cluster_{'1234567890_' * 6}{k}{'_1234567890' * 6}" for k in range(20)]
    short = report_figures.short_names(names)
    assert len(set(short.values())) == 20 and max(map(len, short.values())) < 40
    outcome = replace(
        ZERO,
        delay_by_tl=dict.fromkeys(names, 1.0),
        passed_by_tl=dict.fromkeys(names, 1),
        delay_quantiles_s=(1.0,) * 101,
        delay_by_departure={57600: 3.0},
        queue_by_road=dict.fromkeys(names, 1.0),
        signals=tuple(
            SignalBand(name, 0.0, k, ((57600.0, "G"), (57605.0, "r")), 57610.0) for k, name in enumerate(names)
        ),
    )
    results = {"fixed": [replace(outcome, arm="fixed")]}
    conditions = {"city": "city.toml", "tls": names, "models": {}}
    page = report.write(tmp_path, arms.parse("fixed"), results, conditions, datetime(2026, 5, 4, 9, 30)).read_text()
    assert "2026-05-04 09:30" in page and "City: city.toml" in page
    for name in names:
        assert f"{name}<br><i>in figures: {short[name]}</i>" in page and f"<li>{short[name]} = {name}</li>" in page


def test_figures_fit_on_a_page_and_have_clock_and_legend():
    tls = [f"TL{k}" for k in range(30)]
    outcomes = [
        replace(ZERO, delay_by_tl=dict.fromkeys(tls, 1.0), delay_by_departure={57600: 1.0, 57900: 2.0 + k})
        for k in range(2)
    ]
    names = ["served", "fixed", "actuated", "max-pressure", "greedy", "served+faults", "max-pressure+faults"]
    results = dict.fromkeys(names, outcomes)
    figures = report_figures.delay_by_tl(names, results, tls)
    over_time = report_figures.delay_over_time(names, results)
    over_time.canvas.draw()
    assert len(figures) > 1 and sum(len(figure.axes[0].get_yticks()) for figure in figures) == 30
    for figure in [*figures, over_time]:
        assert figure.get_figheight() < A4_IN
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()][:7] == names
        assert len({handle.get_facecolor() for handle in legend.legend_handles[:7]}) == 7, (
            "each arm has a colour of its own"
        )
        assert to_hex(legend.legend_handles[1].get_facecolor()) == report_figures.FIXED_COLOUR
        figure.canvas.draw()
        assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent()), "the legend covers no bar"
    assert "16:05" in [label.get_text() for label in over_time.axes[0].get_xticklabels()]
    plt.close("all")


@pytest.mark.slow
def test_a_plan_is_compared_from_network_and_demand_without_a_model(tmp_path, capsys, in_tmp_path):
    """The commands of docs/signal-engineers.md, with fewer seeds."""
    tools = Path(sumo.SUMO_HOME)
    grid = ("--grid", "--grid.number", "2", "--grid.length", "200", "--grid.attach-length", "150")
    trips = ("-n", "town.net.xml", "-r", "town.rou.xml", "--end", "600", "--period", "2", "--seed", "1")
    netgenerate(Path("town.net.xml"), *grid)
    command = [sys.executable, tools / "tools" / "randomTrips.py", *trips]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SUMO_HOME": str(tools)})
    street = ("--net", "town.net.xml", "--route", "town.rou.xml", "--begin-time", "0", "--num-seconds", "600")
    assert greenserve(["city", "init", *street]) == 0
    Path("city.toml").write_text('[network]\nsumocfg = "town.sumocfg"\n')
    assert greenserve(["evaluate", "--arms", "fixed,actuated,max-pressure", "--seeds", "2", "--out", "results"]) == 0
    out, err = capsys.readouterr()
    assert "report: results/report.html" in out
    assert err.count("left on its own program: ") == 8, "the signals at the town's edge"
    page = (tmp_path / "results" / "report.html").read_text()
    assert "In simulation, actuated control cuts the mean delay of fixed control by" in page


@pytest.mark.parametrize("name", ["served", "served:3", "pretrained", "policy:a.policy", *arms.BASELINES])
def test_report_tells_what_each_arm_is(tmp_path, name):
    compared = arms.with_faults(arms.parse(name))
    results = {
        arm.name: [replace(ZERO, arm=arm.name, delay_s=30.0, delay_quantiles_s=(30.0,) * 101)] for arm in compared
    }
    policies = {arm.name: [str(arm.policy), "0" * 64] for arm in compared if arm.policy is not None}
    conditions = {"city": "city.toml", "tls": [], "models": {}, "policies": policies}
    page = report.write(tmp_path, compared, results, conditions).read_text()
    assert all(f"<li><b>{arm.name}</b>: " in page for arm in compared)
    assert f"controlled as one. {name[0].upper()}{name[1:]}: {report.MEANINGS[compared[0].kind]}" in html.unescape(page)
    shown = {arm: "/".join(Path(path).parts[-3:]) for arm, (path, _) in policies.items()}
    assert all(f"{arm}: {path}, SHA-256 {'0' * 64}" in page for arm, path in shown.items())
    assert "counter(pages)" in page and 'name="viewport"' in page and '<a href="#service">' in page


def test_greens_are_drawn_around_the_peak_and_by_distance():
    bands = [
        SignalBand(name, x_m, 0.0, ((0.0, "Gr"), (900.0, "rG")), 3600.0, {"rG": "east-west through"})
        for name, x_m in (("far", 900.0), ("near", 0.0), ("beside", 10.0))
    ]
    outcome = replace(ZERO, signals=tuple(bands), delay_by_departure={0.0: 10.0, 1800.0: 60.0, 3300.0: 20.0})
    ((_, figure),) = report_figures.greens(["fixed"], {"fixed": [outcome]})
    axes, distances = figure.axes
    assert axes.get_xlim() == (1650.0, 2250.0)
    labels = dict(zip([each.get_text() for each in axes.get_yticklabels()], axes.get_yticks(), strict=True))
    assert [each.get_text() for each in distances.get_yticklabels()] in (["0", "10", "900"], ["0", "890", "900"])
    gaps = abs(labels["near"] - labels["beside"]), abs(labels["beside"] - labels["far"])
    assert 100 < gaps[0] < gaps[1] / 1.5, "close signals are beside one another, the others to scale"


def test_greens_are_drawn_by_direction_and_transitions_stay_white():
    greens = {"Gr": "north-south through", "rG": "east-west through"}
    states = ((0.0, "Gr"), (100.0, "Gs"), (200.0, "rG"))  # the second leads from one green to the next
    outcome = replace(ZERO, signals=(SignalBand("A", 0.0, 0.0, states, 300.0, greens),))
    ((_, figure),) = report_figures.greens(["fixed"], {"fixed": [outcome]})
    bars = {(bar.get_x(), bar.get_width()): to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches}
    colours = report_figures.GREEN_COLOURS
    assert bars == {(0.0, 100.0): colours["north-south through"], (200.0, 100.0): colours["east-west through"]}
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["north-south through", "east-west through", "between greens"]


def test_map_has_the_level_of_each_tl(grid_city, grid_street):
    street = StreetMap(street_shapes.read(grid_street.net_file), {tl: own.signals for tl, own in grid_city.tls.items()})
    delays_s = {"SA101": 90.0, "SA108": 5.0}
    (axes,) = (figure := report_figures.service_map(street, "Before", delays_s)).axes
    assert axes.get_title() == "Before" and figure.get_figheight() <= report_figures.MAX_MAP_HEIGHT_IN
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["F", "SA101", "A", "SA108: C1", "A", "SA108: C2"], "SA108 has two signals"
    marked = {to_hex(line.get_markerfacecolor()) for line in axes.lines}
    assert marked == {report_figures.LEVEL_COLOURS["F"], report_figures.LEVEL_COLOURS["A"]}
    plt.close(figure)


def test_map_of_many_tls_has_no_names_and_of_very_many_no_letters():
    for count, texts in ((12, 2), (13, 1), (150, 1), (151, 0)):
        tls = {str(k): [str(k)] for k in range(count)}
        junctions = tuple(street_shapes.JunctionShape(tl, k, k, ((k, k), (k + 1, k + 1))) for k, tl in enumerate(tls))
        shapes = street_shapes.StreetShapes((), junctions, {tl: (tl,) for tl in tls})
        figure = report_figures.service_map(StreetMap(shapes, tls), "After", dict.fromkeys(tls, 1.0))
        assert len(figure.axes[0].texts) == texts * count and len(figure.axes[0].lines) == count
        plt.close(figure)


def test_differences_are_better_worse_or_undecided_in_a_word(tmp_path):
    delays = {"served": (20, 22, 21), "fixed": (30, 33, 31), "actuated": (10, 12, 11), "greedy": (5, 40, 18)}
    results = {
        name: [replace(ZERO, arm=name, seed=k, delay_s=d, delay_quantiles_s=(1.0,) * 101) for k, d in enumerate(values)]
        for name, values in delays.items()
    }
    conditions = {"city": "city.toml", "tls": [], "models": {}}
    page = report.write(tmp_path, arms.parse(",".join(delays)), results, conditions).read_text()
    cells = re.findall(r"<td>(\S+) <b class=\"(\w+)\">(\w+)</b>", page)
    assert cells == [("-10.3", *["better"] * 2), ("+10.0", *["worse"] * 2), ("+0.0", *["undecided"] * 2)]
