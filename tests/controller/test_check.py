"""`greenserve check`: every TL's contract compared with the network."""

import re
import shutil
from pathlib import Path

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
from tests.error_lines import assert_refused
from tests.sample_city import write_city
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.fake_server import Fake, answer


@pytest.fixture
def city(grid_models, tmp_path):
    return Path(write_city(tmp_path, ('models_dir = "models"', f'models_dir = "{grid_models}"')))


def table(capsys):
    captured = capsys.readouterr()
    assert captured.err == ""
    header, *rows, total = captured.out.splitlines()
    assert header.split() == ["TL", "VERSION", "DIALECT", "CONTRACT"]
    return {row.split()[0]: row.split(maxsplit=3) for row in rows}, total


def test_sample_city_fits_and_every_tl_has_a_row(city, capsys, grid_city):
    assert main(["--city", str(city)]) == 0
    rows, total = table(capsys)
    assert list(rows) == list(grid_city.tls)
    assert rows["SA101"] == ["SA101", "1", "sumo-rl", "matches"] and rows["SA103"] == ["SA103", "1", "sappo", "matches"]
    assert {row[3] for row in rows.values()} == {"matches"}
    assert total == f"8 of 8 TLs match the network {GRID / 'grid.net.xml'}"


def test_tl_without_a_model_is_named_with_how_to_export_it(city, capsys):
    city.write_text(re.sub(r"models_dir = .*", 'models_dir = "none"', city.read_text()))
    assert main(["--city", str(city), "--infer-tl", "SA101"]) == 2
    assert "SA101: holds no version; export it (greenserve export --tl SA101)" in table(capsys)[0]["SA101"][3]


def test_times_to_train_with_are_printed_without_a_model_until_city_toml_has_them(city, capsys):
    text = re.sub(r"models_dir = .*", 'models_dir = "none"', city.read_text()).replace(
        "all_red_s = 0 ", "all_red_s = 2 "
    )
    city.write_text(text)
    assert main(["--city", str(city), "--infer-tl", "SA101,SA102,SA103"]) == 2
    *_, advice, header, first, second = capsys.readouterr().out.splitlines()
    assert advice.startswith("To train outside greenserve, append") and header == "[training.times]"
    assert (first, second) == ("SA101 = { yellow_s = 3, all_red_s = 2 }", "SA102 = { yellow_s = 3, all_red_s = 2 }")
    city.write_text("\n".join((text, header, first, second, "")))
    assert main(["--city", str(city), "--infer-tl", "SA101,SA102,SA103"]) == 2
    assert "[training.times]" not in capsys.readouterr().out


def test_tl_that_does_not_fit_has_its_reason_in_its_row(city, capsys):
    text = city.read_text().replace('[tl.SA103]\nsignals = ["A2"]', '[tl.SA103]\nsignals = ["A9"]')
    city.write_text(text + '\n[tl.SA999]\nsignals = ["Z9"]\ndialect = "sumo-rl"\n')
    assert main(["--city", str(city)]) == 2
    rows, total = table(capsys)
    assert "[tl.SA103] signal A9 is not in" in rows["SA103"][3] and "it has A0, A1, " in rows["SA103"][3]
    assert rows["SA999"][1:3] == ["-", "sumo-rl"] and "[tl.SA999] signal Z9 is not in" in rows["SA999"][3]
    assert rows["SA101"][3] == "matches" and total.startswith("7 of 9 TLs match")


def test_selected_tls_and_versions_are_checked(city, capsys):
    assert main(["--city", str(city), "--infer-tl", "SA102"]) == 0
    assert list(table(capsys)[0]) == ["SA102"]
    assert main(["--city", str(city), "--infer-tl", "SA102", "--model-number", "9"]) == 2
    assert table(capsys)[0]["SA102"][3] != "matches"


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


def test_contract_of_a_fleet_is_requested_once_over_one_connection(city, capsys, grid_city, fleet_server, monkeypatch):
    address, requests = fleet_server
    opened = []
    monkeypatch.setattr(
        client, "open_channel", lambda *arguments: opened.append(arguments) or channel.open_channel(*arguments)
    )
    assert main(["--city", str(city), "--server", address, "--fleet", "city"]) == 0
    assert table(capsys)[1].startswith("8 of 8 TLs match")
    assert requests.count(("city", 0)) == 1 and len(requests) == len(grid_city.tls) + 1
    assert len(opened) == 1


