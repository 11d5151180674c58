"""Recorded runs that are decided again."""

import gzip
import json
import os
from dataclasses import replace

import pytest
from mcap.opcode import Opcode

from city import config
from city.errors import InputError
from controller.events import OperatorAction
from controller.recording import loop_state
from controller.recording.record_writer import RecordWriter
from greenserve.__main__ import main as greenserve
from protos import record_pb2 as record
from protos.loop_state_pb2 import LoopState, TlState
from records import recorded_run
from records.record_reader import RecordReader
from records.recorded_run import RecordedRun
from records.replay import Replay
from records.replay_command import main
from records.run_files import files_of_run
from signals import green_phases, observation
from signals.fallback.control_mode import OperatorMode
from signals.safety import signal_safety
from tests.conftest import GRID
from tests.error_lines import refused
from tests.records import mcap_bytes
from tests.records.replayed_city import BEGIN_UNIX_NS, record_run
from tests.records.update import RECORDS, path, street_city


@pytest.fixture(scope="module")
def sample():
    return path("sample-city")


def replayed(*files, tls=None):
    replay = Replay(RecordedRun(files), tls)
    replay.run()
    return replay


@pytest.mark.parametrize("over_traci", [False, True])
def test_persons_before_crossings_are_observed_alike_live_and_replayed(
    over_traci, crossroads_net, crossroads_walkers, tmp_path
):
    sumocfg = tmp_path / "x.sumocfg"
    files = f'<net-file value="{crossroads_net}"/><route-files value="{crossroads_walkers}"/>'
    sumocfg.write_text(f'<configuration><input>{files}</input><time><end value="150"/></time></configuration>')
    (tmp_path / "city.toml").write_text(
        f'[network]\nsumocfg = "{sumocfg}"\n[tl.J]\nsignals = ["J"]\ndialect = "street"\n'
    )
    record_run(tmp_path / "x.mcap", config.load(tmp_path / "city.toml"), 120.0, over_traci=over_traci)
    replay = replayed(tmp_path / "x.mcap")
    assert replay.differences.first is None and not replay.not_recorded
    with RecordReader(tmp_path / "x.mcap") as reader:
        lanes, steps = list(reader.city.lanes), list(reader.steps())
        features = reader.city.contracts[0].observation.features
    (near,) = (k for k, f in enumerate(features) if (f.kind, f.lane_id) == ("vehicles_near", ":J_c1_0"))
    persons = [lanes[k] for each in steps for k in each.step.readings.vehicle_lane if lanes[k].startswith(":")]
    assert set(persons) == {":J_c0_0", ":J_c1_0", ":J_c2_0"} and len(persons) > 50
    decisions = [tl_step.decision for each in steps for tl_step in each.tls.values() if tl_step.HasField("decision")]
    assert max(decision.observation[near] for decision in decisions) > 2


def rewrite(source, target, change=lambda step: step, city=lambda city: None, attachments=lambda files: files):
    """Copy a record with other contents. `change`: returns the step, or None to leave it out."""
    with RecordReader(source) as reader, target.open("wb") as stream:
        city(reader.city)
        files = attachments(dict(reader.attachments))
        writer = RecordWriter(stream, reader.city, files, BEGIN_UNIX_NS, state=reader.state)
        for step in reader.steps():
            changed = change(step)
            if changed is not None:
                writer.add(changed.step, changed.tls, changed.publish_ns)
        writer.finish()
    return target


def at(tl, at_s, change):
    def changed(step):
        if step.step.at_s == at_s and tl in step.tls:
            change(step.tls[tl])
        return step

    return changed


@pytest.mark.parametrize("name", RECORDS)
def test_committed_record_is_decided_again_bit_for_bit(name):
    run = RecordedRun([path(name)])
    modes = {each.mode for step in run.steps() for each in step.tls.values()}
    assert modes == {record.TlStep.POLICY, record.TlStep.HOLD, record.TlStep.FALLBACK, record.TlStep.RECOVERING}
    replay = Replay(run)
    replay.run()
    assert str(replay.differences.first) == "None", "run python -m tests.records.update if this is meant"
    assert replay.replayed_steps == sum(1 for _ in run.steps())
    assert not run.ended


