"""The control API over real gRPC: commands, watchers, malformed input, certificates."""

import gc
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from city.errors import InputError, ProgramFailed
from controller.guard import files
from controller.operator import control_server, operator_token, service
from controller.operator.control_client import ControlClient
from controller.operator.control_messages import METHODS, SERVICE
from controller.policies.served_contracts import ComparedContracts
from protos import control_pb2 as pb
from serving.client import Tls
from signals.safety.monitor import Alarm, MonitorRule
from tests.controller.decision_events import decision, event
from tests.controller.operator.operated_runs import TLS, OperatedRun, Pins
from tests.serving import certificates as certificate_files
from tests.serving.certificates import pair
from tests.waiting import wait_until


def token_metadata():
    return ((operator_token.HEADER, operator_token.credentials(operator_token.kept().value)),)


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("SetMode", dict(tls=["SA1O1"], mode="fixed"), r"SA1O1 is not a TL .* did you mean .*SA101"),
        ("SetMode", dict(tls=["signal_SA101"], mode="fixed"), r"is a signal, which belongs to TL SA101"),
        ("SetMode", dict(tls=["zz\x1b"], mode="fixed"), r"^zz\ufffd is not a TL .*its TLs are SA101"),
        ("SetMode", dict(tls=["A" * 500_000], mode="hold"), r"^A{48}\.\.\.A{49} is not a TL"),
        ("SetMode", dict(mode="fixed"), r"no TL is named"),
        ("SetMode", dict(tls=["all"], mode="off"), r"mode 'off' must be one of policy, hold, fixed"),
        ("SetMode", dict(tls=["all"], mode="hold", for_seconds=float("nan")), r"for_seconds nan must lie"),
        ("SetMode", dict(tls=["all"], mode="hold", for_seconds=-1), r"for_seconds -1 must lie"),
        ("SetMode", dict(tls=["all"], mode="policy", for_seconds=1), r"for the modes hold and fixed"),
        ("PinModel", dict(tl="all", version="3"), r"all is not a TL"),
        ("PinModel", dict(tl="SA101", version="newest"), r"'newest' must be a model number"),
        ("PinModel", dict(tl="SA101", version="3", then_version="0"), r"'0' must be a model number"),
        ("PinModel", dict(tl="SA101", version="3", for_seconds=-1.0), r"for_seconds -1 must lie between 0"),
        ("PinModel", dict(tl="SA101", version="0"), r"version '0' must be a model number"),
        ("PinModel", dict(tl="SA101", version="-1"), r"'-1' must be a model number"),
        ("PinModel", dict(tl="SA101", version="9" * 30), r"must be a model number"),
        ("PinModel", dict(tl="SA101", version="9" * 100_000), r"must be a model number"),
        ("SetSpeed", dict(factor=-1), r"factor -1 must lie between 0 and 1000"),
        ("SetSpeed", dict(factor=float("inf")), r"factor inf must lie"),
        ("Step", dict(until_s=float("nan")), r"until_s nan must lie"),
        ("AcknowledgeAlarm", dict(id="x"), r"x: no active alarm has this id; no alarm is active"),
        ("AcknowledgeAlarm", dict(id="A" * 500_000), r"^A{40}.*no active alarm"),
    ],
)
def test_wrong_requests_are_refused_in_words_and_change_nothing(method, values, message):
    operated, (request_type, _) = OperatedRun(pins=Pins()), METHODS[method]
    with operated.client() as client, pytest.raises(InputError, match=message):
        client.call(method, request_type(**values))
    assert operated.loop.commands == [] and operated.loop.actions == [] and operated.state.commands() == []


