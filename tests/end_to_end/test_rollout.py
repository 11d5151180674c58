"""Rollouts on the sample city, with the real SUMO, controller and server: a worse model is refused, or found on the
street and taken back; a better one is promoted TL by TL; a killed rollout goes back, a fleet's member leaves it."""

import contextlib
import shutil

import h5py
import pytest

from city.errors import ProgramFailed
from city.ledger import BETTER, UNDECIDED, drives_by_tl
from city.ledger_file import LedgerFile
from export.__main__ import main as export
from protos import control_pb2 as pb
from rollout import following, street
from rollout.__main__ import main as rollout
from rollout.judges import StreetJudges
from rollout.ledger_command import main as ledger_command
from rollout.open_rollout import Clock
from rollout.verdicts import Verdict
from serving.client import Client
from serving.tf_serving.__main__ import main as serve_config
from tests.conftest import GRID
from tests.end_to_end.programs import free_port, program
from tests.end_to_end.test_operator import operated, tl
from tests.sample_city import write_city
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
TLS = "SA106,SA103"
BAD = {1: (1, 2, 3, 0), 3: (2, 3, 0, 1)}
"""By number of SA106, the order of the greens that its output means; number 2 is the trained policy."""
CHECKPOINT = {
    "SA106": "PPO-_netSz_(64, 64)-trial_{}_SA106_actor.weights.h5",
    "SA103": "SAPPO-_state_vd_action_kc_netSz_(64, 64)-trial_{}_SA103_actor.weights.h5",
}


@pytest.fixture
def folder(own_files, in_tmp_path):
    """The city's folder, with the files of this test's operators alone."""
    write_city(own_files)
    return own_files


@pytest.fixture
def models(folder, grid_models):
    """Models of all TLs with number 1, and further numbers of two of them."""
    shutil.copytree(grid_models, folder / "models", ignore=shutil.ignore_patterns("SA106"))
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    for own, name in CHECKPOINT.items():
        for number in (1, 2, 3):
            copy = checkpoints / name.format(number)
            shutil.copy(GRID / "checkpoints" / name.format(1), copy)
            if own == "SA106" and number in BAD:
                with h5py.File(copy, "r+") as file:
                    for variable in file["layers/dense_2/vars"].values():
                        variable[...] = variable[...][..., list(BAD[number])]
            if (own, number) != ("SA103", 1):
                flags = ["--model-path", str(checkpoints), "--model-number", str(number)]
                assert export(["--tl", own, *flags, "--models-dir", str(folder / "models")]) == 0
    return folder / "models"


ONE = ("--all-models", *(flag for tl in CHECKPOINT for flag in ("--model", f"{tl}=1")))
"""Flags of serve config: number 1 of each model."""


@contextlib.contextmanager
def serving(folder, models, which=ONE):
    """A server with TensorFlow Serving's files; yields its address."""
    at = ["--models-dir", str(models), "--mounted-at", str(models), "--config-at", str(folder / "config")]
    assert serve_config([*at, "--out", str(folder / "config"), *which]) == 0
    port = free_port()
    flags = ["--model_config_file", str(folder / "config" / "models.config"), "--port", str(port)]
    with program("serving", *flags, "--allow_version_labels_for_unavailable_models=true") as process:
        for line in process.stdout:
            if line.startswith("ready"):
                break
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def controlled(folder, server, speed):
    """A controller that records, and asks for label stable; yields a client of its control API."""
    city = ("--city", str(folder / "city.toml"))
    flags = ("--server", server, "--version-label", "stable", "--record", str(folder / "rec"), "--no-guard")
    # this test is about other figures than the machine's speed
    flags += ("--deadline-ms", "5000")
    with operated(*city, *flags, "--speed", str(speed)) as (_, client):
        # the begin of a rollout is refused before a TL's first answer
        wait_until(lambda: all(state.version for state in client.call("ListTls", pb.ListTlsRequest()).tls), 60)
        yield client


def roll(folder, server, client, *flags):
    own = ["--control-address", client.address, "--server", server, "--record", str(folder / "rec")]
    return rollout([*flags, *own, "--poll-s", "1", "--author", "ann", "--max-wait-s", "300"])


def drives(folder):
    """By TL, the numbers that have driven it."""
    by_tl = drives_by_tl(LedgerFile(folder / "ledger.jsonl").lines)
    return {tl: [drive.model.number for drive in own] for tl, own in by_tl.items()}


def whole_run(folder, server):
    """Record an hour as fast as possible."""
    with controlled(folder, server, 0) as client, contextlib.suppress(ProgramFailed):
        for _ in client.watch(1.0):
            pass  # to the end of the run