def set_to_red(api, now):
    """Another client that sets signals, also while they run their own programs."""
    if now in (40, 70, 80, 90, 100):
        for signal in ("A0", "C1"):
            api.trafficlight.setRedYellowGreenState(signal, "r" * len(api.trafficlight.getRedYellowGreenState(signal)))


def operated(loop):
    """An operator who takes TLs of both dialects and gives them back, also twice in a second and at the begin."""
    for at_s, tl, wanted in (
        (0, "SA104", "hold"), (25, "SA101", "fixed"), (25, "SA103", "hold"), (31, "SA102", "fixed"), (31, "SA102",
        "hold"),
        (60, "SA104", "policy"), (75, "SA103", "fixed"), (90, "SA101", "policy"), (120, "SA102", "policy"),
    ):  # fmt: skip
        if loop.now == at_s:
            loop.set_mode(tl, OperatorMode(wanted), "ada", "roadworks")
    if loop.now == 60:
        loop.note_action(OperatorAction("pin", "SA104", "3", "ada"))


def check_files_together_and_alone(folder):
    """Replay a run at once, and each file from the state with which it begins to the one with which the next begins."""
    run = RecordedRun([folder])
    replay = Replay(run)
    replay.run()
    assert str(replay.differences.first) == "None"
    assert replay.replayed_steps == sum(1 for _ in run.steps())
    files = [file.path for file in files_of_run([folder])[0]]
    assert len(files) > 2
    steps = 0
    for k, file in enumerate(files):
        alone = replayed(file)
        assert (file.name, str(alone.differences.first)) == (file.name, "None")
        steps += alone.replayed_steps
        if k + 1 < len(files):
            with RecordReader(files[k + 1]) as following:
                assert LoopState(**loop_state.values(alone.loop.saved_state())) == following.state
    assert steps == replay.replayed_steps
    return run


def test_files_of_street_tls_with_max_pressure_as_the_fallback_are_replayed_alone(tmp_path):
    record_run(tmp_path / "run.mcap", street_city(), 150, steps_a_file=10)
    check_files_together_and_alone(tmp_path)
    sources = set()
    for file in tmp_path.iterdir():
        with RecordReader(file) as reader:
            sources |= {tl.source for tl in reader.state.tls} if reader.state is not None else set()
    assert sources == {TlState.POLICY, TlState.MAX_PRESSURE}


@pytest.mark.parametrize(
    ("changes", "options", "arguments"),
    [
        ({}, ("--begin", "60"), {}),
        ({}, ("--step-length", "0.5"), {}),
        ({}, (), {"begins_s": 33}),
        ({}, (), {"over_traci": True, "disturb": set_to_red}),
        ({}, (), {"releases_until_s": None}),
        ({}, (), {"driver": "max-pressure"}),
        ({}, (), {"driver": "greedy"}),
        ({}, (), {"operate": operated}),
        ({"safety": config.Safety(floors="dialect")}, (), {}),
    ],
    ids=[
        "later begin",
        "half seconds",
        "after the begin",
        "another client",
        "no release",
        "max-pressure",
        "greedy",
        "operator",
        "dialect",
    ],
)
def test_runs_of_every_kind_are_decided_again_bit_for_bit(tmp_path, grid_city, changes, options, arguments):
    record_run(tmp_path / "run.mcap", replace(grid_city, **changes), 150, *options, **arguments, steps_a_file=10)
    run = check_files_together_and_alone(tmp_path)
    if "disturb" in arguments:
        assert any(step.step.frozen for step in run.steps()), "a released signal was set by the other client"
    if "operate" in arguments:
        assert sum(len(step.step.commands) for step in run.steps()) > 5


