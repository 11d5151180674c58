"""From a network to controlled signals with a policy for any junction: city init, export, fleet, check, serve,
control."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import grpc
import numpy as np
import pytest

from city import config, network
from city.errors import InputError
from controller.sumo.network import check_contract_matches_network
from export import pretrained
from export.actors.phase_competition import observations_at_bounds
from export.checkpoints import phase_networks
from export.fleets import export_fleet
from export.saved_model import read
from export.show import describe
from greenserve.__main__ import main
from protos import predict_pb2 as wire
from serving.contract import check_fleet, from_saved_model
from serving.embedded.config import ServerConfig
from serving.tensors import to_array, to_proto
from signals.policy_signals import greens_of
from tests.conftest import GRID, SHARED
from tests.export.compared_fleets import is_clear
from tests.export.exporting import refused, run
from tests.export.phase_competition_models import random_network
from tests.serving.conftest import running

COLOGNE = SHARED / "scenarios" / "cologne8" / "cologne8.sumocfg"
STREETS = {
    "grid": GRID / "grid.sumocfg",
    "cologne8": pytest.param(
        COLOGNE, marks=[pytest.mark.slow, pytest.mark.skipif(not COLOGNE.is_file(), reason="cologne8 is not at hand")]
    ),
}
CONTROLLED_S = 60


def write_policy(folder, seed=0, name="any"):
    folder.mkdir(exist_ok=True)
    network = random_network(np.random.default_rng(seed))
    phase_networks.save(folder / f"{name}.policy", network, {}, {"trained": "no"})
    return folder


@pytest.fixture(scope="module", params=STREETS.values(), ids=STREETS)
def folder(request, tmp_path_factory):
    """A folder with a city of the street dialect, the models of all its TLs and their fleet."""
    folder = tmp_path_factory.mktemp("street")
    city = folder / "city.toml"
    assert main(["city", "init", "--sumocfg", str(request.param), "--dialect", "street", "--out", str(city)]) == 0
    # answers may take long beside other tests
    text, changes = re.subn("(?m)^deadline_ms = .*", "deadline_ms = 30000", city.read_text())
    assert changes == 1
    city.write_text(text)
    flags = ["--city", str(city), "--tl", "all", "--models-dir", str(folder / "models")]
    assert main(["export", "--model-path", str(write_policy(folder / "policies")), *flags]) == 0
    assert main(["export", "fleet", "city", *flags]) == 0
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with running(ServerConfig(folder / "models", port=0, poll_s=0)) as server:
        yield f"127.0.0.1:{server.port}"


def fleet_of(folder):
    (version,) = (folder / "models" / "city").iterdir()
    contract = from_saved_model(version)
    check_fleet(contract)
    return version, contract


def observations_of(contract, rows, seed=0):
    """By TL, observations at the bounds of the rules."""
    rng = np.random.default_rng(seed)
    return {
        m.tl: observations_at_bounds(m.contract.action.size, len(m.contract.signals[0].approaches), rows, rng)
        for m in contract.members
    }


def test_served_models_and_their_fleet_choose_what_the_actors_in_numpy_choose(folder):
    version, contract = fleet_of(folder)
    x = observations_of(contract, 256)
    fleet = run(version, "serving_default", observation=np.concatenate([x[m.tl] for m in contract.members], 1))
    restricted = 0
    for member in contract.members:
        own = folder / "models" / member.tl / str(member.version)
        expected = read.read(own)[1].evaluate(x[member.tl], True)
        outputs = run(own, "serving_default", observation=x[member.tl])
        np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-4)
        clear = is_clear(expected, 1e-3)
        for action in (outputs["action"], fleet["action"][:, member.action_begin]):
            assert (action == expected.argmax(1))[clear].all() and clear.mean() > 0.5
        restricted += (expected > 0.999).sum()
    assert restricted > 100


def weights_of(version):
    return sorted((version / "variables").glob("*.data-*"))


def test_weights_of_a_policy_are_once_on_the_disk_and_once_in_memory(folder, tmp_path):
    models = {version.parent.name: version for version in (folder / "models").glob("[!c]*/*")}
    shared, own = zip(*map(weights_of, models.values()), strict=True)
    assert len({path.stat().st_ino for path in shared}) == 1 and len({path.stat().st_ino for path in own}) == len(own)
    assert not shared[0].stat().st_mode & 0o222, "who overwrites one would change all"
    _, members = export_fleet._read_members(models)
    assert len({id(member.actor.steps[0].network["lane_kernel_1"]) for member in members}) == 1


def test_another_policy_for_one_tl_leaves_the_weights_of_the_others(folder, tmp_path):
    models, city = tmp_path / "models", folder / "city.toml"
    first, second = list(config.load(city).tls)[:2]
    for tl in (first, second):  # whose weights stay one file
        shutil.copytree(folder / "models" / tl, models / tl, copy_function=os.link)
    before = [path.read_bytes() for path in weights_of(models / first / "1")]
    flags = ["--city", str(city), "--tl", second, "--models-dir", str(models), "--overwrite"]
    assert main(["export", "--model-path", str(write_policy(tmp_path / "other", 1)), *flags]) == 0
    assert [path.read_bytes() for path in weights_of(models / first / "1")] == before
    assert weights_of(models / second / "1")[0].read_bytes() != before[0]


def predict(server, model, x):
    """The actions of a batch of observations."""
    request = wire.PredictRequest(model_spec=wire.ModelSpec(name=model))
    to_proto(x, request.inputs["observation"])
    with grpc.insecure_channel(server) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=wire.PredictRequest.SerializeToString,
            response_deserializer=wire.PredictResponse.FromString,
        )
        return to_array(call(request, timeout=60).outputs["action"])


def test_embedded_server_answers_in_two_threads_whatever_the_batch(folder, server):
    """It loads only operations that it allows; a first graph of the fleet crashed with batches of 256."""
    _, contract = fleet_of(folder)
    x = {rows: observations_of(contract, rows) for rows in (1, 256)}
    tls = [member.tl for member in contract.members]
    requests = [("city", np.concatenate([x[rows][tl] for tl in tls], 1)) for rows in (1, 256)]
    requests += [(tl, x[rows][tl]) for tl in tls[:2] for rows in (1, 256)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda request: predict(server, *request), requests * 4))
    for k, actions in enumerate(answers):
        assert len(actions) == len(requests[k % len(requests)][1])
        np.testing.assert_array_equal(actions, answers[k % len(requests)])


@pytest.fixture
def longer(folder, tmp_path):
    """The city with changes that take longer than at the export."""
    path = tmp_path / "city.toml"
    path.write_text((folder / "city.toml").read_text().replace("min_yellow_s = 3", "min_yellow_s = 7"))
    return path


OTHER_TIMES = "change times differ from those at the export"


def test_check_compares_the_models_with_the_street_and_its_change_times(folder, server, longer, capsys):
    assert main(["check", "--city", str(folder / "city.toml"), "--server", server]) == 0
    out = capsys.readouterr().out
    _, contract = fleet_of(folder)
    tls = len(contract.members)
    assert f"{tls} of {tls} TLs match the network" in out and out.count(" street ") == tls and OTHER_TIMES not in out
    assert main(["check", "--city", str(longer), "--server", server]) == 0
    assert OTHER_TIMES in capsys.readouterr().out


def controlled(city, server, seconds, *flags):
    """Run the controller for some seconds; return its stderr."""
    end_s = network.of_city(config.load(city)).begin_s + seconds
    command = [sys.executable, "-m", "controller", "--city", str(city), "--server", server, "--end", str(end_s), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("transport", [[], ["--libsumo"]], ids=["traci", "libsumo"])
def test_a_minute_is_controlled_without_an_alarm_or_a_missing_answer(folder, server, transport, tmp_path):
    flags = ("--http", "127.0.0.1:0", "--summary", str(tmp_path / "summary.json"), *transport)
    assert OTHER_TIMES not in controlled(folder / "city.toml", server, CONTROLLED_S, *flags)
    figures = json.loads((tmp_path / "summary.json").read_text())
    _, contract = fleet_of(folder)
    assert {key: figures[key] for key in ("alarms", "missing_answers", "fallbacks", "rejections")} == {
        "alarms": 0, "missing_answers": 0, "fallbacks": 0, "rejections": 0,
    }  # fmt: skip
    assert figures["decisions"] == len(contract.members) * CONTROLLED_S / 5


def test_the_controller_warns_of_change_times_that_differ_from_those_at_the_export(server, longer):
    assert OTHER_TIMES in controlled(longer, server, 5, "--libsumo")


def test_describe_lists_the_actor_greens_lanes_features_and_fleet_members(folder, capsys):
    version, contract = fleet_of(folder)
    first = contract.members[0]
    assert main(["describe", str(folder / "models" / first.tl / str(first.version))]) == 0
    out = capsys.readouterr().out
    lane = first.contract.signals[0].approaches[0].lane_id
    assert "dialect    street" in out and f"arriving_soon {lane}" in out and "parity" in out
    signal = first.contract.signals[0]
    greens, lanes = greens_of(signal), len(signal.approaches)
    assert f"; {len(greens)} greens, {lanes} lanes\n" in out
    changes_s = np.reshape(signal.change_s, (len(greens), -1)).tolist()
    for green, own_s in zip(greens, changes_s, strict=True):
        assert f" {green}, change to each green: {' '.join(f'{round(s, 2):g}' for s in own_s)} s\n" in out
    assert out.count("\n    lane     ") == lanes and f"    lane     {lane}, links " in out
    assert main(["describe", str(version)]) == 0
    assert f"fleet      {len(contract.members)} TLs" in capsys.readouterr().out


def test_describe_names_the_phases_with_a_city(folder, capsys):
    member = fleet_of(folder)[1].members[0]
    flags = ["describe", "--city", str(folder / "city.toml"), str(folder / "models" / member.tl / str(member.version))]
    assert main(flags) == 0
    phases = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    phase ")]
    assert phases and all(re.search(r" s  (yellow for |all red|\w+bound |pedestrians )", line) for line in phases)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda approach: setattr(approach.exits[0], "length_m", 1.0), "was 1 m long, and is .* m long in"),
        (lambda approach: setattr(approach.upstream[-1], "limit_mps", 1.0), "has other links"),
        (lambda approach: approach.links.pop(), "has other links"),
    ],
    ids=["length", "limit", "link"],
)
def test_model_for_a_lane_that_is_another_now_is_refused(change, message, folder):
    _, contract = fleet_of(folder)
    built = contract.members[0].contract
    street = network.of_city(config.load(folder / "city.toml"))
    check_contract_matches_network(built, street)
    change(built.signals[0].approaches[0])
    with pytest.raises(InputError, match=rf"lane .* {message}.*export it again \(greenserve export --tl") as refusal:
        check_contract_matches_network(built, street)
    assert "\n" not in str(refusal.value)


# the policy that is part of the package


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A policy with random weights in the place of the package's."""
    monkeypatch.setattr(pretrained, "FOLDER", write_policy(tmp_path / "shipped", name="street-2"))
    return tmp_path


