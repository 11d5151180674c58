"""Versions and labels at a server of TensorFlow Serving's files: loaded first, labelled second, taken back, refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from city import config
from city.errors import InputError, ProgramFailed
from export.__main__ import main as export
from protos import control_pb2 as pb
from rollout.street import PIN_LEASE_S, ServedStreet, connected
from serving.client import Client
from serving.embedded import flags as embedded_flags
from serving.tf_serving import config_files
from serving.tf_serving.__main__ import main as serve_config
from serving.tf_serving.config_files import Versions
from tests.conftest import GRID
from tests.serving.conftest import running

OLD = Versions((1,), {"stable": 1})
BOTH = Versions((1, 2), {"stable": 1, "canary": 2})
NEW = Versions((1, 2), {"stable": 2})


@pytest.fixture(scope="module")
def models(grid_models, tmp_path_factory):
    """Two TLs, one with two versions, and a fleet of both with version 1 of each."""
    folder = tmp_path_factory.mktemp("street") / "models"
    for tl in ("SA101", "SA104"):
        shutil.copytree(grid_models / tl, folder / tl)
    assert export(["fleet", "city", "--tl", "SA101,SA104", "--models-dir", str(folder)]) == 0
    shutil.copytree(folder / "SA104" / "1", folder / "SA104" / "2")
    return folder


@pytest.fixture
def settings(models, tmp_path):
    """Of a server with the files in folder config: version 1 of each model is stable."""
    out = tmp_path / "config"
    flags = ["--models-dir", str(models), "--out", str(out), "--mounted-at", str(models), "--config-at", str(out)]
    assert serve_config([*flags, "--all-models", "--model", "SA104=1"]) == 0
    parsed = embedded_flags.parse((out / "flags").read_text().splitlines())
    return replace(parsed, port=0, rest=None, config_poll_s=0)


class Control:
    """A control API that answers with a state of the test."""

    def __init__(self, alarms=()):
        self.alarms, self.calls = alarms, []

    def call(self, method, request):
        self.calls.append((method, request))
        if method == "ListAlarms":
            return pb.Alarms(alarms=self.alarms)
        tls = [pb.TlState(tl="SA104", mode="policy", version=3, decided_s=7, pinned_version=3, pinned_by="ann")]
        return pb.ControllerState(run=pb.Run(second=8), tls=tls)


def street_of(server, tmp_path, control=None, fleet="city"):
    city = config.load(GRID / "city.toml")
    return connected(city, f"127.0.0.1:{server.port}", tmp_path / "config", control or Control(), fleet)


def in_file(tmp_path):
    return config_files.read(tmp_path / "config")


def test_a_version_is_loaded_then_labelled_promoted_and_taken_back(settings, tmp_path, monkeypatch):
    with running(settings) as server, street_of(server, tmp_path) as street:
        others = {name: each for name, each in in_file(tmp_path).items() if name != "SA104"}
        for target, label, loaded in ((BOTH, 1, {1, 2}), (NEW, 2, {1, 2}), (OLD, 1, {1})):
            street.serve({"SA104": target})
            assert street.clients[0].version_number("SA104", "stable") == label
            assert {number for number in (1, 2) if street.is_served("SA104", number)} == loaded
            assert in_file(tmp_path) == {**others, "SA104": target}, "all other models stay as they are"
        monkeypatch.setattr(Client, "reload_config", lambda *_: pytest.fail("reloaded"))
        street.serve({"SA104": OLD})


def test_a_model_without_an_entry_gets_one_beside_the_others(settings, models, tmp_path):
    """A fleet's member, whose own model is not served."""
    path = tmp_path / "config" / "models.config"
    text = path.read_text()
    begin = text.index('config {\n    name: "SA104"')
    entry = text[begin : text.index("  config {", begin) if "  config {" in text[begin:] else text.rindex("}")]
    path.write_text(text.replace(entry, ""))
    assert "SA104" not in in_file(tmp_path)
    again = embedded_flags.parse((tmp_path / "config" / "flags").read_text().splitlines())
    with running(replace(again, port=0, rest=None, config_poll_s=0)) as server, street_of(server, tmp_path) as street:
        assert not street.is_served("SA104", 1)
        street.serve({"SA104": OLD})
        assert street.is_served("SA104", 1) and str(models / "SA104") in path.read_text()