def test_a_worse_model_is_taken_back_and_a_better_one_promoted_tl_by_tl(folder, models, capsys):
    (folder / "rec").mkdir()
    with serving(folder, models) as server, Client(server) as served:
        whole_run(folder, server)
        with controlled(folder, server, 40) as client:
            # number 1 of SA106 takes its greens for others; number 2 is the trained policy
            easy = ("--min-bins", "2", "--min-decisions", "50")
            short = ("--seeds", "3", "--seconds", "600")
            assert roll(folder, server, client, TLS, "--to", "2", *short, "--until", "evaluate") == 0
        with controlled(folder, server, 40) as client:
            assert roll(folder, server, client, TLS, "--to", "2", "--until", "shadow") == 0
            state = client.call("ListTls", pb.ListTlsRequest(tls=["SA106"])).tls[0]
            assert (state.version, state.pinned_version) == (1, 1), "not driven by number 2 before its canary"
        with controlled(folder, server, 40) as client:
            assert roll(folder, server, client, "SA106,SA103", "--to", "2", *easy) == 0
            assert served.version_number("SA106", "stable") == served.version_number("SA103", "stable") == 2
            states = client.call("ListTls", pb.ListTlsRequest(tls=["SA106", "SA103"])).tls
            assert {(s.version, s.pinned_version) for s in states} == {(2, 0)}
        whole_run(folder, server)
        with controlled(folder, server, 40) as client:
            assert roll(folder, server, client, "SA106", "--to", "3", *short) == 3
            assert "worse: evaluate: mean delay" in capsys.readouterr().out
            assert 3 not in {v.version for v in served.status("SA106")}, "never loaded"
        with controlled(folder, server, 40) as client:
            assert roll(folder, server, client, "SA106", "--to", "3", "--skip", "evaluate,shadow", *easy) == 3
            out = capsys.readouterr().out
            assert "worse: canary: SA106: " in out
            state = client.call("ListTls", pb.ListTlsRequest(tls=["SA106"])).tls[0]
            assert (state.version, state.pinned_version, state.mode) == (2, 0, "policy")
            assert served.version_number("SA106", "stable") == 2
            alarms = client.call("ListAlarms", pb.ListAlarmsRequest(with_ended=True)).alarms
            assert [alarm.id for alarm in alarms if alarm.severity == "critical"] == []
        assert drives(folder) == {"SA106": [1, 2, 3, 2], "SA103": [1, 2]}, "in the order of the street"
        assert ledger_command(["verify"], "greenserve ledger") == 0


AT_ONCE = ("SA106", "--to", "2", "--skip", "evaluate,shadow")
SPEED = 10


@pytest.fixture
def script(folder, monkeypatch):
    """Calls that are made in turn between two looks of a rollout, each again until it returns True; the canary is
    better after the last one."""
    (folder / "rec").mkdir()
    calls, sleep = [], Clock.sleep

    def judge(self, targets, *_):
        return dict.fromkeys(targets, Verdict(UNDECIDED if calls else BETTER, "of the test"))

    def step(self, seconds):
        if calls and calls[0]():
            del calls[0]
        sleep(self, seconds)

    monkeypatch.setattr(StreetJudges, "canary", judge)
    monkeypatch.setattr(Clock, "sleep", step)
    return calls


class Killed(BaseException):
    """The rollout's process is killed."""


def kill():
    raise Killed


def test_a_canary_whose_rollout_is_killed_goes_back_by_itself(folder, models, script, monkeypatch):
    for module in (street, following):
        monkeypatch.setattr(module, "PIN_LEASE_S", 4.0)
    with serving(folder, models) as server, controlled(folder, server, SPEED) as client, Client(server) as served:
        script += [lambda: tl(client, "SA106").version == 2, kill]
        with pytest.raises(Killed):
            roll(folder, server, client, *AT_ONCE)
        wait_until(lambda: tl(client, "SA106").version == 1)
        state = tl(client, "SA106")
        assert state.pinned_version == 1 and state.pinned_by.endswith("who has not renewed it")
        command = client.call("ListCommands", pb.ListCommandsRequest()).commands[-1]
        assert (command.action, command.target, command.value) == ("pin", "SA106", "1")
        script.clear()
        assert roll(folder, server, client, *AT_ONCE) == 0
        assert served.version_number("SA106", "stable") == 2
    assert drives(folder) == {"SA106": [1, 2, 1, 2]}


def test_a_fleets_member_is_served_by_its_own_model(folder, models, script, capsys):
    for name in ("SA103", "SA106"):  # the fleet is of their first numbers
        shutil.copytree(models / name / "1", folder / "first" / name / "1")
    assert export(["fleet", "city", "--tl", "SA106,SA103", "--models-dir", str(folder / "first")]) == 0
    shutil.move(folder / "first" / "city", models / "city")
    with serving(folder, models, which=()) as server, controlled(folder, server, SPEED) as client:
        assert [(tl(client, name).model, tl(client, name).version) for name in ("SA106", "SA103")] == [("city", 1)] * 2
        shown = []
        script += [lambda: shown.append(tl(client, "SA106")) or shown[-1].version == 2]
        assert roll(folder, server, client, *AT_ONCE) == 0
        assert shown[-1].model == "SA106", "its own model in canary"
        state = tl(client, "SA106")
        assert (state.model, state.version, state.pinned_version, state.pinned_for_s) == ("SA106", 2, 2, 0.0)
        assert tl(client, "SA103").model == "city"
        assert "SA106 stays pinned to 2, because the fleet holds 1: build it anew" in capsys.readouterr().err
    assert drives(folder) == {"SA106": [1, 2]}
