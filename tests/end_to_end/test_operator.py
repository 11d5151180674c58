"""Operators' commands on a real simulation: commands, a restart, a pause behind a guard, SUMO's end while it is
watched."""

import contextlib
import signal
import socket
import time
import urllib.request

import pytest

from city.errors import InputError, ProgramFailed
from controller.__main__ import main
from controller.operator.control_client import ControlClient
from protos import control_pb2 as pb
from tests.end_to_end.programs import CITY, controller, free_port, guard, sumo
from tests.sample_city import write_city
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_files")
PRESSURE = ("--policy", "max-pressure")


@contextlib.contextmanager
def operated(*flags):
    """A controller with the control API; yields (process, client) once it answers."""
    address = f"127.0.0.1:{free_port()}"
    end_s = time.monotonic() + 60
    with controller(*flags, "--control-address", address) as process, ControlClient(address) as client:
        while True:
            try:
                client.call("ListTls", pb.ListTlsRequest())
                break
            except InputError as error:
                assert "no controller answers" in str(error)
                assert process.poll() is None and time.monotonic() < end_s, process.stderr.read()
                time.sleep(0.1)
        yield process, client


def log_after_stop(process):
    """What a controller has logged, after a stop request to which it ends in order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.stderr.read()
    return process.stderr.read()


def tl(client, name):
    return client.call("ListTls", pb.ListTlsRequest(tls=[name])).tls[0]


def second(client):
    return client.call("ListTls", pb.ListTlsRequest(tls=["SA101"])).run.second


def test_a_tl_that_an_operator_set_stays_so_over_a_restart(tmp_path):
    flags = (*PRESSURE, "--speed", "20")
    with operated(*flags) as (process, client):
        client.call("SetMode", pb.SetModeRequest(tls=["SA101"], mode="fixed", author="ann", for_seconds=100_000))
        wait_until(lambda: tl(client, "SA101").mode == "fixed")
        assert "ann set SA101 to fixed" in log_after_stop(process)
    with operated(*flags) as (process, client):
        state = tl(client, "SA101")
        assert (state.mode, state.set_by) == ("fixed", "ann") and tl(client, "SA102").mode == "policy"
        client.call("SetMode", pb.SetModeRequest(tls=["SA101"], mode="policy", author="bob"))
        wait_until(lambda: tl(client, "SA101").mode == "policy")
        assert "SA101 begins in mode fixed, which ann set before this start" in log_after_stop(process)


def test_a_paused_run_is_alive_for_its_guard_and_probes_and_steps_exactly(tmp_path):
    """The pause is more than twice as long as the guard's watchdog."""
    city = write_city(tmp_path, ("[controller]\n", "[controller]\nwatchdog_s = 1\n"))
    http, held = free_port(), free_port()
    with sumo(1, "--end", "100000") as (sumo_port, _):
        holding = ("--sumo", f"127.0.0.1:{sumo_port}", "--port", held, "--only-client", "--watchdog-s", "1")
        flags = ("--sumo", f"127.0.0.1:{held}", "--no-guard", "--city", city, "--http", f"127.0.0.1:{http}")
        with guard(*holding) as holder, operated(*PRESSURE, *flags) as (process, client):
            paused = client.call("Pause", pb.PauseRequest(author="ann"))
            time.sleep(2.3)
            assert second(client) == paused.second
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=5) as answer:
                assert answer.status == 200
            client.call("Step", pb.StepRequest(until_s=paused.second + 3, author="ann"))
            wait_until(lambda: client.call("Pause", pb.PauseRequest(author="ann")).second == paused.second + 3)
            client.call("Resume", pb.ResumeRequest(author="ann"))
            wait_until(lambda: second(client) > paused.second + 60)
            client.call("Pause", pb.PauseRequest(author="ann"))
            log_after_stop(process)  # a paused run is released too
            holder.send_signal(signal.SIGTERM)
            holder.wait(30)
            log = holder.stderr.read()
            assert "was silent" not in log and "lost" not in log, log


def test_a_pinned_model_answers_by_its_number_also_after_a_pause_longer_than_the_deadline(grid_server):
    with operated("--server", grid_server, "--deadline-ms", "1500") as (process, client):
        wait_until(lambda: tl(client, "SA103").version)
        client.call("Pause", pb.PauseRequest(author="ann"))
        number = tl(client, "SA103").version
        pinned = client.call("PinModel", pb.PinModelRequest(tl="SA103", version=str(number), author="ann")).tls[0]
        assert pinned.pinned_version == number
        time.sleep(1.7)
        before = client.call("Resume", pb.ResumeRequest(author="ann")).second
        wait_until(lambda: tl(client, "SA103").decided_s > before + 20)
        client.call("Pause", pb.PauseRequest(author="ann"))
        state = tl(client, "SA103")
        assert (state.model, state.version, state.mode) == ("SA103", number, "policy")
        with pytest.raises(InputError, match=r"serves no version 99 of SA103 .*it serves version"):
            client.call("PinModel", pb.PinModelRequest(tl="SA103", version="99", author="ann"))
        answer = client.call("ReloadContracts", pb.ReloadContractsRequest(author="ann"))
        assert (answer.compared, list(answer.changed), list(answer.failed)) == (8, [], [])
        assert tl(client, "SA103").pinned_version == number
        assert not client.call("ListAlarms", pb.ListAlarmsRequest(with_ended=True)).alarms
        assert "; 0 answers missing, 0 fallbacks" in log_after_stop(process)


@pytest.mark.parametrize("guard_flags", [(), ("--no-guard",)], ids=["guarded", "not guarded"])
def test_watchers_see_the_end_of_sumo_while_the_run_is_paused(guard_flags):
    with (
        sumo(1) as (sumo_port, process_of_sumo),
        operated(*PRESSURE, *guard_flags, "--sumo", f"127.0.0.1:{sumo_port}") as (process, client),
    ):
        stream = client.watch(0.1)
        next(stream)
        client.call("Pause", pb.PauseRequest(author="ann"))
        time.sleep(0.5)
        assert process.poll() is None
        process_of_sumo.kill()
        begin_s = time.monotonic()
        with contextlib.suppress(ProgramFailed):  # or the stream ends in order
            for _ in stream:
                pass
        assert process.wait(30) == 1
        assert time.monotonic() - begin_s < 5
        log = process.stderr.read()
        (error,) = [line for line in log.splitlines() if " ERROR " in line]
        assert "Traceback" not in log and "at second" in error, log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{taken}"], "(Address already in use); pass another port"),
        (["0.0.0.0:9110"], "any client that reaches it could command the signals"),
        (["127.0.0.1:0", "--control-tls-key", "x"], "belong together; pass all three"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_and_exit_code_2(flags, message, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address, *more = flags
        address = address.replace("{taken}", f"127.0.0.1:{taken.getsockname()[1]}")
        assert main(["--city", CITY, *PRESSURE, "--control-address", address, *more]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line, "gRPC prints no line of its own"
