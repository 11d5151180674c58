"""What does not fit is refused before any signal is touched: one line, exit code 2."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from city import config, network
from city.errors import InputError
from city.network import Phase
from controller import daemon
from controller.__main__ import main
from controller.sumo.network import RunningSignal, check_city, check_contract, check_running
from export import contract
from protos import policy_pb2 as pb
from tests.conftest import GRID
from tests.end_to_end.programs import CITY, free_port


def refused(capsys, *told):
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in err, err
    for words in told:
        assert words in lines[0], lines[0]


class TestTheCity:
    """The served models against city.toml."""

    def contracts(self, grid_city, grid_street, *tls):
        return {tl: contract.build(grid_city, grid_city.tls[tl], grid_street) for tl in tls}

    def test_the_sample_city_fits(self, grid_city, grid_street):
        check_city(grid_city, self.contracts(grid_city, grid_street, *grid_city.tls))

    def test_a_model_of_another_signal_than_the_city_says_is_refused(self, grid_city, grid_street):
        contracts = self.contracts(grid_city, grid_street, "SA101", "SA102")
        contracts["SA102"].signal_ids[0] = "A0"
        with pytest.raises(InputError, match=r"SA102: .* says signals A1, but the served model was exported for A0"):
            check_city(grid_city, contracts)

    def test_a_model_of_another_dialect_is_refused(self, grid_city, grid_street):
        contracts = self.contracts(grid_city, grid_street, "SA103")
        contracts["SA103"].action.kind = "gro"
        with pytest.raises(InputError, match="says action kc, but the served model was exported for gro"):
            check_city(grid_city, contracts)

    def test_one_signal_in_two_contracts_is_refused(self, grid_city, grid_street):
        contracts = self.contracts(grid_city, grid_street, "SA101", "SA102")
        tls = {**grid_city.tls, "SA102": replace(grid_city.tls["SA102"], signals=("A0",))}
        contracts["SA102"].signal_ids[0] = "A0"
        with pytest.raises(InputError, match="signal A0 is in the contracts of both SA101 and SA102"):
            check_city(replace(grid_city, tls=tls), contracts)


class TestTheContract:
    @pytest.fixture
    def policy(self, grid_city, grid_street):
        made = contract.build(grid_city, grid_city.tls["SA101"], grid_street)
        copy = pb.PolicyContract()
        copy.CopyFrom(made)
        return copy

    def test_the_trained_street_fits(self, policy, grid_street):
        check_contract(policy, grid_street)

    def test_an_incomplete_contract_is_refused_by_name(self, policy, grid_street):
        policy.missing.append("timing")
        with pytest.raises(InputError, match=r"contract of SA101 is incomplete: it lacks timing"):
            check_contract(policy, grid_street)

    def test_another_signal_is_refused(self, policy, grid_street):
        with pytest.raises(InputError, match=r"another signal A0: the network .* has none of this name"):
            check_contract(policy, replace(grid_street, signals={"Z9": grid_street.signals["A0"]}))

    def test_a_lost_lane_is_named(self, policy, grid_street):
        signal = grid_street.signals["A0"]
        street = replace(grid_street, signals={"A0": replace(signal, lanes=signal.lanes[:-1])})
        with pytest.raises(InputError, match=rf"8 lanes then, 7 now \(gone: {signal.lanes[-1]}; new: none\)"):
            check_contract(policy, street)

    def test_other_phases_are_refused(self, policy, grid_street):
        policy.signals[0].phases[0].state = "G" * 12
        with pytest.raises(InputError, match="has other phases now"):
            check_contract(policy, grid_street)

    def test_phases_that_no_signal_under_control_may_show_are_refused(self, policy, grid_street):
        signal = grid_street.signals["A0"]
        trained = next(p for p in signal.programs if p.id == policy.signals[0].program_id)
        policy.signals[0].phases[1].state = off = "o" * len(signal.links)
        states = [phase.state for phase in policy.signals[0].phases]
        phases = tuple(Phase(state, p.duration_s, p.min_s, p.max_s) for state, p in zip(states, trained.phases, strict=True))
        program = replace(trained, phases=phases)
        running = {"A0": RunningSignal(program.id, states[0], {program.id: program})}
        with pytest.raises(InputError, match=rf"SA101: signal A0: phase '{off}' of program .* out of r, y, g, G, s and u"):
            check_running(policy, running, None, grid_street)

    def test_other_durations_matter_to_actions_on_plans_only(self, grid_city, grid_street):
        for tl, matters in (("SA103", False), ("SA107", True)):
            policy = contract.build(grid_city, grid_city.tls[tl], grid_street)
            policy.signals[0].phases[0].duration_s += 1
            with pytest.raises(InputError, match="other durations") if matters else contextlib.nullcontext():
                check_contract(policy, grid_street)

    def test_a_contract_that_contradicts_itself_is_refused(self, policy, grid_street):
        policy.observation.size += 1
        with pytest.raises(InputError, match="21 features for an observation of 22"):
            check_contract(policy, grid_street)

    @pytest.mark.parametrize(
        ("tl", "change", "told"),
        [
            ("SA101", lambda p: setattr(p.action, "size", 7), "action size 7, but its signals give 4"),
            ("SA103", lambda p: setattr(p.action, "size", 3), "action size 3, but its signals give 1"),
            ("SA108", lambda p: setattr(p.action, "size", 1), "action size 1, but its signals give 2"),
            ("SA107", lambda p: setattr(p.action, "kind", "grx"), "has action 'grx'"),
            ("SA101", lambda p: setattr(p.action, "kind", "kc"), "has action 'kc'"),
            ("SA101", lambda p: p.observation.features.reverse(), "or others"),
            ("SA101", lambda p: setattr(p.timing, "decision_interval_s", 0), "decision_interval_s 0"),
            ("SA107", lambda p: setattr(p.timing, "control_cycle", 0), "control_cycle 0"),
            ("SA103", lambda p: setattr(p.observation, "state", "q"), "unknown state 'q'"),
        ],
    )
    def test_sizes_kinds_and_features_are_computed_again(self, grid_city, grid_street, tl, change, told):
        policy = contract.build(grid_city, grid_city.tls[tl], grid_street)
        change(policy)
        with pytest.raises(InputError, match=told):
            check_contract(policy, grid_street)


def test_a_server_that_is_not_there(capsys):
    assert main(["--city", CITY, "--server", f"127.0.0.1:{free_port()}"]) == 2
    refused(capsys, "no model server answers at 127.0.0.1:", "python -m serving")


def test_a_model_that_is_not_there(capsys, grid_server, tmp_path):
    text = (GRID / "city.toml").read_text().replace("grid.sumocfg", str(GRID / "grid.sumocfg")).replace("tl.SA108", "tl.SA999")
    (tmp_path / "city.toml").write_text(text)
    assert main(["--city", str(tmp_path / "city.toml"), "--server", grid_server, "--infer-tl", "SA101,SA999"]) == 2
    refused(capsys, "serves no model SA999", "python -m export --tl SA999")
    assert main(["--city", CITY, "--server", grid_server, "--model-number", "9"]) == 2
    refused(capsys, "serves no model SA101 version 9", "it serves version 1")


def test_an_unknown_tl(capsys, grid_server):
    assert main(["--city", CITY, "--server", grid_server, "--infer-tl", "SA 9"]) == 2
    refused(capsys, "no TL SA9", "SA101")


def test_a_sumo_that_is_not_there(capsys, grid_server, monkeypatch):
    monkeypatch.setattr("controller.sumo.start.ATTACH_S", 0.1)
    assert main(["--city", CITY, "--server", grid_server, "--no-guard", "--sumo", f"127.0.0.1:{free_port()}"]) == 2
    refused(capsys, "no SUMO listens at 127.0.0.1:")


def test_what_the_guard_cannot_do_is_told_by_the_controller(capsys, grid_server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--city", CITY, "--server", grid_server, "--clients", "2", "--sumo-port", port]) == 2
        refused(capsys, f"--sumo-port {port}: cannot be listened on")


def test_a_sumo_that_ends_at_its_start_tells_why(capsys, grid_server):
    assert main(["--city", CITY, "--server", grid_server, "--", "--route-files", "nowhere.rou.xml"]) == 2
    refused(capsys, "SUMO ended before", "nowhere.rou.xml")


def test_an_end_before_the_beginning(capsys, grid_server):
    assert main(["--city", CITY, "--server", grid_server, "--end", "50", "--http", "127.0.0.1:0", "--", "--begin", "60"]) == 2
    refused(capsys, "--end 50 lies before second 60")


def test_a_running_network_that_lost_a_lane(capsys, grid_server, tmp_path):
    for name in ("city.toml", "grid.sumocfg", "fixed_time.add.xml", "demand.rou.xml"):
        shutil.copy(GRID / name, tmp_path)
    net = (GRID / "grid.net.xml").read_text()
    kept = [line for line in net.splitlines() if not (' tl="A0"' in line and 'linkIndex="2"' in line)]
    (tmp_path / "grid.net.xml").write_text("\n".join(kept))
    assert main(["--city", str(tmp_path / "city.toml"), "--server", grid_server]) == 2
    refused(capsys, "SA101", "signal A0", "lanes then, 7 now", "gone: ")


def test_flags_that_do_not_go_together(capsys):
    for flags, told in (
        (["--sumo", "127.0.0.1:1", "--seed", "3"], "--seed is for a SUMO started here"),
        (["--libsumo", "--clients", "2"], "--libsumo has no other clients"),
        (["--server", "nonsense"], "must be HOST:PORT"),
        (["--deadline-ms", "0"], "must lie between"),
        (["--clients", "0"], "must be 1 at least"),
        (["--end", "nan"], "must be a simulated second"),
        (["--model-number", "99999999999999999999"], "must be a version"),
        (["--summary", "/nonexistent/x.json"], "there is no folder /nonexistent"),
        (["--summary", "/"], "is a folder"),
        (["--summary", "x" * 300], "too long; name one that can be used"),
        (["--order", "99999999999"], "--order 99999999999 must be"),
        (["--clients", "2", "--sumo-port", "70000"], "--sumo-port 70000 must lie between"),
        (["--server", "unix:/" + "x" * 107], "107 bytes at most"),
        (["--fleet", "a/b"], "--fleet: 'a/b' is no name"),
        (["--clients", "2", "--deadline-ms", "9000"], "make watchdog_s twice as long"),
    ):
        assert main(["--city", CITY, *flags]) == 2
        refused(capsys, told)


@pytest.mark.parametrize(
    ("target", "told"), [("gone/x.json", "there is no folder"), ("link", "a link that leads back to itself")]
)
def test_a_summary_that_is_a_link_is_judged_by_where_it_leads(capsys, tmp_path, target, told):
    (tmp_path / "link").symlink_to(tmp_path / target)
    assert main(["--city", CITY, "--summary", str(tmp_path / "link")]) == 2
    refused(capsys, told)


def test_a_temporary_folder_that_cannot_hold_a_guards_record(capsys, grid_server, tmp_path, monkeypatch):
    (tmp_path / f"greenserve-{os.getuid()}").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["--city", CITY, "--server", grid_server, "--clients", "2", "--sumo-port", str(free_port())]) == 2
    refused(capsys, "a guard cannot be started", "set TMPDIR", "--no-guard")


@pytest.mark.parametrize("words", [["--no-guard"], []])
def test_a_port_that_closes_the_connection_is_no_sumo(capsys, grid_server, words):
    def close():
        while True:
            with contextlib.suppress(OSError):
                visitor = listener.accept()[0]
                visitor.recv(1)
                visitor.close()
                continue
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = threading.Thread(target=close)
        closing.start()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["--city", CITY, "--server", grid_server, "--sumo", where, *words, "--http", "127.0.0.1:0"]) == 2
        listener.shutdown(socket.SHUT_RDWR)
        closing.join()
    refused(capsys, where, "closed the connection")


def test_a_simulation_that_is_past_its_end_is_refused():
    simulation = SimpleNamespace(getTime=lambda: 34838.0, getEndTime=lambda: 3600.0)
    link = SimpleNamespace(api=SimpleNamespace(simulation=simulation))
    with pytest.raises(InputError, match="at second 34838, and its end was 3600: nothing is left to control"):
        daemon._end(SimpleNamespace(end_s=None), None, link)
    simulation.getTime = lambda: 3599.0
    assert daemon._end(SimpleNamespace(end_s=None), None, link) == 3600


def test_a_city_that_is_not_there(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    refused(capsys, "city.toml: no such file", "--city")


def test_a_metrics_port_in_use(capsys, grid_server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--city", CITY, "--server", grid_server, "--http", f"127.0.0.1:{port}"]) == 2
    refused(capsys, "cannot serve metrics", "--http")


def test_the_file_and_the_running_network_are_compared_link_by_link(grid_street):
    from controller.sumo.network import running_signals

    class Other:
        """A simulation of another network under the same signal names."""

        class trafficlight:
            @staticmethod
            def getIDList():
                return ["A0"]

            @staticmethod
            def getControlledLinks(signal):
                return [[("x_0", "y_0", ":z")]] * len(grid_street.signals["A0"].links)

    with pytest.raises(InputError, match=r"SUMO runs 12 links .* or other lanes; lanes only in the file"):
        running_signals(Other, grid_street, ["A0"])
    with pytest.raises(InputError, match="signal B1 is not in the running simulation; it has A0"):
        running_signals(Other, grid_street, ["B1"])


def test_a_city_without_tls_controls_nothing(capsys, tmp_path):
    (tmp_path / "city.toml").write_text("[network]\nnet = 'x.net.xml'\n")
    assert main(["--city", str(tmp_path / "city.toml")]) == 2
    refused(capsys, "describes no TL")
    with pytest.raises(InputError, match="neither sumocfg nor net"):
        network.of_city(config.City(tmp_path / "city.toml"))
