"""Wrong input is refused before any signal is touched: one line, exit code 2."""

import contextlib
import os
import socket
import socketserver
import tempfile
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from city.errors import InputError
from controller import daemon
from controller.__main__ import main
from controller.policies.served_contracts import fetch_contracts
from controller.sumo import wire
from controller.sumo.network import check_contract_matches_network, check_contracts_match_city, running_signals
from serving.embedded.config import ServerConfig
from signals import contract
from tests.end_to_end.programs import CITY, free_port
from tests.error_lines import refused
from tests.sample_city import write_city
from tests.serving import saved_models
from tests.serving.conftest import connected


@pytest.mark.parametrize(
    ("change", "in_city", "message"),
    [
        (
            lambda contracts: contracts["SA102"].signal_ids.__setitem__(0, "A0"),
            "A1",
            r"SA102: .* has signals A1, but its model was exported for A0",
        ),
        (
            lambda contracts: setattr(contracts["SA103"].action, "kind", "gro"),
            "A1",
            "has action kc, but its model was exported for gro",
        ),
        (
            lambda contracts: contracts["SA102"].signal_ids.__setitem__(0, "A0"),
            "A0",
            "signal A0 is in the contracts of both SA101 and SA102",
        ),
    ],
)
def test_model_of_another_city_is_refused(grid_city, grid_street, change, in_city, message):
    contracts = {tl: contract.build(grid_city, grid_city.tls[tl], grid_street) for tl in ("SA101", "SA102", "SA103")}
    change(contracts)
    tls = {**grid_city.tls, "SA102": replace(grid_city.tls["SA102"], signals=(in_city,))}
    with pytest.raises(InputError, match=message):
        check_contracts_match_city(replace(grid_city, tls=tls), contracts)


def replace_phase(made, number, state):
    made.signals[0].phases[number].state = state


@pytest.mark.parametrize(
    ("tl", "change", "message"),
    [
        ("SA101", lambda p: p.missing.append("timing"), "contract of SA101 is incomplete: timing missing"),
        ("SA101", lambda p: replace_phase(p, 0, "G" * 12), "has other phases now"),
        ("SA101", lambda p: setattr(p.observation, "size", 22), "21 features for an observation of 22"),
        (
            "SA101",
            lambda p: p.signals[0].greens.extend(["GG"] * p.action.size),
            r"the contract of \w+ lists green 'GG', which is not a phase of signal \w+; export",
        ),
        ("SA101", lambda p: setattr(p.action, "size", 7), "action size 7, but its signal has 4 green phases"),
        ("SA103", lambda p: setattr(p.action, "size", 3), "action size 3, but its signals take 1"),
        ("SA108", lambda p: setattr(p.action, "size", 1), "action size 1, but its signals take 2"),
        ("SA107", lambda p: setattr(p.action, "kind", "grx"), "has action 'grx'"),
        ("SA101", lambda p: setattr(p.action, "kind", "kc"), "has action 'kc'"),
        ("SA101", lambda p: p.observation.features.reverse(), "lists features that its signal does not have"),
        ("SA101", lambda p: setattr(p.timing, "decision_interval_s", 0), "decision_interval_s 0"),
        ("SA107", lambda p: setattr(p.timing, "control_cycle", 0), "control_cycle 0"),
        ("SA103", lambda p: setattr(p.observation, "state", "q"), "state 'q', not one of d, v, vd, vdd"),
    ],
)
def test_contract_that_does_not_fit_the_network_or_its_dialect_is_refused(grid_city, grid_street, tl, change, message):
    changed = contract.build(grid_city, grid_city.tls[tl], grid_street)
    change(changed)
    with pytest.raises(InputError, match=message):
        check_contract_matches_network(changed, grid_street)


@pytest.mark.parametrize(
    ("renamed", "lanes", "message"),
    [
        ("Z9", 8, r"the network .* has no signal A0, which the policy controls"),
        ("A0", 7, r"8 lanes in training, 7 in .* \(missing: \S+; new: none\)"),
    ],
)
def test_network_without_a_signal_or_lane_of_training_is_refused(grid_city, grid_street, renamed, lanes, message):
    made, signal = contract.build(grid_city, grid_city.tls["SA101"], grid_street), grid_street.signals["A0"]
    street = replace(grid_street, signals={renamed: replace(signal, lanes=signal.lanes[:lanes])})
    with pytest.raises(InputError, match=message):
        check_contract_matches_network(made, street)


def test_phase_that_the_safety_rules_never_permit_is_refused(grid_city, grid_street):
    made, signal = contract.build(grid_city, grid_city.tls["SA101"], grid_street), grid_street.signals["A0"]
    trained = next(p for p in signal.programs if p.id == made.signals[0].program_id)
    off = "o" * (len(signal.links) - 1) + "y"
    replace_phase(made, 1, off)
    program = replace(trained, phases=(trained.phases[0], replace(trained.phases[1], state=off), *trained.phases[2:]))
    street = replace(grid_street, signals={**grid_street.signals, "A0": replace(signal, programs=(program,))})
    message = rf"SA101: signal A0: phase '{off}' of program .* is not a state of 12 links with r, y"
    with pytest.raises(InputError, match=message):
        check_contract_matches_network(made, street)


