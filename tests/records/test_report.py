"""`greenserve record report` and `greenserve record export --atspm`."""

import csv
import re
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from controller.recording.detectors import FUNCTIONS
from controller.recording.sentences import reason_name

SVG = "{http://www.w3.org/2000/svg}"


def test_report_is_one_page_with_every_picture(whole, run, tmp_path):
    out = tmp_path / "page.html"
    printed = run("report", whole, "--out", out, "--tl", "SA101,SA102,SA103", "--zero", "2026-03-02T07:00")
    assert printed.splitlines()[0] == str(out)
    root = ET.fromstring(out.read_text("utf-8").removeprefix("<!DOCTYPE html>\n"))
    titles = {
        next(svg.iter(f"{SVG}text")).text.partition(",")[0] for svg in root.iter(f"{SVG}svg") if "role" in svg.attrib
    }
    assert titles == {
        "Time-Space Diagram",
        "Phase Termination",
        "Purdue Coordination Diagram",
        "Split Monitor",
        "Purdue Split Failure",
        "Approach Volume",
        "Approach Delay",
        "Queue Length",
    }
    assert not [p for p in root.iter("p") if p.get("class") == "none"]
    text = out.read_text("utf-8")
    assert "simulated time 00:00:00 to " in text and ">07:01:00<" in text
    assert "Arrivals on Green: " in text and re.search(r"Split Monitor, phase 2 \(\w+bound through", text)


@pytest.mark.parametrize(("from_s", "to_s"), [(0, 150), (0, 60), (60, 100), (1, 1.5)])
def test_report_counts_overrides_of_its_time_by_reason(from_s, to_s, whole, recorded_city, run, tmp_path):
    run("report", whole, "--out", tmp_path / "page.html", "--from", str(from_s), "--to", str(to_s))
    (text,) = re.findall(r"the safety rules replaced, by reason: (.*)\.<", (tmp_path / "page.html").read_text("utf-8"))
    counts = dict(reversed(each.split()) for each in text.split(", ")) if text != "none" else {}
    states = [each for _, tls, _ in recorded_city.steps for tl_step in tls.values() for each in tl_step.states]
    own = Counter(reason_name(o.reason) for each in states if from_s <= each.at_s <= to_s for o in each.overrides)
    assert counts == {reason: str(count) for reason, count in own.items()} and bool(own) == (to_s > 2)
    assert list(counts) == [reason for reason, _ in own.most_common()]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tl", "SA999"], "--tl: SA999 is not one of the TLs"),
        (["--from", "100", "--to", "50"], "--to must be later than --from"),
        (["--from", "9000"], "has no shown state of these TLs at that time"),
        (["--zero", "today"], "'today' is not a date and time"),
        (["--city", "missing.toml"], "missing.toml"),
    ],
)
def test_wrong_arguments_are_named(whole, run, tmp_path, argv, message):
    out = tmp_path / "page.html"
    assert message in run("report", whole, "--out", out, *argv, code=2)
    assert not out.exists()


def test_export_writes_files_for_atspm_tools(whole, run, tmp_path):
    folder = tmp_path / "atspm"
    printed = run("export", whole, "--atspm", folder, "--zero", "2026-03-02T07:00")
    assert str(folder / "events.csv") in printed
    with (folder / "events.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["TimeStamp"][:13] for row in rows} == {"2026-03-02 07"}
    assert {"1", "7", "8", "9", "10", "11", "6", "176"} <= {row["EventId"] for row in rows}
    assert "4" not in {row["EventId"] for row in rows}
    with (folder / "detectors.csv").open(newline="") as file:
        table = {(row["DeviceId"], row["Parameter"]): row["Function"] for row in csv.DictReader(file)}
    assert {function: list(table.values()).count(function) for function in table.values()} == dict.fromkeys(
        FUNCTIONS, 72
    )
    detected = {(row["DeviceId"], row["Parameter"]) for row in rows if row["EventId"] in ("81", "82")}
    assert detected <= table.keys() and len(detected) > 150
    assert {"43", "44"} <= {row["EventId"] for row in rows}


def test_export_of_tables_takes_no_flags_of_atspm(whole, run, tmp_path):
    error = run("export", whole, "--csv", tmp_path / "tables", "--zero", "2026-03-02", code=2)
    assert "--city and --zero belong to --atspm" in error and not (tmp_path / "tables").exists()