def test_pretrained_policy_is_exported_for_the_tls_of_a_street(shipped, folder):
    _, contract = fleet_of(folder)
    first, second = (member.tl for member in contract.members[:2])
    flags = ["--city", str(folder / "city.toml"), "--models-dir", str(shipped / "models"), "--tl"]
    assert main(["export", "--pretrained", *flags, f"{first},{second}"]) == 0
    assert {path.name for path in (shipped / "models").iterdir()} == {first, second}
    assert main(["export", "--pretrained", "--model-number", "7", *flags, first]) == 0
    assert (shipped / "models" / first / "7").is_dir()


def test_pretrained_policy_is_exported_for_a_signal_with_crossings(shipped, crossroads_net, capsys):
    city, models = shipped / "city.toml", shipped / "models"
    assert main(["city", "init", "--net", str(crossroads_net), "--dialect", "street", "--out", str(city)]) == 0
    flags = ["--city", str(city), "--tl", "all", "--models-dir", str(models)]
    assert main(["export", "--pretrained", *flags]) == 0
    (version,) = (models / "J").iterdir()
    assert main(["describe", str(version)]) == 0
    out = capsys.readouterr().out
    assert "    crossing :J_c0_0, links 22, 23; walking areas :J_w0, :J_w1\n" in out
    assert "vehicles_near :J_c2_0" in out and "10 lanes" not in out and "13 lanes" in out
    assert out.count("\n    lane     ") == 10


