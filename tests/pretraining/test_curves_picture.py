"""The picture of a training of several networks."""

import re
import xml.etree.ElementTree as ET
from itertools import islice

import pytest

from city.errors import InputError
from pretraining import curves_picture
from pretraining.gate import REFERENCE, Verdict
from pretraining.selection import PRODUCT, Selected
from pretraining.street_results import StreetResult

SVG = "{http://www.w3.org/2000/svg}"
DELAYS_S = {"seed 5": [80.0, 40.0, 20.0], "seed 6": [60.0, 50.0, 45.0], "seed 7": [100.0]}
DEMANDS = {"seed 5": [180.0, 190.0, 200.0], "seed 6": [180.0, 150.0, 120.0], "seed 7": [180.0]}


@pytest.fixture
def curves(tmp_path):
    files = {}
    for name, delays_s in DELAYS_S.items():
        files[name] = tmp_path / f"{name}.csv"
        rows = [f"{k},{delay_s},{DEMANDS[name][k - 1]},12" for k, delay_s in enumerate(delays_s, 1)]
        files[name].write_text("\n".join(["update,delay_s,vehicles_per_lane_h,decisions", *rows]) + "\n")
    return files


def outcome(kept=("seed 5", "seed 6")):
    """Two streets; seed 6 has a gridlock on one of them, seed 7 is very slow on the other."""
    delays_s = {REFERENCE: (20, 30), "seed 5": (10, 20), "seed 6": (10, 20), "seed 7": (10, 300), PRODUCT: (9, 19)}
    results = {
        street: {
            name: StreetResult(by_street[k], 20 if (name, k) == ("seed 6", 1) else 90, 100, 50.0)
            for name, by_street in delays_s.items()
        }
        for k, street in enumerate("ab")
    }
    verdicts = [Verdict(name, 14.1, 1.0, 0.8, "a", ()) for name in ("seed 5", "seed 6")]
    verdicts.append(Verdict("seed 7", 54.8, 3.9, 8.7, "b", ("b",)))
    return Selected(results, (*verdicts, Verdict(PRODUCT, 13.1, 0.9, 0.7, "a", ())), kept)


def drawing(path):
    root = ET.fromstring(path.read_text())
    return root, root.findall(f"{SVG}svg")


def paths(panel):
    """The marks and lines of a panel: the points of each, in px."""
    found = [element for element in panel.iter(f"{SVG}path") if element.get("class") == "data"]
    return [
        [tuple(map(float, point)) for point in re.findall(r"[ML]([\d.]+),([\d.]+)", path.get("d"))] for path in found
    ]


def test_each_network_has_a_line_with_the_numbers_of_its_curve(curves, tmp_path):
    curves_picture.write(tmp_path / "curves.svg", curves, None)
    _, panels = drawing(tmp_path / "curves.svg")
    assert len(panels) == 2
    for panel, values, top in zip(panels, (DELAYS_S, DEMANDS), (150.0, 250.0), strict=True):
        box = next(element for element in panel.iter(f"{SVG}rect") if element.get("class") == "axes")
        left, bottom = float(box.get("x")), float(box.get("y")) + float(box.get("height"))
        drawn = [
            [
                (top * (bottom - y) / float(box.get("height")), 4 * (x - left) / float(box.get("width")))
                for x, y in points
            ]
            for points in paths(panel)
        ]
        assert drawn == [
            [pytest.approx((value, update), abs=0.1 * top / 170) for update, value in enumerate(own, 1)]
            for own in values.values()
        ]
        texts = [element.text for element in panel.iter(f"{SVG}text")]
        assert set(values) <= set(texts) and f"{top:g}" in texts


def test_the_gate_shows_each_street_and_what_becomes_of_each_network(curves, tmp_path):
    curves_picture.write(tmp_path / "curves.svg", curves, outcome())
    root, panels = drawing(tmp_path / "curves.svg")
    texts = [element.text for element in panels[2].iter(f"{SVG}text")]
    assert [text for text in texts if text in ("kept", "dropped", "passes")] == ["kept", "kept", "dropped", "passes"]
    reference, _, *marks = paths(panels[2])
    # of seed 5: two streets, then its mean
    assert [len(points) for points in islice(marks, 2)] == [2, 2]
    box = next(element for element in panels[2].iter(f"{SVG}rect") if element.get("class") == "axes")
    heights = [float(box.get("y")) + float(box.get("height")) - points[0][1] for points in (marks[1], reference)]
    assert heights[0] / heights[1] == pytest.approx(14.1 / (20 * 30) ** 0.5, abs=0.01)
    colours = [path.get("stroke") for path in panels[2].iter(f"{SVG}path") if path.get("class") == "data"]
    assert colours.count(curves_picture.RED) == 3, "the bound, the gridlock, and the street that is beyond the axis"
    description = root.find(f"{SVG}desc").text
    assert (
        "seed 5: mean delay 80.0 s at 180 vehicles per hour and lane in the first update, 20.0 s at 200" in description
    )
    assert "seed 7 (dropped): 54.8 s, 8.70 times as slow at worst, 1 gridlocks" in description
    assert root.get("aria-labelledby").split() == [root.find(f"{SVG}{tag}").get("id") for tag in ("title", "desc")]


def test_ten_networks_have_lines_that_differ(curves, tmp_path):
    curves_picture.write(tmp_path / "curves.svg", {f"seed {k}": curves["seed 5"] for k in range(21)}, None)
    _, (delay, _) = drawing(tmp_path / "curves.svg")
    lines = [element for element in delay.iter(f"{SVG}path") if element.get("class") == "data"]
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 21


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("update,delay_s\n1,2\n", "column 'vehicles_per_lane_h' is missing"),
        ("update,delay_s,vehicles_per_lane_h\n1,x,2\n", "could not convert string to float: 'x'"),
        ("update,delay_s,vehicles_per_lane_h\n1\n", "is not the curve of a training"),
    ],
)
def test_a_file_that_is_no_curve_is_one_line(curves, tmp_path, text, reason):
    curves["seed 6"].write_text(text)
    with pytest.raises(InputError) as error:
        curves_picture.write(tmp_path / "curves.svg", curves, None)
    assert reason in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "curves.svg").exists()
