"""Time lost by class of road users: from a tripinfo file to the table files and the report."""

import csv
import json
from dataclasses import replace

import pytest

from evaluation import report, results_files, road_users
from evaluation.arms import Arm
from evaluation.road_users import RoadUsers
from greenserve.__main__ import main
from tests.evaluation.outcomes import ZERO
from tests.networks import crossroads

VEHICLE = '<tripinfo id="{}" vType="{}" depart="{}" departDelay="{}" arrival="{}" timeLoss="{}"/>'
PERSON = '<personinfo id="{}" type="DEFAULT_PEDTYPE" depart="0.00" duration="{}">{}</personinfo>'
WALK = '<walk depart="0.00" arrival="{}" timeLoss="{}"/>'
TYPES = {"a": "passenger", "a@x": "truck", "b": "bus", "t": "tram", "s": "ship", "m@1": "bicycle"}
STREET = replace(
    ZERO,
    delay_by_tl={"SA101": 0.0},
    delay_quantiles_s=(0.0,) * 101,
    delay_by_departure={0: 1.0},
    queue_by_road={"a": 1},
)
CONDITIONS = {"city": "city.toml", "tls": ["SA101"]}


def of_tripinfo(path, *elements):
    path.write_text(f"<tripinfos>{''.join(elements)}</tripinfos>")
    return road_users.read(path, TYPES)


def test_road_users_are_counted_by_the_class_of_their_vehicle_type(tmp_path):
    users = of_tripinfo(
        tmp_path / "t.xml",
        VEHICLE.format(0, "a", 10, 2, 50, 8),
        VEHICLE.format(1, "a@x", 10, 0, -1, 20),
        VEHICLE.format(2, "a@copy", -1, 30, -1, 0),
        VEHICLE.format(3, "b", 0, 0, 9, 5),
        VEHICLE.format(4, "t", 0, 0, 9, 6),
        VEHICLE.format(5, "m@1", 0, 0, 9, 7),
        VEHICLE.format(6, "s", 0, 0, 9, 1),
        VEHICLE.format(7, "unknown", 0, 0, 9, 3),
    )
    assert users == {
        "cars": RoadUsers(3, 1, 20.0),
        "buses": RoadUsers(1, 1, 5.0),
        "trains": RoadUsers(1, 1, 6.0),
        "bicycles": RoadUsers(1, 1, 7.0),
        "others": RoadUsers(2, 2, 2.0),
    }


def test_walkers_that_have_not_arrived_are_counted_without_a_time_that_sumo_does_not_know(tmp_path):
    under_way = PERSON.format(1, -1, WALK.format(-1, 0))
    people = (
        PERSON.format(0, 90, WALK.format(40, 4) + "<ride/>" + WALK.format(90, 2)),
        under_way,
        PERSON.format(2, 30, '<ride arrival="30"/>'),
        PERSON.format(3, 0, ""),
    )
    assert of_tripinfo(tmp_path / "t.xml", *people) == {"walkers": RoadUsers(2, 1, 6.0)}
    assert of_tripinfo(tmp_path / "t.xml", under_way) == {"walkers": RoadUsers(1, 0, None)}


def test_walkers_under_way_have_lost_the_time_that_they_have_stood(tmp_path):
    stands = WALK.format(-1, 0).replace("/>", ' waitingTime="25"/>')
    people = (
        VEHICLE.format(0, "a", 10, 2, 50, 8),
        PERSON.format(0, 90, WALK.format(40, 4) + "<ride/>" + WALK.format(90, 2)),
        PERSON.format(1, -1, WALK.format(40, 3) + stands),
        PERSON.format(2, 30, '<ride arrival="30"/>'),
    )
    of_tripinfo(tmp_path / "t.xml", *people)
    assert road_users.walkers_lost_s(tmp_path / "t.xml") == [6.0, 28.0]


