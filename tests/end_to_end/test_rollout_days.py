"""Days of a rollout with the real SUMO, controller and server: killed, in a fleet.

The verdicts on its canary are the test's: they say how long it lasts."""

import shutil

import pytest

from city.ledger import BETTER, UNDECIDED, drives_by_tl
from city.ledger_file import LedgerFile
from export.__main__ import main as export
from protos import control_pb2 as pb
from rollout import following, street
from rollout.judges import StreetJudges
from rollout.open_rollout import Clock
from rollout.verdicts import Verdict
from serving.client import Client
from tests.end_to_end.test_operator import tl
from tests.end_to_end.test_rollout import controlled, folder, models, roll, serving
from tests.waiting import wait_until

__all__ = ["folder", "models"]
pytestmark = pytest.mark.slow
AT_ONCE = ("SA106", "--to", "2", "--skip", "evaluate,shadow")
SPEED = 10


class Killed(BaseException):
    """The rollout's process is killed."""


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


def drives(folder):
    return [drive.model.number for drive in drives_by_tl(LedgerFile(folder / "ledger.jsonl").lines)["SA106"]]


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
    assert drives(folder) == [1, 2, 1, 2]


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
    assert drives(folder) == [1, 2]