def test_district_and_label_select_the_models_as_for_control(city, capsys, fleet_server):
    address, requests = fleet_server
    all_tls = re.findall(r"^\[tl\.(\w+)\]", city.read_text(), re.M)
    rest = ", ".join(f'"{tl}"' for tl in all_tls if tl not in ("SA101", "SA102"))
    districts = (
        f'\n[serving.districts.north]\naddress = "{address}"\nfleet = "city"\ntls = ["SA101", "SA102"]\n'
        f'[serving.districts.south]\naddress = "127.0.0.1:1"\ntls = [{rest}]\n'
    )
    city.write_text(city.read_text() + districts)
    assert main(["--city", str(city), "--district", "north", "--version-label", "stable"]) == 0
    rows, _ = table(capsys)
    assert list(rows) == ["SA101", "SA102"] and ("city", "stable") in requests
    assert main(["--city", str(city), "--district", "south"]) == 2
    assert "no model server answers at 127.0.0.1:1" in capsys.readouterr().err


def test_certificates_of_city_toml_are_used(city, capsys, grid_models, tmp_path):
    authority = pair("authority")
    (tmp_path / "ca.pem").write_bytes(authority[1])
    key, certificate, *_ = pair("server", authority)
    ssl = SSLConfig(server_key=key, server_cert=certificate)
    with running(ServerConfig(grid_models, port=0, poll_s=0, warm_up=False, ssl=ssl)) as server:
        flags = ["--city", str(city), "--infer-tl", "SA101", "--server", f"127.0.0.1:{server.port}"]
        assert main(flags) == 2
        assert "no model server answers" in capsys.readouterr().err
        city.write_text(city.read_text().replace("[serving]", f'[serving]\ntls_ca = "{tmp_path / "ca.pem"}"'))
        assert main(flags) == 0


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
    assert main(["--city", str(city), *flags]) == 2
    assert_refused(capsys, message)


def test_path_that_cannot_be_used_gives_one_error_line(city, capsys, grid_models):
    city.write_text(city.read_text().replace(str(grid_models), "x" * 300))
    assert main(["--city", str(city)]) == 2
    assert_refused(capsys, "File name too long; name another path")


def test_changes_that_take_much_longer_than_in_training_are_reported(city, capsys):
    city.write_text(city.read_text().replace("all_red_s = 0", "all_red_s = 6"))
    assert main(["--city", str(city), "--infer-tl", "SA101,SA103"]) == 0
    total, slow, greens, remedy, _, header, times = capsys.readouterr().out.splitlines()[-7:]
    assert (header, times) == ("[training.times]", "SA101 = { yellow_s = 3, all_red_s = 6 }")
    assert total.startswith("2 of 2 TLs match")
    assert slow == "changing greens takes much longer than in training: SA101 (9 s, not 3 s)"
    assert greens.startswith("SA101: greens last at least 3 times") and remedy.startswith("[safety] in city.toml")