@pytest.mark.parametrize(("tl", "matters"), [("SA103", False), ("SA107", True)])
def test_durations_and_type_of_the_program_matter_only_to_plan_actions(grid_city, grid_street, tl, matters):
    made = contract.build(grid_city, grid_city.tls[tl], grid_street)
    signal = grid_street.signals[made.signal_ids[0]]
    nema = replace(signal, programs=tuple(replace(program, type="NEMA") for program in signal.programs))
    street = replace(grid_street, signals={**grid_street.signals, signal.id: nema})
    with pytest.raises(InputError, match="has type NEMA now") if matters else contextlib.nullcontext():
        check_contract_matches_network(made, street)
    made.signals[0].phases[0].duration_s += 1
    with pytest.raises(InputError, match="other durations") if matters else contextlib.nullcontext():
        check_contract_matches_network(made, grid_street)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--infer-tl", "SA 9"), ("SA9 is not one of the TLs", "SA101")),
        (("--server", "127.0.0.1:1"), ("no model server answers at 127.0.0.1:1", "greenserve serve")),
        (("--model-number", "9"), ("serves no model SA101 version 9", "it serves version 1")),
        (("--no-guard", "--sumo", "127.0.0.1:1"), ("no SUMO listens at 127.0.0.1:1",)),
        (("--", "--route-files", "nowhere.rou.xml"), ("SUMO ended before", "nowhere.rou.xml")),
        (
            ("--end", "50", "--http", "127.0.0.1:0", "--", "--begin", "60"),
            ("--end 50: the simulation is already at second 60",),
        ),
    ],
)
def test_start_that_cannot_succeed_is_refused(capsys, grid_server, monkeypatch, flags, parts):
    monkeypatch.setattr("controller.sumo.start.ATTACH_TIMEOUT_S", 0.1)
    refused(capsys, main(["--city", CITY, "--server", grid_server, *flags]), *parts)