def test_pretrained_policy_for_another_dialect_is_refused(shipped, capsys):
    flags = ["--city", str(GRID / "city.toml"), "--tl", "SA101", "--models-dir", str(shipped / "models")]
    assert main(["export", "--pretrained", *flags]) == 2
    refused(
        capsys,
        "street-2.policy: is a policy for the dialect street, and city.toml has dialect sumo-rl for SA101",
        'dialect = "street"',
    )
    assert not (shipped / "models").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "city.toml: no such file"), ("[tl.A0]\n", "--pretrained needs a city.toml with a [network]")],
    ids=["no city", "no network"],
)
def test_pretrained_policy_needs_a_street(text, message, shipped, monkeypatch, capsys):
    monkeypatch.chdir(shipped)
    if text is not None:
        (shipped / "city.toml").write_text(text + 'signals = ["A0"]\ndialect = "street"\n')
    assert main(["export", "--pretrained", "--tl", "A0", "--models-dir", "models"]) == 2
    refused(capsys, message)


@pytest.mark.parametrize(
    "flag",
    [("--model-path", "x"), ("--scope", "x"), ("--output-tensor", "x"), ("--actor", "mlp"), ("--target-tls", "A0")],
)
def test_pretrained_policy_takes_no_checkpoint(flag, folder, capsys):
    assert main(["export", "--pretrained", "--city", str(folder / "city.toml"), "--tl", "all", *flag]) == 2
    refused(capsys, f"--pretrained takes no checkpoint; leave {flag[0]} out")


def test_describe_names_change_times_that_do_not_fit_the_greens(folder):
    _, contract = fleet_of(folder)
    signal = contract.members[0].contract.signals[0]
    del signal.change_s[-1]
    lines = list(describe._greens_and_lanes(signal))
    greens = len(greens_of(signal))
    assert lines[0] == f"    greens   unknown: {greens**2 - 1} change times for {greens} greens; export it again"
    assert len(lines) == 1 + len(signal.approaches)
