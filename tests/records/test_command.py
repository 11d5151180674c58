"""`greenserve record info|show|export|repair`."""

import copy
import csv
import itertools
import json
import re
import sys

import pytest
from mcap.reader import make_reader

from greenserve.__main__ import main as greenserve
from protos import record_pb2 as record
from records.command import main
from records.export import TABLES
from tests.conftest import ROOT
from tests.records import mcap_bytes
from tests.records.recorded_city import RUN, SECONDS, SILENT_TL, RecordedCity
from tests.records.test_replay import rewrite

PROG = "greenserve record"


@pytest.fixture
def killed(recorded_city, tmp_path):
    """A file that a killed controller left, cut in its last chunk."""
    path = recorded_city.write(tmp_path / "killed.mcap", 0, 20, is_finished=False)
    data = path.read_bytes()
    path.write_bytes(data[: mcap_bytes.chunks(data)[-1].end - 1])
    return path


def decisions(recorded_city):
    return [
        (step, tl, tl_step)
        for step, tl_steps, _ in recorded_city.steps
        for tl, tl_step in tl_steps.items()
        if tl_step.HasField("decision")
    ]


def test_info_counts_what_the_run_had(whole, recorded_city, run):
    summary = json.loads(run("info", whole, "--json"))
    made = decisions(recorded_city)
    assert summary["run"] == RUN and summary["whole"] and summary["missing"] == []
    assert summary["bytes"] == whole.stat().st_size
    assert summary["steps"] == len(recorded_city.steps)
    assert summary["decisions"] == len(made) == sum(summary["modes"].values())
    assert summary["without_valid_answer"] == sum(bool(each.decision.failure) for _, _, each in made) > 0
    assert summary["first_s"] == 0 and summary["last_s"] == recorded_city.steps[-1][0].at_s >= SECONDS
    assert summary["first_wall"] == "2026-09-21T14:13:20.000Z"
    assert {"policy", "hold", "fallback", "recovering"} == summary["modes"].keys()
    assert {"min_green", "clearance", "yellow"} <= summary["overrides"].keys()
    spans = [(each["model"], each["version"], each["decisions"]) for each in summary["models"] if each["tl"] == "SA102"]
    assert spans == [("fleet", 7, 30), ("fleet", 8, 30)]


def test_keys_of_info_are_documented(whole, run):
    summary = json.loads(run("info", whole, "--json"))
    (text,) = re.findall(r"^`info --json` prints.*?\n\n", (ROOT / "docs" / "record-files.md").read_text(), re.M | re.S)
    documented = set(re.findall(r"`(\w+)`", text))
    assert summary.keys() | summary["files"][0].keys() | {"first_s", "last_s", "decisions"} == documented


def test_info_for_people_has_models_and_what_is_missing(whole, killed, run):
    text = run("info", whole)
    assert re.search(r"^the TL's own +8 +00:02:30 +00:04:5\d +\d+ +7 \(SA101, ", text, re.M)
    assert re.search(r"^whole +yes$", text, re.M)
    text = run("info", killed)
    assert re.search(r"^whole +no$", text, re.M)
    assert re.search(r"^missing +killed\.mcap: cut off after byte [\d,]+$", text, re.M)


def test_info_has_the_longest_reds_of_movements(whole, tmp_path, run):
    def bounded(city):
        city.safety = json.dumps(json.loads(city.safety) | {"max_red_s_of_signal": {"A0": {"protected left": 90.0}}})

    text = run("info", rewrite(whole, tmp_path / "bounded.mcap", city=bounded))
    assert re.search(r"^max red +A0: protected left 90 s$", text, re.M)


def test_show_has_a_sentence_for_each_decision_of_a_tl_and_a_time(whole, recorded_city, run):
    lines = run("show", whole, "--tl", "SA 101", "--from", "0:01:40", "--to", "00:02").splitlines()
    decided = [line for line in lines if " saw " in line]
    assert [line[:15] for line in decided] == [f"00:01:{second} SA101:" for second in (40, 45, 50, 55)]
    assert re.fullmatch(
        r"00:01:40 SA101: current green \d \(.*bound .*\).*; saw queues on \d+% of .*; (chose|kept) green \d.* by SA101 version 7: "
        r"probability \S+ is the highest of 4, next best green \d.* with \S+; .*the safety rules permitted .*",
        decided[0],
    )