def test_a_corrupt_version_is_named_and_no_label_moves(settings, models, tmp_path):
    broken = models / "SA101" / "2"
    shutil.copytree(models / "SA101" / "1", broken)
    (broken / "saved_model.pb").write_bytes(b"nothing")
    try:
        with running(settings) as server, street_of(server, tmp_path) as street:
            with pytest.raises(ProgramFailed, match=r"SA101/2: .*could not load it"):
                street.serve({"SA101": BOTH})
            assert street.clients[0].version_number("SA101", "stable") == 1
            street.serve({"SA101": OLD}, is_rollback=True)
            assert in_file(tmp_path)["SA101"] == OLD
    finally:
        shutil.rmtree(broken)


def test_a_server_that_is_down_finds_the_old_number_alone_after_a_rollback(settings, tmp_path):
    with running(settings) as server, street_of(server, tmp_path) as street:
        street.serve({"SA104": BOTH})
        assert street.answers()
        server.stop()
        assert not street.answers()
        with pytest.raises(ProgramFailed, match="the model server does not answer"):
            street.serve({"SA104": NEW})
        assert in_file(tmp_path)["SA104"] == BOTH, "nothing is promoted at a server that is down"
        with pytest.raises(ProgramFailed):
            street.serve({"SA104": OLD}, is_rollback=True)
        assert in_file(tmp_path)["SA104"] == OLD
        for call in (lambda: street.is_served("SA104", 1), lambda: street.number_in_fleet("SA104")):
            with pytest.raises(ProgramFailed, match="does not answer"):
                call()


def test_the_number_in_a_fleet_is_that_of_its_contract(settings, tmp_path):
    with running(settings) as server:
        for fleet, expected in (("city", 1), ("elsewhere", None), ("", None)):
            with street_of(server, tmp_path, fleet=fleet) as street:
                assert street.number_in_fleet("SA104") == expected
                assert street.number_in_fleet("SA102") is None


def street_without_server(control):
    return ServedStreet(config.load(GRID / "city.toml"), "127.0.0.1:1", [], Path(), control, "")


def test_alarms_that_a_model_may_cause_are_those_of_its_tl_and_signals():
    alarms = [
        pb.Alarm(id="GreenserveMonitorAlarm/conflict", name="GreenserveMonitorAlarm", subjects=["B0"], since_unix_s=5),
        pb.Alarm(id="GreenserveMonitorAlarm/x", name="GreenserveMonitorAlarm", subjects=["A0"]),
        pb.Alarm(id="GreenserveOverrides", name="GreenserveOverrides", subjects=["SA104", "SA101"], since_unix_s=6),
        pb.Alarm(id="GreenserveTLInFallback", name="GreenserveTLInFallback", subjects=["SA104"]),
    ]
    seen = street_without_server(Control(alarms)).see(["SA104"])
    assert seen.second == 8 and seen.tls["SA104"].pinned_version == 3
    assert seen.alarms == {"SA104": [("GreenserveMonitorAlarm/conflict", 5.0), ("GreenserveOverrides", 6.0)]}


def test_a_pin_is_named_after_the_rollout():
    street = street_without_server(Control())
    street.pin("SA104", 2, "rollout r1 (ann)", then=1)
    street.pin("SA104", None, "rollout r1 (ann)")
    sent = [(each.version, each.for_seconds, each.then_version, each.author) for _, each in street.control.calls]
    assert sent == [("2", PIN_LEASE_S, "1", "rollout r1 (ann)"), ("latest", 0.0, "", "rollout r1 (ann)")]


def test_a_folder_without_the_servers_files_is_one_line(settings, tmp_path):
    (tmp_path / "config" / "models.config").unlink()
    with pytest.raises(InputError, match="serve config --all-models"):
        street_of(Mock(port=1), tmp_path).__enter__()
