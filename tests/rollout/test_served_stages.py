"""Whole rollouts against a server of TensorFlow Serving's files and API, which loads, hangs, refuses, or is restarted.

The controller is the test's: it asks for label stable, or what is pinned."""

import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from city.errors import InputError
from city.ledger_file import LedgerFile
from protos import control_pb2 as pb
from rollout.stages import RolloutRun
from serving.client import Client
from serving.embedded import flags as embedded_flags
from serving.errors import BadRequest, ServingError
from serving.tf_serving import publication
from tests.rollout.fake_street import FakeClock, FakeJudges, plan
from tests.rollout.test_street import in_file, models, settings, street_of
from tests.serving.conftest import running

__all__ = ["models", "settings"]
TL = "SA104"


class Control:
    """The control API of a controller that asks a server."""

    def __init__(self, client):
        self.client, self.pin = client, pb.TlState()

    def call(self, method, request):
        if method == "ListAlarms":
            return pb.Alarms()
        if method == "PinModel":
            loaded = {each.version for each in self.client.status(TL)}
            if request.version != "latest" and int(request.version) not in loaded:
                raise InputError(f"serves no version {request.version}")
            number = 0 if request.version == "latest" else int(request.version)
            self.pin = pb.TlState(pinned_version=number, pinned_by=request.author, pinned_for_s=request.for_seconds)
        state = pb.TlState(tl=TL, mode="policy")
        state.MergeFrom(self.pin)
        with contextlib.suppress(ServingError):  # a controller in fallback still answers
            state.version = self.pin.pinned_version or self.client.version_number(TL, "stable")
        return pb.ControllerState(tls=[state])


@pytest.fixture
def begun(settings, tmp_path, monkeypatch):
    """Rolls number 2 out at a server; returns the result, the lines, and the configurations of the TL that were sent."""
    sent, lines = [], []
    reload_config = Client.reload_config

    def noted(client, config, timeout_s):
        (entry,) = [each for each in config.model_config_list.config if each.name == TL]
        sent.append((tuple(entry.model_version_policy.specific.versions), dict(entry.version_labels)))
        return reload_config(client, config, timeout_s)

    monkeypatch.setattr(Client, "reload_config", noted)

    def roll(server, judges=None, clock=None):
        with Client(f"127.0.0.1:{server.port}") as client, street_of(server, tmp_path, Control(client)) as street:
            ledger = LedgerFile(tmp_path / "ledger.jsonl")
            rollout = plan(tls=(TL,), number=2, poll_s=1.0)
            run = RolloutRun(rollout, ledger, street, judges or FakeJudges(), lines.append, clock or FakeClock())
            return run.run()

    return SimpleNamespace(roll=roll, sent=sent, lines=lines)


LOADED_THEN_LABELLED = [
    ((1, 2), {"stable": 1}),
    ((1, 2), {"stable": 1, "canary": 2}),
    ((1, 2), {"stable": 2}),
]


def test_a_number_is_loaded_then_labelled_and_promoted(settings, begun, tmp_path):
    with running(settings) as server:
        assert begun.roll(server).outcome == "promoted"
        assert begun.sent == LOADED_THEN_LABELLED
        with Client(f"127.0.0.1:{server.port}") as client:
            assert client.version_number(TL, "stable") == 2 and in_file(tmp_path)[TL].labels == {"stable": 2}


@pytest.mark.parametrize(("hangs", "error"), [(True, "Deadline"), (False, "no)")])
def test_a_reload_that_hangs_or_is_refused_promotes_nothing(settings, begun, tmp_path, monkeypatch, hangs, error):
    monkeypatch.setattr(publication, "LOAD_TIMEOUT_S", 1.0)
    released = threading.Event()
    with running(settings) as server:
        load = server.manager.load
        monkeypatch.setattr(server.manager, "load", lambda *model: released.wait(20) and load(*model))
        if not hangs:
            monkeypatch.setattr(Client, "reload_config", Mock(side_effect=BadRequest("no")))
        result = begun.roll(server)
        with Client(f"127.0.0.1:{server.port}") as client:
            assert client.version_number(TL, "stable") == 1
        released.set()
    assert result.outcome == "failed" and f"does not take these models ({error}" in result.sentence
    assert "\n" not in result.sentence and in_file(tmp_path)[TL].labels == {"stable": 1}
    assert not [labels for _, labels in begun.sent if labels != {"stable": 1}]
    assert not LedgerFile(tmp_path / "ledger.jsonl").state.rollouts


def test_a_server_that_is_restarted_in_canary_has_the_files_labels(settings, begun, tmp_path):
    clock, judges = FakeClock(), FakeJudges(polls=6)
    with running(settings) as first:
        again = embedded_flags.parse((tmp_path / "config" / "flags").read_text().splitlines())
        restarted = []

        def restarts():
            if clock.seconds > 2 and not restarted:
                first.stop()
                restarted.append(running(replace(again, port=first.port, rest=None, config_poll_s=0)))
                restarted[0].__enter__()

        clock.on_sleep = restarts
        try:
            assert begun.roll(first, judges, clock).outcome == "promoted"
            assert restarted and begun.sent[-1] == LOADED_THEN_LABELLED[-1]
            assert {labels["stable"] for _, labels in begun.sent[:-1]} == {1}, "not before the canary is passed"
        finally:
            for each in restarted:
                each.__exit__(None, None, None)