def test_show_as_json_has_the_messages(whole, recorded_city, run):
    entries = [json.loads(line) for line in run("show", whole, "--json").splitlines()]
    with_decision = [entry for entry in entries if "decision" in entry["step"]]
    assert len(with_decision) == len(decisions(recorded_city))
    assert with_decision[0]["tl"] == "SA101" and with_decision[0]["step"]["mode"] == "POLICY"
    assert all(entry["sentence"] for entry in entries)


@pytest.fixture
def with_step(recorded_city, tmp_path):
    def write(change):
        (step, tl_steps, publish_ns), *_ = recorded_city.steps
        step = record.Step.FromString(step.SerializeToString())
        change(step)
        return type(recorded_city)(recorded_city.start, [(step, tl_steps, publish_ns)]).write(tmp_path / "x.mcap")

    return write


def test_show_has_alarms_and_rejections_of_the_tls_signals(with_step, run):
    def change(step):
        step.alarms.add(signal="A0", rule="yellow", at_s=3.5, message="a yellow of 1 s\x1b[2J")
        step.alarms.add(signal="C2", rule="yellow")
        step.rejections.add(signal="A0", reason="no such program")

    first, second, third = run("show", with_step(change), "--tl", "SA101").splitlines()
    assert first == "00:00:03.5 signal A0: alarm yellow: a yellow of 1 s\ufffd[2J"
    assert second == "00:00:00 signal A0: SUMO rejected a command: no such program"
    assert third.startswith("00:00:00 SA101: current ")


def test_show_has_operators_commands_with_their_author(with_step, run):
    def change(step):
        modes = {"mode_before": record.TlStep.POLICY, "mode": record.TlStep.FIXED}
        for tl in ("SA101", "SA102"):
            step.commands.add(tl=tl, wanted="fixed", author="ada\x1b[2J", reason="roadworks", **modes)
            step.actions.add(action="pin", target=tl, value="3", author="ada")
        step.actions.add(action="speed", value="2", author="bo")

    assert run("show", with_step(change), "--tl", "SA101").splitlines()[:3] == [
        "00:00:00 SA101: ada\ufffd[2J set it to fixed (roadworks): policy -> fixed",
        "00:00:00 ada: pin SA101 3",
        "00:00:00 bo: speed 2",
    ]


def test_show_names_what_is_missing_on_stderr(killed, capsys):
    assert main(["show", str(killed), "--tl", "SA101"], PROG) == 0
    assert capsys.readouterr().err.startswith("missing: killed.mcap: cut off after byte ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tl", "SA999"], "--tl: SA999 is not one of the TLs SA101, SA102"),
        (["--tl", "A0"], "--tl: A0 is a signal, which belongs to TL SA101; pass SA101"),
        (["--from", "10:00"], "has no decision of these TLs at that time"),
        (["--from", "60", "--to", "50"], r"--to must be later than --from \(60 s\)"),
        (["--from", "nine"], "'nine' is not a time"),
        (["--from", "99:99"], "argument --from: '99:99' is not a time: minutes and seconds end at 59"),
        (["--to", "08:10:60"], "argument --to: '08:10:60' is not a time: minutes and seconds end at 59"),
    ],
)
def test_show_of_what_the_record_does_not_have_is_an_error(whole, run, flags, message):
    assert re.search(message, run("show", whole, *flags, code=2))