def test_max_red_of_movements_is_that_of_the_record(tmp_path, grid_city):
    safety = replace(grid_city.safety, max_red_s_of_signal={"A0": {"protected left": 12.0}})
    record_run(tmp_path / "run.mcap", replace(grid_city, safety=safety), 150, steps_a_file=10)
    check_files_together_and_alone(tmp_path)

    def without(city):
        city.safety = json.dumps({**json.loads(city.safety), "max_red_s_of_signal": {}})

    other = replayed(rewrite(tmp_path / "run.mcap", tmp_path / "other.mcap", city=without)).differences
    assert other.first.tl == "SA101"


@pytest.mark.parametrize(
    ("module", "name", "changed", "fields"),
    [
        (observation, "MIN_GAP_M", 2.6, {"observation"}),
        (green_phases, "yellow_between", lambda green, following: green, {"requested"}),
        # a longer yellow ends at another second, at which the record has no step
        (signal_safety, "yellow_s_at", lambda *arguments: 5.0, {"permitted", "step"}),
    ],
    ids=["observer", "sequencer", "safety"],
)
def test_changed_code_is_named_by_its_field(sample, monkeypatch, module, name, changed, fields):
    monkeypatch.setattr(module, name, changed)
    replay = replayed(sample)
    assert replay.differences.first.field in fields
    assert fields - {"step"} <= {field for _, field in replay.differences.counts}


def test_decision_at_another_moment_ends_the_replay_there(sample, monkeypatch):
    decided = green_phases.GreenPhaseSequencer.next_decision_s
    monkeypatch.setattr(
        green_phases.GreenPhaseSequencer, "next_decision_s", lambda self, now: min(decided(self, now), now + 3)
    )
    replay = replayed(sample)
    assert replay.not_recorded is not None
    assert "due" in {field for _, field in replay.differences.counts}
    assert replay.replayed_to_s < 10