@pytest.mark.parametrize(
    ("content", "sent", "code", "message"),
    [
        (b"\x0a\xff\xff", None, "INVALID_ARGUMENT", "greenserve.control.v1"),
        *(
            (b"", metadata, "UNAUTHENTICATED", "run greenserve ctl on its machine as that user")
            for metadata in ((), (("authorization", "Bearer "),), (("authorization", f"Bearer {'x' * 24}"),))
        ),
    ],
)
def test_malformed_bytes_and_calls_without_the_token_are_refused(operated, content, sent, code, message):
    """`sent`: metadata; None: the token."""
    with operated.applying(), operated.served() as address, grpc.insecure_channel(address) as channel:
        for method in (*METHODS, "WatchDecisions"):
            stub = (channel.unary_stream if method == "WatchDecisions" else channel.unary_unary)(f"/{SERVICE}/{method}")
            with pytest.raises(grpc.RpcError) as raised:
                list(stub(content, timeout=5, metadata=token_metadata() if sent is None else sent))
            assert raised.value.code() is grpc.StatusCode[code] and message in raised.value.details(), method
    assert operated.state.commands() == []


def test_a_client_of_another_user_learns_what_to_do(operated, monkeypatch, tmp_path):
    with operated.served() as address:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with ControlClient(address) as client, pytest.raises(InputError, match="token of the controller's user"):
            client.call("Pause", pb.PauseRequest(author="x"))