def test_csv_tables_have_the_documented_columns_and_all_rows(whole, recorded_city, tmp_path, run):
    run("export", whole, "--csv", tmp_path / "new" / "tables")
    tables = {}
    for name in TABLES:
        with (tmp_path / "new" / "tables" / f"{name}.csv").open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    page = (ROOT / "docs" / "record-files.md").read_text()
    for name, columns in TABLES.items():
        (block,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", page, re.M | re.S)
        assert [
            column for row in re.findall(r"^\| (`.*?`) \|", block, re.M) for column in re.findall(r"`(\w+)`", row)
        ] == list(columns)
    made = decisions(recorded_city)
    assert len(tables["decisions"]) == len(made)
    for row, (step, tl, tl_step) in zip(tables["decisions"], made, strict=True):
        assert (row["number"], row["tl"]) == (str(step.number), tl)
        assert [float(value) for value in row["observation"].split()] == list(tl_step.decision.observation)
        assert [float(value) for value in row["scores"].split()] == list(tl_step.decision.scores)
    names = recorded_city.start.names["A0"]
    for name, state in (("states", "permitted"), ("shown", "state")):
        of_a0 = [row for row in tables[name] if row["signal"] == "A0"]
        assert of_a0 and all(row["movements"] == names.of_state(row[state]) for row in of_a0)
    chosen = {(row["action"], row["green"]) for row in tables["decisions"] if row["tl"] == "SA101"}
    greens = names.of_states(["GGgrrrGGgrrr", "rrGrrrrrGrrr", "rrrGGgrrrGGg", "rrrrrGrrrrrG"])
    assert len(chosen) > 2 and chosen <= {("", ""), *((f"{k}.0", green) for k, green in enumerate(greens))}
    assert {row["green"] for row in tables["decisions"] if row["tl"] == "SA103"} == {""}
    silent = [row for row in tables["decisions"] if row["tl"] == SILENT_TL and row["failure"]]
    assert silent and all(row["action"] == "" and "no answer within 500 ms" in row["failure"] for row in silent)
    assert {row["program"] for row in tables["states"]} == {"", "adapted"}
    assert {"min_green", "yellow", "clearance", ""} <= {row["override"] for row in tables["states"]}


def test_a_value_of_a_continuous_action_is_no_green(recorded_city, tmp_path, run):
    steps = copy.deepcopy(recorded_city.steps)
    for _, tls, _ in steps:
        if "SA103" in tls and tls["SA103"].decision.action:
            tls["SA103"].decision.action[:] = [1.0]
    run("export", RecordedCity(recorded_city.start, steps).write(tmp_path / "run.mcap"), "--csv", tmp_path)
    with (tmp_path / "decisions.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tl"] == "SA103"]
    assert {"1.0"} <= {row["action"] for row in rows} and {row["green"] for row in rows} == {""}


def test_shown_states_are_joined_and_cover_the_run(whole, recorded_city, tmp_path, run):
    run("export", whole, "--csv", tmp_path)
    with (tmp_path / "shown.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["signal"] == "A0"]
    rows.sort(key=lambda row: float(row["begin_s"]))
    assert float(rows[0]["begin_s"]) == 0
    for before, after in itertools.pairwise(rows):
        assert before["end_s"] == after["begin_s"] and before["state"] != after["state"]
    a0 = list(recorded_city.start.start.signals).index("A0")
    shown = [(each.begin_s, each.states[a0]) for step, _, _ in recorded_city.steps for each in step.shown]
    for begin_s, state in shown:
        assert any(float(r["begin_s"]) <= begin_s < float(r["end_s"]) and r["state"] == state for r in rows)


def test_hole_ends_an_interval_of_shown_states(recorded_city, tmp_path, run):
    kept = [each for each in recorded_city.steps if each[0].number not in (7, 8)]
    path = type(recorded_city)(recorded_city.start, kept).write(tmp_path / "hole.mcap")
    assert "missing: hole.mcap: steps 7 to 8 are missing" in run("export", path, "--csv", tmp_path)
    missing = [(each.begin_s, each.end_s) for step, _, _ in recorded_city.steps[7:9] for each in step.shown]
    with (tmp_path / "shown.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert not any(
                float(row["begin_s"]) < end_s and begin_s < float(row["end_s"]) for begin_s, end_s in missing
            )


def test_parquet_without_pyarrow_is_one_line_and_nothing_is_written(whole, tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    line = run("export", whole, "--parquet", tmp_path / "tables", code=2)
    assert "install greenserve[evaluation]" in line and not (tmp_path / "tables").exists()


def test_parquet_tables_are_those_of_csv(whole, tmp_path, run):
    parquet = pytest.importorskip("pyarrow.parquet")
    run("export", whole, "--parquet", tmp_path)
    run("export", whole, "--csv", tmp_path)
    for name, columns in TABLES.items():
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert dict(zip(table.column_names, map(str, table.schema.types), strict=True)) == {
            column: kind.replace("float64", "double").replace("list<", "list<element: ")
            for column, kind in columns.items()
        }
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        assert [[_text(value) for value in row.values()] for row in table.to_pylist()] == rows


def _text(value):
    values = value if isinstance(value, list) else [value]
    return " ".join(str(int(each)) if isinstance(each, bool) else str(each) for each in values)


def test_export_that_fails_leaves_the_tables_of_before(whole, tmp_path, run):
    (tmp_path / "decisions.csv").write_text("of before")
    (tmp_path / "alarms.csv").mkdir()
    run("export", whole, "--csv", tmp_path, code=2)
    assert {path.name for path in tmp_path.iterdir()} >= {"decisions.csv", "alarms.csv"}
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".draft")]