@pytest.mark.parametrize(
    ("change", "path", "recorded"),
    [
        (lambda m: m.decision.observation.__setitem__(4, 0.75), "observation[4]", "0.75"),
        (lambda m: setattr(m.decision, "mode_before", 1), "mode_before", "HOLD"),
        (lambda m: setattr(m.decision, "failure", "other"), "failure", "'other'"),
        (lambda m: m.states[0].requested.__setitem__(0, "rrrr"), "requested[0]", "'rrrr'"),
        (lambda m: m.states[0].permitted.__setitem__(0, "rrrr"), "permitted[0]", "'rrrr'"),
        (lambda m: setattr(m.states[0].commands[0], "state", "rrrr"), "commands[0].state", "'rrrr'"),
        (lambda m: m.states[0].overrides.add(signal="A0", reason=3), "overrides[0]", 'signal: "A0" reason: MIN_GREEN'),
        (lambda m: setattr(m, "mode", 2), "mode", "FALLBACK"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_difference_is_named_by_second_tl_and_field(sample, tmp_path, change, path, recorded):
    difference = replayed(rewrite(sample, tmp_path / "run.mcap", at("SA101", 0, change))).differences.first
    assert (difference.tl, difference.at_s, difference.path, difference.recorded) == ("SA101", 0, path, recorded)


def test_phase_0_of_a_command_is_not_the_same_as_none(sample, tmp_path):
    def without_phase_0(step):
        for command in [c for tl in step.tls.values() for states in tl.states for c in states.commands]:
            if not command.state and command.phase == 0:
                command.ClearField("phase")
        return step

    difference = replayed(rewrite(sample, tmp_path / "run.mcap", without_phase_0)).differences.first
    assert (difference.field, difference.recorded, difference.new) == ("commands.phase", "absent", "0")


def test_only_the_selected_tls_are_compared(sample, tmp_path):
    changed = rewrite(sample, tmp_path / "run.mcap", at("SA101", 0, lambda m: setattr(m, "mode", 2)))
    assert replayed(changed, tls=["SA102"]).differences.first is None
    assert replayed(changed, tls=["SA101"]).differences.first is not None


def test_wall_times_are_not_compared(sample, tmp_path):
    def slower(step):
        step.step.times.observe_s += 1
        return step

    assert replayed(rewrite(sample, tmp_path / "run.mcap", slower)).differences.first is None


def test_record_that_is_cut_off_is_replayed_to_its_last_whole_step(sample, tmp_path, capsys):
    cut, sizes = tmp_path / "cut.mcap", []
    with RecordReader(sample) as reader, (tmp_path / "flushed.mcap").open("wb") as stream:
        writer = RecordWriter(stream, reader.city, reader.attachments, BEGIN_UNIX_NS)
        for step in reader.steps():
            writer.add(step.step, step.tls, step.publish_ns)
            writer.flush()
            sizes.append(stream.tell())
        writer.finish()
    whole = (tmp_path / "flushed.mcap").read_bytes()
    for steps, size in ((20, sizes[19]), (20, sizes[19] + 7), (21, sizes[20] - 1), (len(sizes), sizes[-1])):
        cut.write_bytes(whole[:size])
        assert main([str(cut)]) == 0
        output = capsys.readouterr()
        # the last step may lack TLs; an index follows each chunk of steps
        assert f"replayed {steps - 1} steps" in output.out
        assert "the record is not whole" in output.err
    cut.write_bytes(whole[: sizes[0] - 1])
    assert main([str(cut)]) == 2
    assert "cut off after byte" in capsys.readouterr().err


def test_hole_ends_the_replay_in_words(sample, tmp_path, capsys):
    assert (
        main([str(rewrite(sample, tmp_path / "run.mcap", lambda step: None if step.step.number == 20 else step))]) == 0
    )
    output = capsys.readouterr()
    assert "replayed 20 steps" in output.out
    assert "step 20 is missing after second" in output.err and "so it ends there" in output.err


@pytest.fixture(scope="module")
def with_states(tmp_path_factory):
    """The bytes of a run with a state every 20 steps and chunks of 5, and its number of steps."""
    folder = tmp_path_factory.mktemp("states")
    record_run(folder / "run.mcap", config.load(GRID / "city.toml"), 150, steps_a_file=20)
    first, *others = sorted(folder.iterdir(), key=lambda path: int(path.stem.removeprefix("run-").replace("run", "0")))
    with RecordReader(first) as reader, (folder / "one.mcap").open("wb") as stream:
        steps = list(reader.steps())
        writer = RecordWriter(stream, reader.city, dict(reader.attachments), BEGIN_UNIX_NS)
        writer.flush()
        for other in others:
            with RecordReader(other) as following:
                steps += following.steps()
        for k, step in enumerate(steps):
            if step.state is not None:
                writer.add_state(step.state, step.publish_ns)
            writer.add(step.step, step.tls, step.publish_ns)
            if k % 5 == 4:
                writer.flush()
        writer.finish()
    return (folder / "one.mcap").read_bytes(), len(steps)


@pytest.mark.parametrize("chunk", [0, 4, 6])
def test_replay_goes_on_after_a_damaged_chunk_from_the_next_state(with_states, tmp_path, capsys, chunk):
    data, steps = with_states
    (tmp_path / "run.mcap").write_bytes(mcap_bytes.flipped(data, mcap_bytes.chunks(data)[1 + chunk].begin + 60))
    assert main([str(tmp_path / "run.mcap"), "--json", str(tmp_path / "out.json")]) == 0
    output, written = capsys.readouterr(), json.loads((tmp_path / "out.json").read_text())
    lost_from, goes_on_at = 5 * chunk, (5 * chunk + 5 + 19) // 20 * 20
    assert written["steps"] == lost_from + steps - goes_on_at and written["same"]
    assert f"step {lost_from} is missing after second" in output.err and "so it goes on from second" in output.err
    assert greenserve(["record", "repair", str(tmp_path / "run.mcap")]) == 0
    assert main([str(tmp_path / "run.repaired.mcap"), "--json", str(tmp_path / "again.json")]) == 0
    again = json.loads((tmp_path / "again.json").read_text())
    # the damage may have cost a part of its last step
    assert (again["steps"], again["same"]) == (written["steps"] - 1, True)


@pytest.mark.parametrize("damage", ["index cut off", "an index of messages"])
def test_damage_that_costs_no_step_costs_the_replay_none(with_states, tmp_path, capsys, damage):
    data, steps = with_states
    is_cut = damage == "index cut off"
    index = [each for each in mcap_bytes.records(data) if each.opcode == Opcode.MESSAGE_INDEX][-1]
    (tmp_path / "run.mcap").write_bytes(data[:-100] if is_cut else mcap_bytes.flipped(data, index.end - 2))
    assert main([str(tmp_path / "run.mcap")]) == 0
    output = capsys.readouterr()
    assert f"replayed {steps} steps" in output.out
    assert output.err.startswith("missing: ") and "no step is lost by that" in output.err
    assert greenserve(["record", "repair", str(tmp_path / "run.mcap")]) == 0
    assert main([str(tmp_path / "run.repaired.mcap")]) == 0
    assert f"replayed {steps} steps" in capsys.readouterr().out


def test_run_goes_on_in_the_file_after_a_missing_or_cut_one(tmp_path, capsys):
    record_run(tmp_path / "run.mcap", config.load(GRID / "city.toml"), 150, steps_a_file=12)
    assert main([str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    os.truncate(tmp_path / "run-1.mcap", (tmp_path / "run-1.mcap").stat().st_size // 2)
    (tmp_path / "run-3.mcap").unlink()
    assert main([str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.out.split(", from second ")[1] == whole.split(", from second ")[1]
    assert output.err.count("so it goes on from second") == 2 and "file 3 of the run is missing" in output.err


@pytest.fixture
def three_files(sample, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for k, (begin, end) in enumerate(((0, 30), (30, 60), (60, 1000))):
        rewrite(
            sample,
            folder / f"{9 - k}.mcap",
            lambda step, begin=begin, end=end: step if begin <= step.step.number < end else None,
            lambda city, k=k: setattr(city, "file_number", k),
        )
    return folder


def test_files_of_a_run_are_replayed_in_their_order(three_files, sample, capsys):
    assert main([str(three_files)]) == 0
    assert main([str(sample)]) == 0
    assert main([str(three_files / "7.mcap"), str(three_files / "9.mcap"), str(three_files / "8.mcap")]) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 1


def test_file_of_an_earlier_version_without_its_runs_first_file_is_refused(three_files, capsys):
    (three_files / "9.mcap").unlink()
    message = "is file 1 of its run, the run's first file (0) is missing, and this one does not have the state"
    refused(capsys, main([str(three_files)]), message)


@pytest.fixture(scope="module")
def rotated(tmp_path_factory):
    """The files of a run that a limit of the folder has left: without the first one."""
    folder = tmp_path_factory.mktemp("rotated")
    record_run(folder / "run.mcap", config.load(GRID / "city.toml"), 150, steps_a_file=20)
    (folder / "run.mcap").unlink()
    return folder


def test_run_without_its_first_files_is_replayed_from_the_first_one_that_is_there(rotated, capsys):
    assert main([str(rotated)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    first = RecordReader(rotated / "run-1.mcap").state
    assert f"steps of 8 TLs, from second {first.now_s:g} to" in output.out and "bit for bit the same" in output.out
    (rotated / "run-1.mcap").rename(rotated / "run-1.kept")
    try:
        assert main([str(rotated), "--tl", "SA101"]) == 0
    finally:
        (rotated / "run-1.kept").rename(rotated / "run-1.mcap")


def test_state_that_another_version_wrote_is_refused_in_one_line(rotated, tmp_path, capsys):
    changes = (
        lambda state: state.tls[0].signals[0].ClearField("shown"),
        lambda state: state.tls.pop(),
        lambda state: setattr(state.tls[0], "source", 7),
        lambda state: state.monitors.pop(),
        lambda state: setattr(state.tls[0].sequencer.green_phases, "green", 99),
    )
    with RecordReader(rotated / "run-2.mcap") as reader:
        steps, whole = list(reader.steps()), reader.state.SerializeToString()
        for change in changes:
            state = LoopState.FromString(whole)
            change(state)
            with (tmp_path / "run.mcap").open("wb") as stream:
                writer = RecordWriter(stream, reader.city, dict(reader.attachments), BEGIN_UNIX_NS, state=state)
                for step in steps:
                    writer.add(step.step, step.tls, 0)
                writer.finish()
            code = main([str(tmp_path / "run.mcap")])
            refused(capsys, code, "its contracts, settings, state or readings are malformed")


def test_sumo_programs_need_the_runs_first_file(rotated, capsys):
    code = greenserve(["record", "export", str(rotated), "--sumo", str(rotated / "x.add.xml")])
    refused(capsys, code, "the run's first file is missing; SUMO's programs begin with the run")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--json", "none/out.json"), "none/out.json: there is no folder"),
        (("--model-number", "3"), "--model-number is for a model server; pass --server too"),
    ],
)
def test_flags_are_checked_before_the_replay(sample, capsys, flags, message):
    refused(capsys, main([str(sample), *flags]), message)


def test_run_of_a_folder_with_several_runs_is_replayed(sample, three_files, capsys):
    rewrite(sample, three_files / "other.mcap", city=lambda city: setattr(city, "run", "other"))
    refused(capsys, main([str(three_files)]), "pass --run with the begin of one id")
    assert main([str(three_files), "--run", "other"]) == 0


def test_attachments_are_never_written_under_their_names(sample, tmp_path):
    names = ["../../outside.net.xml", "/outside.add.xml"]

    def renamed(city):
        city.network_files[:] = names

    plain = rewrite(
        sample,
        tmp_path / "run.mcap",
        city=renamed,
        attachments=lambda files: dict(zip(names, files.values(), strict=True)),
    )
    assert replayed(plain).differences.first is None
    assert not [each for each in tmp_path.parent.rglob("outside*")]


def each_attachment(change):
    return {"attachments": lambda files: {name: change(content) for name, content in files.items()}}


def of_the_future(city):
    city.greenserve_version = "9.1"
    city.safety = json.dumps({**json.loads(city.safety), "min_walk_s": 7})


def with_fewer_vehicles(step):
    if step.step.number == 3:
        step.step.readings.vehicles.pop()
    return step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (each_attachment(lambda content: gzip.compress(bytes(64 << 20))), "its network is larger than 10 MB unpacked"),
        ({"attachments": lambda files: {}}, "lacks its attachment network/0-grid.net.xml"),
        (each_attachment(lambda content: content[:100]), "its attachment network/0-grid.net.xml is damaged"),
        ({"city": of_the_future}, "a record of version 9.1 cannot be read by .* settings that this version does not"),
        ({"city": lambda city: city.lanes.pop()}, r"has readings of \d+ lanes, .*; use the version that wrote"),
        ({"change": with_fewer_vehicles}, "its contracts, settings, state or readings are malformed"),
    ],
)
def test_record_that_this_version_cannot_decide_is_refused(sample, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(recorded_run, "MAX_UNPACKED_BYTES", 10 << 20)
    with pytest.raises(InputError, match=message):
        replayed(rewrite(sample, tmp_path / "run.mcap", **changes))


def test_command_prints_the_first_difference_and_the_number_of_further_ones(sample, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(observation, "MIN_GAP_M", 2.6)
    assert main([str(sample), "--json", str(tmp_path / "out.json")]) == 3
    output = capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    total = sum(each["count"] for each in written["differences"])
    assert "SA102: observation[11] (density of lane left1A1.70.00_0): recorded 0.0587" in output
    assert {each["tl"] for each in written["differences"]} == {"SA101", "SA102", "SA104", "SA105", "SA106"}
    assert f"{total - 1} further differences:" in output
    assert written["first_difference"]["tl"] == "SA102"
    assert not written["same"]


def test_vehicles_on_detectors_are_those_of_the_record(recorded_city, tmp_path):
    again = []
    run = RecordedRun([recorded_city.write(tmp_path / "run.mcap", 0, 80)])
    replay = Replay(run, on_step=lambda step, tls, publish_ns: again.append(step.detectors))
    replay.run()
    assert replay.differences.first is None
    assert again == [step.detectors for step, _, _ in recorded_city.steps[:80]]
    assert sum(len(each.detector) for each in again) > 500
