"""`greenserve check`: every TL's contract compared with the network."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from city.ledger import Line, Model
from city.ledger_file import LedgerFile
from controller.check import main
from controller.ledger_check import model_of
from protos import policy_pb2 as pb
from protos import predict_pb2 as wire
from protos.model_server_config_pb2 import SSLConfig
from serving.client import channel, client
from serving.embedded.config import ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import VersionPolicy
from signals import contract
from tests.city.ledgers import BEGIN
from tests.conftest import GRID
from tests.error_lines import refused
from tests.sample_city import write_city
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.fake_server import Fake, answer


@pytest.fixture
def city(grid_models, tmp_path):
    return Path(write_city(tmp_path, ('models_dir = "models"', f'models_dir = "{grid_models}"')))


@pytest.fixture
def check(city, capsys):
    """Run the command after changes of city.toml (texts, each with the one in its place); return its output."""

    def run(*flags, code=0, changes=(), more=""):
        text = city.read_text()
        for before, after in changes:
            assert before in text, before
            text = text.replace(before, after)
        city.write_text(text + more)
        assert main(["--city", str(city), *flags]) == code
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.fixture
def no_models(grid_models):
    return (f'models_dir = "{grid_models}"', 'models_dir = "none"')


def table(output):
    header, *rows, total = output.splitlines()
    assert header.split() == ["TL", "VERSION", "DIALECT", "CONTRACT"]
    return {row.split()[0]: row.split(maxsplit=3) for row in rows}, total


def test_sample_city_fits_and_every_tl_has_a_row(check, grid_city):
    rows, total = table(check())
    assert list(rows) == list(grid_city.tls)
    assert rows["SA101"] == ["SA101", "1", "sumo-rl", "matches"] and rows["SA103"] == ["SA103", "1", "sappo", "matches"]
    assert {row[3] for row in rows.values()} == {"matches"}
    assert total == f"8 of 8 TLs match the network {GRID / 'grid.net.xml'}"


def test_times_to_train_with_are_printed_without_a_model_until_city_toml_has_them(check, no_models):
    tls = ("--infer-tl", "SA101,SA102,SA103")
    output = check(*tls, code=2, changes=(no_models, ("all_red_s = 0 ", "all_red_s = 2 ")))
    *_, advice, header, first, second = output.splitlines()
    assert "SA101: holds no version; export it (greenserve export --tl SA101)" in output
    assert advice.startswith("To train outside greenserve, append") and header == "[training.times]"
    assert (first, second) == ("SA101 = { yellow_s = 3, all_red_s = 2 }", "SA102 = { yellow_s = 3, all_red_s = 2 }")
    assert "[training.times]" not in check(*tls, code=2, more="\n".join(("", header, first, second, "")))


def test_tl_that_does_not_fit_has_its_reason_in_its_row(check):
    change = ('[tl.SA103]\nsignals = ["A2"]', '[tl.SA103]\nsignals = ["A9"]')
    rows, total = table(check(code=2, changes=[change], more='\n[tl.SA999]\nsignals = ["Z9"]\ndialect = "sumo-rl"\n'))
    assert "[tl.SA103] signal A9 is not in" in rows["SA103"][3] and "it has A0, A1, " in rows["SA103"][3]
    assert rows["SA999"][1:3] == ["-", "sumo-rl"] and "[tl.SA999] signal Z9 is not in" in rows["SA999"][3]
    assert rows["SA101"][3] == "matches" and total.startswith("7 of 9 TLs match")


def test_selected_tls_and_versions_are_checked(check):
    assert list(table(check("--infer-tl", "SA102"))[0]) == ["SA102"]
    rows, _ = table(check("--infer-tl", "SA102", "--model-number", "9", code=2))
    assert "holds no version 9; it holds 1" in rows["SA102"][3]


@pytest.fixture
def fleet_server(grid_city, grid_street):
    """A server of a fleet alone, with its requests as (model, version or label)."""
    members = [
        pb.Member(tl=tl, version=3, contract=contract.build(grid_city, grid_city.tls[tl], grid_street))
        for tl in grid_city.tls
    ]
    for member in members:
        member.contract.origin.model_number = member.version
    fleet, requests = pb.PolicyContract(tl="city", members=members), []

    def respond(data, context):
        spec = wire.PredictRequest.FromString(data).model_spec
        requests.append((spec.name, spec.version_label or spec.version.value))
        if spec.name != "city":
            context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
        return answer(policy=np.array([fleet.SerializeToString()], object))

    server = Fake()
    server.answer = respond
    yield server.address, requests
    server.stop()


def test_contract_of_a_fleet_is_requested_once_over_one_connection(check, grid_city, fleet_server, monkeypatch):
    address, requests = fleet_server
    opened = Mock(side_effect=channel.open_channel)
    monkeypatch.setattr(client, "open_channel", opened)
    assert "8 of 8 TLs match" in check("--server", address, "--fleet", "city")
    assert requests.count(("city", 0)) == 1 and len(requests) == len(grid_city.tls) + 1
    assert opened.call_count == 1


def test_district_and_label_select_the_models_as_for_control(city, check, capsys, fleet_server):
    address, requests = fleet_server
    all_tls = re.findall(r"^\[tl\.(\w+)\]", city.read_text(), re.M)
    rest = ", ".join(f'"{tl}"' for tl in all_tls if tl not in ("SA101", "SA102"))
    districts = (
        f'\n[serving.districts.north]\naddress = "{address}"\nfleet = "city"\ntls = ["SA101", "SA102"]\n'
        f'[serving.districts.south]\naddress = "127.0.0.1:1"\ntls = [{rest}]\n'
    )
    rows, _ = table(check("--district", "north", "--version-label", "stable", more=districts))
    assert list(rows) == ["SA101", "SA102"] and ("city", "stable") in requests
    refused(capsys, main(["--city", str(city), "--district", "south"]), "no model server answers at 127.0.0.1:1")


def test_certificates_of_city_toml_are_used(city, check, capsys, grid_models, tmp_path):
    authority = pair("authority")
    (tmp_path / "ca.pem").write_bytes(authority[1])
    key, certificate, *_ = pair("server", authority)
    ssl = SSLConfig(server_key=key, server_cert=certificate)
    with running(ServerConfig(grid_models, port=0, poll_s=0, warm_up=False, ssl=ssl)) as server:
        flags = ["--infer-tl", "SA101", "--server", f"127.0.0.1:{server.port}"]
        refused(capsys, main(["--city", str(city), *flags]), "no model server answers")
        check(*flags, changes=[("[serving]", f'[serving]\ntls_ca = "{tmp_path / "ca.pem"}"')])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--infer-tl", "SA9"], "SA9 is not one of the TLs"),
        (["--city", "none.toml"], "none.toml: no such file"),
        (["--version-label", "stable"], "--version-label is for a model server; pass --server or --district"),
        (["--tls-ca", "ca.pem"], "--tls-ca is for a model server; pass --server or --district"),
        (["--version-label", "stable", "--model-number", "1"], "both select the version"),
        (["--model-number", "-1"], "--model-number -1 must be a version"),
        (["--district", "north"], "--district north: is not in"),
        (["--server", "127.0.0.1:1"], "no model server answers at 127.0.0.1:1"),
        (["--server", "nonsense"], "--server address 'nonsense' must be HOST:PORT"),
    ],
)
def test_wrong_input_gives_one_error_line(city, capsys, flags, message):
    refused(capsys, main(["--city", str(city), *flags]), message)


def test_path_that_cannot_be_used_gives_one_error_line(city, capsys, grid_models):
    city.write_text(city.read_text().replace(str(grid_models), "x" * 300))
    refused(capsys, main(["--city", str(city)]), "File name too long; name another path")


def test_changes_that_take_much_longer_than_in_training_are_reported(check):
    output = check("--infer-tl", "SA101,SA103", changes=[("all_red_s = 0", "all_red_s = 6")])
    total, slow, greens, remedy, _, header, times = output.splitlines()[-7:]
    assert (header, times) == ("[training.times]", "SA101 = { yellow_s = 3, all_red_s = 6 }")
    assert total.startswith("2 of 2 TLs match")
    assert slow == "changing greens takes much longer than in training: SA101 (9 s, not 3 s)"
    assert greens.startswith("SA101: greens last at least 3 times") and remedy.startswith("[safety] in city.toml")


def test_programs_with_less_red_than_computed_are_named_with_the_remedy(check):
    (line,) = [each for each in check(changes=[("all_red_s = 0 ", "#0 ")]).splitlines() if "all_red_s" in each]
    assert line.startswith("programs have less red before a foe's green than vehicles need to clear the junction: SA10")
    assert line.count("(0 s, not ") == 5 and line.endswith(
        ' and 3 more; all_red_s = "computed" under [safety] in city.toml adds it'
    )
    assert "programs have less red" not in check(changes=[("#0 ", 'all_red_s = "computed" ')])


def program_of_a1(city, tables, *phases):
    """Describe TLs with these tables, on a street in which signal A1 runs a program of (duration in s, state)."""
    written = "".join(f'<phase duration="{seconds}" state="{state}"/>' for seconds, state in phases)
    (city.parent / "a1.add.xml").write_text(
        f'<add><tlLogic id="A1" type="static" programID="a1" offset="0">{written}</tlLogic></add>'
    )
    files = f'<net-file value="{GRID / "grid.net.xml"}"/><additional-files value="a1.add.xml"/>'
    (city.parent / "a1.sumocfg").write_text(f"<configuration><input>{files}</input></configuration>")
    city.write_text(f'[network]\nsumocfg = "a1.sumocfg"\n{tables}')


def test_street_tl_without_a_model_is_told_whether_the_shipped_policy_fits(city, check, grid_street):
    links = len(grid_street.signals["A1"].links)
    tables = "".join(
        f'[tl.{tl}]\nsignals = ["{signal}"]\ndialect = "street"\n' for tl, signal in (("SA101", "A0"), ("SA102", "A1"))
    )
    program_of_a1(city, tables, (30, "g" * links), (3, "y" * links), (5, "r" * links))
    rows, _ = table(check("--strict", code=2))
    assert rows["SA101"][3].startswith("no model yet; the shipped policy fits its 4 greens and ")
    assert rows["SA101"][3].endswith("lanes: greenserve export --pretrained --tl SA101")
    assert "has one green, so there is nothing to choose" in rows["SA102"][3]
    assert "left on its own program: " in check("--infer-tl", "SA102")


@pytest.fixture
def ledger(city, grid_models, tmp_path):
    """A city with a folder of one model, which the ledger beside it has adopted."""
    city.write_text(re.sub(r"models_dir = .*", 'models_dir = "models"', city.read_text()))
    shutil.copytree(grid_models / "SA101", tmp_path / "models" / "SA101")
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    adopt(ledger, model_of(tmp_path / "models" / "SA101" / "1"))
    return ledger


def adopt(ledger, model):
    ledger.append(Line(0, "", "adopt", "ann", {"SA101": model}), BEGIN)


def test_stored_models_other_than_the_ledgers_are_named(city, ledger, check, capsys, tmp_path):
    check("--infer-tl", "SA101")
    (tmp_path / "models" / "SA101" / "1" / "assets.extra" / "later").write_text("x")
    message = "SA101/1 has other files than in the ledger; publish the ledger's number again"
    assert message in check("--infer-tl", "SA101", code=2)
    adopt(ledger, Model(2, "f" * 64))
    assert "SA101/2 is missing" in check("--infer-tl", "SA101", code=2)
    (tmp_path / "ledger.jsonl").write_text(ledger.path.read_text().replace("ann", "bob", 1))
    for flags, parts in (
        (["--ledger", str(tmp_path / "none.jsonl")], ["none.jsonl: there is no ledger"]),
        ([], ["ledger.jsonl: line 2", "restore the file from its copy"]),
    ):
        refused(capsys, main(["--city", str(city), "--infer-tl", "SA101", *flags]), *parts)


def test_served_models_other_than_the_ledgers_are_named(ledger, check, grid_models, fleet_server):
    policy = VersionPolicy(latest=None, specific=(1,))
    labelled = ModelConfig("SA101", grid_models / "SA101", policy, {"stable": 1})
    argv = ["--infer-tl", "SA101", "--server"]
    with running(ServerConfig(port=0, models={"SA101": labelled}, poll_s=0)) as server:
        check(*argv, f"127.0.0.1:{server.port}")
        adopt(ledger, Model(2, "f" * 64))
        message = "SA101: 1 is served as stable, the ledger says 2"
        assert message in check(*argv, f"127.0.0.1:{server.port}", code=2)
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        assert "SA101: the ledger says 2: " in check(*argv, f"127.0.0.1:{server.port}", code=2), "no label"


def test_a_fleets_members_are_compared_with_the_ledger(ledger, check, fleet_server):
    argv = ["--infer-tl", "SA101", "--server", fleet_server[0], "--fleet", "city"]
    assert "SA101: 3 is served as stable, the ledger says 1" in check(*argv, code=2)
    adopt(ledger, Model(3, "f" * 64))
    check(*argv)


@pytest.mark.parametrize(
    ("bound", "row", "note"),
    [
        ("left", "no model yet", "SA102: max_red_s left bounds no link: each is served by every green, or by none"),
        ("right", "no model yet", ""),
        ('"protected right"', "no model yet", ""),
        (
            '"protected left"',
            "no green has G for protected left; give the program one, or write left, which a",
            "protected left bounds no link",
        ),
    ],
)
def test_longest_red_is_refused_or_noted_if_it_bounds_nothing(bound, row, note, city, check):
    table_of_tl = f'[tl.SA102]\nsignals = ["A1"]\ndialect = "street"\nmax_red_s = {{ {bound} = 90 }}\n'
    program_of_a1(city, table_of_tl, (30, "GGgrrgGGgrrg"), (30, "rrgGggrrgGgg"))
    output = check(code=2)
    assert row in output and ("bounds no link" in output) == bool(note) and note in output