def test_repaired_file_is_whole_and_keeps_the_bytes_of_every_message(recorded_city, killed, tmp_path, run):
    def content(path):
        with path.open("rb") as file:
            reader = make_reader(file, validate_crcs=True)
            messages = [
                (schema.name, channel.topic, message.log_time, message.publish_time, message.sequence, message.data)
                for schema, channel, message in reader.iter_messages(log_time_order=False)
            ]
            return messages, [(each.name, each.data) for each in reader.iter_attachments()]

    out = run("repair", killed)
    repaired = killed.with_name("killed.repaired.mcap")
    assert re.fullmatch(rf"{re.escape(str(repaired))}: 15 steps\nlost: cut off after byte [\d,]+\n", out)
    assert content(repaired) == content(recorded_city.write(tmp_path / "whole.mcap", 0, 15))


def test_file_that_is_not_damaged_needs_no_repair(whole, recorded_city, tmp_path, run):
    assert f"is not damaged, {len(recorded_city.steps)} steps; nothing is written" in run("repair", whole)
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]
    kept = [each for each in recorded_city.steps if each[0].number not in (7, 8)]
    path = type(recorded_city)(recorded_city.start, kept).write(tmp_path / "hole.mcap")
    assert f"is not damaged, {len(kept)} steps, but steps 7 to 8 are missing; nothing is written" in run("repair", path)


def test_files_for_models_need_no_first_file_of_the_run(recorded_city, tmp_path, run):
    recorded_city.write(tmp_path / "b.mcap", 10, 20, file_number=1)
    out = run("export", tmp_path, "--observations", tmp_path / "observations")
    assert out.splitlines()[1] == "missing: file 0 is missing before b.mcap"
    assert (tmp_path / "observations" / "SA101.npy").exists()
    assert "wrote warm-up records of" in run("export", tmp_path, "--warmup", tmp_path / "warm-up")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["."], "is a folder; name one of its files"),
        (["killed.mcap", "--out", "none/x.mcap"], "cannot be written: No such file"),
        (["killed.mcap", "--out", "mine.mcap"], "exists already and is not overwritten; pass another --out"),
        (["killed.mcap", "--out", "killed.mcap"], "exists already"),
        (["nothing.mcap"], "cannot be read as a record: cut off after byte 8"),
    ],
)
def test_repair_overwrites_nothing_and_asks_for_a_record(killed, run, monkeypatch, argv, message):
    monkeypatch.chdir(killed.parent)
    killed.with_name("mine.mcap").write_text("mine")
    killed.with_name("nothing.mcap").write_bytes(b"\x89MCAP0\r\n")
    assert message in run("repair", *argv, code=2)
    assert killed.with_name("mine.mcap").read_text() == "mine"


def test_record_says_what_its_repaired_file_has_lost(killed, run):
    lost = run("repair", killed).splitlines()[1].removeprefix("lost: ")
    repaired = killed.with_name("killed.repaired.mcap")
    summary = json.loads(run("info", killed.parent, "--json"))
    assert (summary["whole"], summary["missing"]) == (False, [f"{repaired.name}: repaired: {lost}"])
    assert "is not damaged" in run("repair", repaired)


@pytest.mark.parametrize("argv", [["record", "info", "x.mcap"], ["replay", "x.mcap"]])
def test_missing_extra_is_one_line(argv, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for name in [name for name in sys.modules if name.startswith("records.")]:
        monkeypatch.delitem(sys.modules, name)
    assert greenserve(argv) == 2
    assert capsys.readouterr().err.endswith("; install greenserve[record]\n")