def test_port_in_use_is_refused(capsys, grid_server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, parts in (
            (("--clients", "2", "--sumo-port", port), (f"--sumo-port {port}: cannot listen on it",)),
            (("--http", f"127.0.0.1:{port}"), ("cannot serve metrics", "--http")),
        ):
            refused(capsys, main(["--city", CITY, "--server", grid_server, *flags]), *parts)


@pytest.mark.parametrize(
    ("change", "flags", "parts"),
    [
        (
            ("tl.SA108", "tl.SA999"),
            ("--infer-tl", "SA101,SA999"),
            ("serves no model SA999", "greenserve export --tl SA999"),
        ),
        # before the server is asked
        (
            ('[tl.SA101]\nsignals = ["A0"]', '[tl.SA101]\nsignals = ["Z9"]'),
            ("--server", "127.0.0.1:1"),
            ("[tl.SA101] signal Z9 is not in",),
        ),
    ],
    ids=["model that is not served", "unknown signal"],
)
def test_city_that_does_not_fit_is_refused(capsys, grid_server, tmp_path, change, flags, parts):
    refused(capsys, main(["--city", write_city(tmp_path, change), "--server", grid_server, *flags]), *parts)


def test_model_that_is_not_a_policy_is_refused_with_how_to_export_it(tmp_path):
    saved_models.write_dtypes(tmp_path / "dtypes" / "1")
    message = r"model dtypes version 1 has no policy contract \(.*\); export it \(greenserve export --tl dtypes\)"
    settings = ServerConfig(tmp_path, port=0, poll_s=0, allow_any_operation=True)
    with connected(settings) as (_, client), pytest.raises(InputError, match=message):
        fetch_contracts(client, ["dtypes"], 1)


def test_invalid_and_contradicting_flags_are_refused(capsys):
    for flags, message in (
        (["--sumo", "127.0.0.1:1", "--seed", "3"], "--seed is for a SUMO started here"),
        (["--libsumo", "--clients", "2"], "--libsumo has no other clients"),
        (["--server", "nonsense"], "must be HOST:PORT"),
        (["--deadline-ms", "0"], "must be above 0"),
        (["--tripinfo", "no folder/trips.xml"], "no folder/trips.xml: there is no folder"),
        (["--clients", "0"], "must lie between 1"),
        (["--end", "nan"], "argument --end: 'nan' is not a time; write seconds"),
        (["--end", "08:15"], "such as 08:15:00, or seconds, such as 29700"),
        (["--end", "-1"], "must be a simulated second"),
        (["--infer-tl", "A0"], "--infer-tl: A0 is a signal, which belongs to TL SA101; pass SA101"),
        (["--seed", "-5"], "--seed -5 must lie between 0 and 2147483647"),
        (["--model-number", "99999999999999999999"], "must be a version"),
        (["--summary", "/nonexistent/x.json"], "there is no folder /nonexistent"),
        (["--summary", "/"], "is a folder"),
        (["--summary", "x" * 300], "too long; name another path"),
        (["--order", "99999999999"], "--order 99999999999 must lie"),
        (["--order", "-1"], "--order -1 must lie between 0 and"),
        (["--clients", "2", "--sumo-port", "70000"], "--sumo-port 70000 must lie between"),
        (["--server", "unix:/" + "x" * 107], "107 bytes"),
        (["--fleet", "a/b"], "--fleet: 'a/b' is not a valid TL name"),
        (["--clients", "2", "--deadline-ms", "9000"], "set watchdog_s to at least twice the deadline"),
    ):
        refused(capsys, main(["--city", CITY, *flags]), message)


@pytest.mark.parametrize(
    ("target", "message"), [("gone/x.json", "there is no folder"), ("link", "is a symbolic link to itself")]
)
def test_summary_that_is_a_link_is_checked_at_its_target(capsys, tmp_path, target, message):
    (tmp_path / "link").symlink_to(tmp_path / target)
    refused(capsys, main(["--city", CITY, "--summary", str(tmp_path / "link")]), message)


@pytest.mark.parametrize("make", ["touch", "symlink_to"])
def test_temporary_folder_that_cannot_hold_a_guards_pid_file_is_refused(
    capsys, grid_server, tmp_path, monkeypatch, make
):
    (tmp_path / "elsewhere").mkdir()
    getattr(tmp_path / f"greenserve-{os.getuid()}", make)(*[tmp_path / "elsewhere"] * (make == "symlink_to"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    refused(
        capsys,
        main(["--city", CITY, "--server", grid_server, "--clients", "2", "--sumo-port", str(free_port())]),
        "is a link or a file",
        "set TMPDIR",
        "--no-guard",
    )


UNREADABLE = "SUMO sent an answer that cannot be read ("


@contextlib.contextmanager
def damaging_sumo(damage):
    """A server that answers TraCI commands with damaged bytes, or closes the connection if None; yields its port."""

    class Connection(socketserver.StreamRequestHandler):
        def handle(self):
            command = None
            while damage is not None and command != wire.CLOSE and (length := self.rfile.read(4)):
                command = self.rfile.read(int.from_bytes(length) - 4)[1]
                is_kept = command in (wire.SETORDER, wire.CLOSE)
                content = wire.ok(command)[4:] + (b"" if is_kept else damage(command))
                with contextlib.suppress(OSError):
                    self.wfile.write((len(content) + 4).to_bytes(4) + content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    ("damage", "flags", "message"),
    [
        pytest.param(lambda command: b"", ["--no-guard"], UNREADABLE, id="missing"),
        pytest.param(lambda command: b"\x06\x00\x00", ["--no-guard"], UNREADABLE, id="cut"),
        pytest.param(
            lambda command: bytes([9, command, 0, 0, 0, 1, 0x7F, 0xFF, 0xFF]), ["--no-guard"], UNREADABLE, id="longer"
        ),
        pytest.param(lambda command: b"\x06\x00\x00", [], UNREADABLE, id="cut, through a guard"),
        pytest.param(None, ["--no-guard"], "closed the connection", id="closed"),
        pytest.param(None, [], "closed the connection", id="closed, through a guard"),
    ],
)
def test_port_that_does_not_answer_as_sumo_does_is_one_error_line(
    capsys, grid_server, tmp_path, monkeypatch, damage, flags, message
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with damaging_sumo(damage) as port:
        refused(capsys, main(["--city", CITY, "--server", grid_server, "--sumo", f"127.0.0.1:{port}", *flags]), message)


def test_simulation_past_its_end_is_refused():
    simulation = SimpleNamespace(getTime=lambda: 34838.0, getEndTime=lambda: 3600.0)
    link = SimpleNamespace(api=SimpleNamespace(simulation=simulation))
    with pytest.raises(InputError, match="at second 34838, its end was 3600"):
        daemon.control_end_s(SimpleNamespace(end_s=None), link)
    simulation.getTime = lambda: 3599.0
    assert daemon.control_end_s(SimpleNamespace(end_s=None), link) == 3600


def test_links_of_the_file_and_of_sumo_are_compared(grid_street):
    links = [[("x_0", "y_0", ":z")]] * len(grid_street.signals["A0"].links)
    api = SimpleNamespace(getIDList=lambda: ["A0"], getControlledLinks=lambda signal: links)
    other = SimpleNamespace(trafficlight=api)
    with pytest.raises(InputError, match=r"SUMO runs 12 links .* or their lanes differ; lanes only in the file"):
        running_signals(other, grid_street, ["A0"])
    with pytest.raises(InputError, match="signal B1 is not in the running simulation; it has A0"):
        running_signals(other, grid_street, ["B1"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "city.toml: no such file"),
        ("[network]\nnet = 'x.net.xml'\n", "describes no TL"),
        ("[tl.SA101]\nsignals = ['A0']\ndialect = 'sumo-rl'\n", "neither sumocfg nor net"),
    ],
)
def test_a_city_that_is_missing_or_lacks_tls_or_a_network_is_refused(capsys, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "city.toml").write_text(content)
    refused(capsys, main([]), message)