def test_means_over_simulations_count_missing_classes_as_none():
    first, second = {"cars": RoadUsers(4, 2, 10.0), "walkers": RoadUsers(1, 0, None)}, {"cars": RoadUsers(6, 6, 20.0)}
    assert road_users.means([first, second]) == {
        "cars": RoadUsers(5.0, 4.0, 15.0),
        "walkers": RoadUsers(0.5, 0.0, None),
    }


def test_files_and_report_have_the_classes_that_occur(tmp_path):
    arms = [Arm("fixed", "fixed"), Arm("greedy", "greedy")]
    users = [{"cars": RoadUsers(9, 8, 12.3456), "walkers": RoadUsers(3, 0, None)}, {"cars": RoadUsers(9, 9, 5.0)}]
    results = {arm.name: [replace(STREET, arm=arm.name, road_users=own)] for arm, own in zip(arms, users, strict=True)}
    results_files.write(tmp_path, arms, results, CONDITIONS)
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["cars_lost_s"] for row in rows] == ["12.346", "5.0"]
    assert [(row["walkers_lost_s"], row["walkers_total"], row["walkers_arrived"]) for row in rows] == [
        ("", "3", "0"), ("", "0", "0"),
    ]  # fmt: skip
    assert not any(name.startswith(("buses", "others")) for name in rows[0])
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["road_users"]["fixed"]["walkers"] == {"total": 3.0, "arrived": 0.0, "lost_s": None}
    page = report.write(tmp_path, arms, results, CONDITIONS).read_text()
    assert '<a href="#road-users">' in page and "<th>Cars</th><th>Walkers</th></tr>" in page and "12.3&nbsp;s" in page
    assert "8&nbsp;of&nbsp;9" in page and "0&nbsp;of&nbsp;3" in page and "Buses" not in page


def test_report_of_cars_alone_has_no_second_table_of_them(tmp_path):
    arm = Arm("fixed", "fixed")
    results = {"fixed": [replace(STREET, road_users={"cars": RoadUsers(9, 8, 1.0)})]}
    assert "road-users" not in report.write(tmp_path, [arm], results, CONDITIONS).read_text()


def test_evaluation_splits_the_road_users_of_a_street(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    crossroads(tmp_path, "--sidewalks.guess", "--sidewalks.guess.max-speed", "30", "--crossings.guess")
    kinds = {"car": "passenger", "lorry": "truck", "line": "bus", "bike": "bicycle", "street_car": "tram"}
    text = "".join(f'<vType id="{name}" vClass="{kind}"/>' for name, kind in kinds.items())
    for name in ("car", "lorry", "line", "bike"):
        text += f'<flow id="{name}" type="{name}" begin="0" end="100" period="10" from="wc" to="ce"/>'
    text += '<personFlow id="p" begin="0" end="100" period="5"><walk from="nc" to="cs"/></personFlow>'
    (tmp_path / "d.rou.xml").write_text(f"<routes>{text}</routes>")
    flags = ("--net", "c.net.xml", "--route", "d.rou.xml", "--num-seconds", "600")
    assert main(["city", "init", *flags]) == 0
    assert main(["evaluate", "--arms", "max-pressure", "--seeds", "1", "--out", "results"]) == 0
    document = json.loads((tmp_path / "results" / "results.json").read_text())
    (simulation,) = document["simulations"]
    users = simulation["road_users"]
    totals = {name: each["total"] for name, each in users.items()}
    assert totals == {"cars": 20, "buses": 10, "bicycles": 10, "walkers": 20}
    vehicles = [each for name, each in users.items() if name != "walkers"]
    lost_s = sum(each["lost_s"] * each["total"] for each in vehicles)
    assert lost_s / simulation["total"] == pytest.approx(simulation["delay_s"])
    assert sum(each["arrived"] for each in vehicles) == simulation["finished"]
    assert users["walkers"]["arrived"] > 0 and users["walkers"]["lost_s"] > 0