def test_programs_with_less_red_than_computed_are_named_with_the_remedy(city, capsys):
    text = city.read_text()
    city.write_text(text.replace("all_red_s = 0 ", "# "))
    assert main(["--city", str(city)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "all_red_s" in line]
    (line,) = lines
    assert line.startswith("programs have less red before a foe's green than vehicles need to clear the junction: SA10")
    assert line.count("(0 s, not ") == 5 and line.endswith(
        ' and 3 more; all_red_s = "computed" under [safety] in city.toml adds it'
    )
    city.write_text(text.replace("all_red_s = 0 ", 'all_red_s = "computed" '))
    assert main(["--city", str(city)]) == 0
    assert "programs have less red" not in capsys.readouterr().out


def test_street_tl_without_a_model_is_told_whether_the_shipped_policy_fits(city, grid_street, capsys):
    links = len(grid_street.signals["A1"].links)
    phases = "".join(f'<phase duration="{s}" state="{c * links}"/>' for s, c in ((30, "g"), (3, "y"), (5, "r")))
    folder = city.parent
    (folder / "one.add.xml").write_text(
        f'<add><tlLogic id="A1" type="static" programID="one" offset="0">{phases}</tlLogic></add>'
    )
    files = f'<net-file value="{GRID / "grid.net.xml"}"/><additional-files value="one.add.xml"/>'
    (folder / "one.sumocfg").write_text(f"<configuration><input>{files}</input></configuration>")
    tables = "".join(
        f'[tl.{tl}]\nsignals = ["{signal}"]\ndialect = "street"\n' for tl, signal in (("SA101", "A0"), ("SA102", "A1"))
    )
    city.write_text(f'[network]\nsumocfg = "one.sumocfg"\n{tables}')
    assert main(["--city", str(city), "--strict"]) == 2
    rows, _ = table(capsys)
    assert rows["SA101"][3].startswith("no model yet; the shipped policy fits its 4 greens and ")
    assert rows["SA101"][3].endswith("lanes: greenserve export --pretrained --tl SA101")
    assert "has one green, so there is nothing to choose" in rows["SA102"][3]


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


def test_stored_models_other_than_the_ledgers_are_named(city, ledger, capsys, tmp_path):
    argv = ["--city", str(city), "--infer-tl", "SA101"]
    assert main(argv) == 0
    (tmp_path / "models" / "SA101" / "1" / "assets.extra" / "later").write_text("x")
    assert main(argv) == 2
    assert "SA101/1 has other files than in the ledger; publish the ledger's number again" in capsys.readouterr().out
    assert main([*argv, "--ledger", str(tmp_path / "none.jsonl")]) == 2
    assert_refused(capsys, "none.jsonl: there is no ledger")
    adopt(ledger, Model(2, "f" * 64))
    assert main(argv) == 2 and "SA101/2 is missing" in capsys.readouterr().out
    (tmp_path / "ledger.jsonl").write_text(ledger.path.read_text().replace("ann", "bob", 1))
    assert main(argv) == 2
    assert_refused(capsys, "ledger.jsonl: line 2", "restore the file from its copy")


def test_served_models_other_than_the_ledgers_are_named(city, ledger, capsys, grid_models, fleet_server):
    policy = VersionPolicy(latest=None, specific=(1,))
    labelled = ModelConfig("SA101", grid_models / "SA101", policy, {"stable": 1})
    argv = ["--city", str(city), "--infer-tl", "SA101", "--server"]
    with running(ServerConfig(port=0, models={"SA101": labelled}, poll_s=0)) as server:
        assert main([*argv, f"127.0.0.1:{server.port}"]) == 0
        adopt(ledger, Model(2, "f" * 64))
        assert main([*argv, f"127.0.0.1:{server.port}"]) == 2
        assert "SA101: 1 is served as stable, the ledger says 2" in capsys.readouterr().out
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        assert main([*argv, f"127.0.0.1:{server.port}"]) == 2
        assert "SA101: the ledger says 2: " in capsys.readouterr().out, "no label"


def test_a_fleets_members_are_compared_with_the_ledger(city, ledger, capsys, fleet_server):
    argv = ["--city", str(city), "--infer-tl", "SA101", "--server", fleet_server[0], "--fleet", "city"]
    assert main(argv) == 2 and "SA101: 3 is served as stable, the ledger says 1" in capsys.readouterr().out
    adopt(ledger, Model(3, "f" * 64))
    assert main(argv) == 0


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
def test_longest_red_is_refused_or_noted_if_it_bounds_nothing(bound, row, note, city, capsys):
    phases = "".join(f'<phase duration="30" state="{state}"/>' for state in ("GGgrrgGGgrrg", "rrgGggrrgGgg"))
    program = f'<add><tlLogic id="A1" type="static" programID="two" offset="0">{phases}</tlLogic></add>'
    (city.parent / "two.add.xml").write_text(program)
    files = f'<net-file value="{GRID / "grid.net.xml"}"/><additional-files value="two.add.xml"/>'
    (city.parent / "two.sumocfg").write_text(f"<configuration><input>{files}</input></configuration>")
    table_of_tl = f'[tl.SA102]\nsignals = ["A1"]\ndialect = "street"\nmax_red_s = {{ {bound} = 90 }}\n'
    city.write_text(f'[network]\nsumocfg = "two.sumocfg"\n{table_of_tl}')
    assert main(["--city", str(city)]) == 2
    output = capsys.readouterr().out
    assert row in output and ("bounds no link" in output) == bool(note) and note in output