def test_the_token_is_kept_in_a_file_that_only_this_user_can_read(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    token, file = operator_token.kept()
    assert operator_token.kept() == (token, file) and len(token) == 24
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text("damaged")
    file.chmod(0o644)
    assert operator_token.kept().value not in ("damaged", token)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    files.remove_old(file.parent)
    assert file.exists()


def test_a_pinned_version_is_checked_before_it_is_queued():
    operated = OperatedRun(pins=Pins())
    with operated.client() as client:
        state = client.call("PinModel", pb.PinModelRequest(tl="SA101", version="3", author="ann")).tls[0]
        assert (state.pinned_version, state.pinned_by) == (3, "ann") and operated.pins.pinned == {"SA101": 3}
        for refusal in (InputError("serves no version 4 of SA101"), ProgramFailed("no answer")):
            operated.pins.refusal = refusal
            with pytest.raises(type(refusal), match=str(refusal)):
                client.call("PinModel", pb.PinModelRequest(tl="SA101", version="4", author="bob"))
        assert operated.pins.pinned == {"SA101": 3}
        latest = client.call("PinModel", pb.PinModelRequest(tl="SA101", version="latest", author="bob")).tls[0]
        assert latest.pinned_version == 0 and operated.pins.pinned == {"SA101": None}


@pytest.mark.parametrize(
    ("method", "request_"),
    [("PinModel", pb.PinModelRequest(tl="SA101", version="3")), ("ReloadContracts", pb.ReloadContractsRequest())],
)
def test_without_models_there_is_nothing_to_pin_or_reload(method, request_):
    operated = OperatedRun(policy="max-pressure")
    with operated.client() as client, pytest.raises(InputError, match="max-pressure controls the TLs"):
        client.call(method, request_)


def test_reload_reports_what_changed_and_is_recorded():
    operated = OperatedRun(pins=Pins(ComparedContracts(("SA101",), ("SA102",), ("SA103",))))
    with operated.client() as client:
        answer = client.call("ReloadContracts", pb.ReloadContractsRequest(author="ann"))
    assert (answer.compared, list(answer.changed), list(answer.failed)) == (2, ["SA102"], ["SA103"])
    assert tuple(operated.loop.actions[0]) == ("reload", "", "2 compared, 1 changed, 1 failed", "ann")


def test_alarms_are_listed_and_acknowledged(operated):
    operated.alarms.add(event(10, alarms=[Alarm("A0", MonitorRule.CONFLICT, 10, "both green")]))
    with operated.client() as client:
        (alarm,) = client.call(
            "AcknowledgeAlarm", pb.AcknowledgeAlarmRequest(id="GreenserveMonitorAlarm/conflict", author="ann")
        ).alarms
        assert alarm.acknowledged_by == "ann" and alarm.runbook.endswith("#greenservemonitoralarm") and alarm.is_active
        operated.alarms.add(event(1000))
        assert not client.call("ListAlarms", pb.ListAlarmsRequest()).alarms
        (ended,) = client.call("ListAlarms", pb.ListAlarmsRequest(with_ended=True)).alarms
        assert ended.ended_s == 1000 and not ended.is_active
    assert tuple(operated.loop.actions[0]) == ("acknowledge", "GreenserveMonitorAlarm/conflict", "", "ann")


def test_a_watcher_gets_the_newest_step_alone_and_the_sequence_shows_what_it_skipped(operated, client):
    stream = client.watch(0.3)
    begin, begin_s = next(stream).sequence, time.monotonic()
    for second in range(1, 501):
        operated.state.add(event(second, [decision("SA101")]))
    message = next(stream)
    while message.run.second < 500:
        message = next(stream)
    assert message.sequence == begin + 500 and message.decisions[0].at_s == 500
    assert time.monotonic() - begin_s > 0.25, "an interval after the message before"


def test_a_watcher_that_stops_reading_holds_neither_the_loop_nor_memory(operated, frozen):
    """Its HTTP/2 window of 64 kB fills; the messages that follow are skipped, not queued."""
    decisions = [decision(tl) for tl in TLS] * 1000
    built, build = [], operated.service.newest_decisions
    operated.service.newest_decisions = lambda sequence: built.append(sequence) or build(sequence)
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
    with operated.applying(), operated.served() as address, grpc.insecure_channel(address, options) as channel:
        stalled = channel.unary_stream(f"/{SERVICE}/WatchDecisions")
        call = stalled(pb.WatchDecisionsRequest().SerializeToString(), metadata=token_metadata())
        begin_s, took_s = time.monotonic(), []
        for second in range(100):
            step_s = time.monotonic()
            operated.state.add(event(second, decisions))
            took_s.append(time.monotonic() - step_s)
            time.sleep(0.01)
        assert time.monotonic() - begin_s > 1 and len(built) < 8, "watchers get ten messages a second"
        assert max(took_s) < 0.5
        with ControlClient(address) as client:
            client.call("Pause", pb.PauseRequest(author="ann"))
        call.cancel()


@pytest.mark.parametrize("interval_s", [-0.1, 60.1, float("nan")])
def test_an_interval_that_no_watcher_may_have_is_refused(client, interval_s):
    with pytest.raises(InputError, match=r"min_interval_s .* must lie between 0 and 60"):
        next(iter(client.watch(interval_s)))


def test_a_hundred_watchers_see_a_command_and_leave_room_for_more(operated, client):
    with ThreadPoolExecutor(100) as pool:
        seen = [pool.submit(next, filter(lambda message: message.commands, client.watch(0.1))) for _ in range(100)]
        client.call("SetMode", pb.SetModeRequest(tls=["all"], mode="hold", author="ann"))
        assert all(each.result(30).commands[-1].author == "ann" for each in seen)


def test_a_watcher_beyond_the_limit_is_refused_and_a_place_is_given_back(monkeypatch, operated):
    monkeypatch.setattr(control_server, "MAX_WATCHERS", 2)
    monkeypatch.setattr(control_server, "WAKE_INTERVAL_S", 0.05)
    with operated.client() as client:
        streams = [client.watch() for _ in range(3)]
        next(streams[0]), next(streams[1])
        with pytest.raises(ProgramFailed, match="2 watchers are connected"):
            next(streams[2])
        streams[0].close()
        wait_until(lambda: has_place(client))


def has_place(client):
    try:
        return bool(next(client.watch()))
    except ProgramFailed:
        return False


def test_a_command_waits_for_a_step_no_longer_than_its_deadline(monkeypatch, operated):
    monkeypatch.setattr(service, "APPLY_TIMEOUT_S", 0.1)
    with operated.served() as address, ControlClient(address) as client:
        with pytest.raises(ProgramFailed, match="applied after the step in progress"):
            client.call("Pause", pb.PauseRequest(author="an\x1b[2Jn\n"))
        operated.queue.apply(operated.loop)
        assert operated.pace.state.is_paused and operated.state.commands()[0].author == "an\ufffd[2Jn"


def test_commands_of_many_operators_at_once_have_one_order_that_all_see():
    operated = OperatedRun(pins=Pins())

    def operate(name):
        for k in range(5):
            mode = ("fixed", "hold")[(k + len(name)) % 2]
            client.call("SetMode", pb.SetModeRequest(tls=["SA101"], mode=mode, author=name))
            client.call("ReloadContracts", pb.ReloadContractsRequest(author=name))
            client.call("PinModel", pb.PinModelRequest(tl="SA102", version=str(k + 1), author=name))

    with operated.client() as client, ThreadPoolExecutor(6) as pool:
        list(pool.map(operate, ["n" * k for k in range(1, 7)], timeout=60))
        state = client.call("ListTls", pb.ListTlsRequest())
    assert [command.number for command in state.commands] == [*range(1, len(state.commands) + 1)]
    newest = {(command.action, command.target): command for command in state.commands}
    mode, pin = newest["set-mode", "SA101"], newest["pin", "SA102"]
    assert (state.tls[0].mode, state.tls[0].set_by) == (mode.value, mode.author)
    assert (state.tls[1].pinned_version, state.tls[1].pinned_by) == (int(pin.value), pin.author)
    assert operated.pins.pinned["SA102"] == int(pin.value)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_served_beside_the_api(operated, service):
    request = health_pb2.HealthCheckRequest(service=service)
    with operated.served() as address, grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_another_server_is_named():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with ControlClient(f"127.0.0.1:{port}") as client, pytest.raises(InputError, match="is not the control API"):
            client.call("ListTls", pb.ListTlsRequest())
    finally:
        server.stop(None)
    nobody = pytest.raises(InputError, match=r"no controller answers at .*check its address")
    with ControlClient(f"127.0.0.1:{port}", timeout_s=2) as client, nobody:
        client.call("ListTls", pb.ListTlsRequest())


@pytest.fixture
def frozen():
    """Freezes the objects of earlier tests, as the daemon does with its own: a collection among them takes a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def certificates(tmp_path):
    """(files of the server, certificates of a client `operator-7`, those of a client of another authority)."""
    authority, other = pair("authority"), pair("other")
    files = certificate_files.write(tmp_path, "controller", authority)
    clients = [
        Tls(authority[1], certificate=signed[1], key=signed[0])
        for signed in (pair("operator-7", authority), pair("operator-7", other))
    ]
    return files, *clients


def test_the_client_certificates_name_is_the_author_and_replaced_certificates_are_used(
    certificates, tmp_path, operated
):
    files, known, _ = certificates
    authority = pair("second")
    key, certificate, *_ = pair("operator-8", authority)
    with operated.applying(), operated.served(files) as address:
        for tls in (known, Tls(authority[1], certificate=certificate, key=key)):
            with ControlClient(address, tls) as client:
                client.call("SetSpeed", pb.SetSpeedRequest(factor=len(operated.state.commands()) + 1, author="x"))
            certificate_files.write(tmp_path, "controller", authority)
    assert [command.author for command in operated.state.commands()] == ["operator-7", "operator-8"]


@pytest.mark.parametrize("case", ["no certificate", "another authority", "plain text"])
def test_clients_without_a_certificate_of_the_authority_reach_nothing(certificates, operated, case):
    files, known, unknown = certificates
    other = Tls(known.ca, certificate=unknown.certificate, key=unknown.key)
    tls = {"no certificate": Tls(known.ca), "another authority": other, "plain text": None}[case]
    with operated.applying(), operated.served(files) as address:
        client = ControlClient(address, tls, timeout_s=3)
        with client, pytest.raises(InputError):
            client.call("Pause", pb.PauseRequest(author="x"))
    assert operated.state.commands() == []


def test_a_controller_that_has_answered_and_is_gone_is_no_wrong_input(operated):
    with operated.served() as address:
        client = ControlClient(address, timeout_s=2)
        client.call("ListTls", pb.ListTlsRequest())
    with client, pytest.raises(ProgramFailed, match="UNAVAILABLE"):
        client.call("ListTls", pb.ListTlsRequest())
