"""TensorFlow Serving's files, parsed with its own messages, and its flags, compared with its own list."""

import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from socket import AF_INET, SOCK_STREAM

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_serving.config import model_server_config_pb2

from city import config as city_config
from export.__main__ import main as export
from protos import model_server_config_pb2 as wire
from protos.predict_pb2 import ModelSpec, ModelVersionStatus
from serving.__main__ import main as serve
from serving.client import Client
from serving.embedded import flags as embedded_flags
from serving.embedded.models import model_config
from serving.errors import BadRequest, ModelNotFound
from serving.tf_serving import publication
from serving.tf_serving.__main__ import main
from serving.tf_serving.config_files import FLAGS, Versions, intermediate_versions, with_previous_versions
from tests.conftest import GRID, ROOT
from tests.error_lines import refused
from tests.serving import certificates
from tests.serving.certificates import pair
from tests.serving.conftest import running

AVAILABLE = ModelVersionStatus.AVAILABLE
TLS = ("SA101", "SA102", "SA104", "SA105")


@pytest.fixture(scope="module")
def exported(grid_models, tmp_path_factory):
    """Four TLs, one with two versions, and a fleet of the first two."""
    folder = tmp_path_factory.mktemp("config") / "models"
    for tl in TLS:
        shutil.copytree(grid_models / tl, folder / tl)
    shutil.copytree(folder / "SA104" / "1", folder / "SA104" / "2")
    assert export(["fleet", "city", "--tl", "SA101,SA102", "--models-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


class Command:
    """Writes a folder of models into the folder `out`; returns its exit code. With a server it makes that follow."""

    def __init__(self, models_dir, out, *more):
        self.out, self.flags = out, ["--models-dir", str(models_dir), "--out", str(out), *map(str, more)]

    def __call__(self, *more, server=None):
        return main([*self.flags, *(["--server", f"127.0.0.1:{server.port}"] if server else []), *map(str, more)])

    def settings(self, **changes):
        """Settings of a server with the written files, which it never reads again."""
        found = embedded_flags.parse((self.out / "flags").read_text().splitlines())
        return replace(found, **{"port": 0, "rest": None, "config_poll_s": 0, **changes})


@pytest.fixture
def write(exported, out):
    return Command(exported, out)


@pytest.fixture
def publish(exported, out):
    """Has written files in which version 1 of SA104 is stable."""
    return published(exported, out)


def published(models_dir, out):
    command = Command(models_dir, out, "--mounted-at", models_dir, "--config-at", out)
    assert command("--model", "SA104=1") == 0 and command.settings().models["SA104"].labels == {"stable": 1}
    return command


def labelled(server):
    return server.manager.find(ModelSpec(name="SA104", version_label="stable"))[0]


def models(path):
    """The model configs of a folder's file by name, read with TensorFlow Serving's own message."""
    text = (path / "models.config").read_text()
    entries = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    return {entry.name: entry for entry in entries}


def pinned(path, model="SA104"):
    """(versions, labels) of a model in a folder's file."""
    entry = models(path)[model]
    return tuple(entry.model_version_policy.specific.versions), dict(entry.version_labels)


@pytest.mark.parametrize(
    ("flags", "names", "expected"),
    [
        ([], {"SA104", "SA105", "city"}, ((2,), {"stable": 2})),
        (["--all-models"], {*TLS, "city"}, ((2,), {"stable": 2})),
        (["--model", "SA104=1,2"], {"SA104", "SA105", "city"}, ((1, 2), {"stable": 1, "canary": 2})),
        (["--latest"], {"SA104", "SA105", "city"}, ((), {})),
    ],
)
def test_versions_are_pinned_and_labelled_and_a_fleet_stands_for_its_tls(write, out, capsys, flags, names, expected):
    assert write(*flags, "--mounted-at", "/m/") == 0
    entry = models(out)["SA104"]
    assert (models(out).keys(), pinned(out)) == (names, expected)
    assert (entry.base_path, entry.model_platform) == ("/m/SA104", "tensorflow")
    assert entry.HasField("model_version_policy") == ("--latest" not in flags)
    assert capsys.readouterr().out == f"{out}: {len(names)} models\n"
    monitoring = text_format.Parse((out / "monitoring.config").read_text(), wire.MonitoringConfig())
    assert monitoring.prometheus_config.enable and monitoring.prometheus_config.path == "/monitoring/prometheus/metrics"


def test_label_moves_after_its_version_was_loaded_beside_the_one_before(write, capsys, out):
    assert serve(["config", *write.flags, "--model", "SA104=1"]) == 0
    first = (), (1, 2), 1, "SA104: stable 1 -> 2 once it is loaded: run this again with --loaded"
    moved = ("--loaded",), (1, 2), 2, "1 -> 2\nversions that a label has left stay listed until this command runs"
    done = (), (2,), 2, "3 models\n"
    for more, expected, label, message in (first, first, moved, done):
        capsys.readouterr()
        assert write(*more) == 0
        assert pinned(out) == (expected, {"stable": label}) and message in capsys.readouterr().out


versions = st.integers(1, 5)
labels = st.fixed_dictionaries({"stable": versions, "canary": versions})


@given(labels, st.lists(st.tuples(labels, st.booleans()), min_size=1, max_size=5))
def test_no_file_moves_a_label_to_a_version_that_is_not_loaded(first, publications):
    """Each publication may come before or after the server has loaded what the one before it wrote."""
    file = server = Versions(tuple(sorted(set(first.values()))), first)
    for wanted_labels, is_loaded in publications:
        wanted = Versions(tuple(sorted(set(wanted_labels.values()))), wanted_labels)
        server = file if is_loaded else server
        file = intermediate_versions(file, wanted, file.numbers if is_loaded else ()) or wanted
        for label, version in file.labels.items():
            assert version in file.numbers
            assert server.labels.get(label, version) == version or version in server.numbers
    for _ in range(2):
        file = intermediate_versions(file, wanted, file.numbers) or wanted
    assert file == wanted


def test_published_version_is_loaded_then_labelled_by_one_call_with_the_server(publish, capsys, out):
    with running(publish.settings()) as server:
        assert publish(server=server) == 0
        assert "SA104: stable 1 -> 2\n" in capsys.readouterr().out and pinned(out)[0] == (1, 2)
        with Client(f"127.0.0.1:{server.port}") as client:
            assert {state.version: state.state for state in client.status("SA104")}[2] == AVAILABLE
            assert labelled(server) == 2, "the exit code means that the label has moved"
            assert publish(server=server) == 0
            assert [state.version for state in client.status("SA104") if state.state == AVAILABLE] == [2]
        assert publish("--model", "SA104=1", server=server) == 0, "a rollback"
        assert labelled(server) == 1 and pinned(out)[0] == (1, 2)


def test_file_that_a_server_refuses_is_replaced_by_one_that_loads_first(publish, capsys, out):
    """An operator has moved the label by hand, and the server refuses the file at every poll."""
    with running(publish.settings()) as server:
        text = (out / "models.config").read_text()
        entry = text[text.index('name: "SA104"') :]
        (out / "models.config").write_text(text.replace(entry, entry.replace(": 1", ": 2", 2)))
        assert pinned(out)[1] == {"stable": 2}
        assert publish(server=server) == 0
        assert "SA104: stable 1 -> 2\n" in capsys.readouterr().out and pinned(out)[1] == {"stable": 2}


def test_tl_is_served_until_each_served_version_of_its_fleet_holds_it(exported, tmp_path, out):
    shutil.copytree(exported, tmp_path / "models")
    write = Command(tmp_path / "models", out)
    assert export(["fleet", "city", "--tl", "SA101,SA102,SA105", *write.flags[:2]]) == 0
    for flags, versions, names in (
        (("--model", "city=1"), (1,), {"SA104", "SA105", "city"}),
        ((), (1, 2), {"SA104", "SA105", "city"}),  # label stable is still that of version 1, which does not hold it
        (("--loaded",), (1, 2), {"SA104", "SA105", "city"}),  # version 1 stays listed until the next call
        ((), (2,), {"SA104", "city"}),
    ):
        assert write(*flags) == 0
        assert (pinned(out, "city")[0], models(out).keys()) == (versions, names)


def test_label_stays_if_its_version_is_not_loaded_in_time(publish, monkeypatch, capsys, out):
    monkeypatch.setattr(publication, "LOAD_TIMEOUT_S", 1.0)
    assert publish("--server", "127.0.0.1:1") == 1
    assert "--server 127.0.0.1:1: does not answer" in capsys.readouterr().err
    with running(publish.settings(reload_rpc=False)) as server:
        assert publish(server=server) == 1
    assert "SA104/2 is not AVAILABLE" in (error := capsys.readouterr().err) and "no label was moved" in error
    assert pinned(out)[1] == {"stable": 1}


def test_label_of_every_replica_behind_a_name_has_moved(publish, monkeypatch):
    """A headless service's name resolves to all servers of the same files."""
    with (
        running(publish.settings()) as first,
        running(publish.settings(host="127.0.0.2", port=first.port)) as second,
    ):
        found = [(AF_INET, SOCK_STREAM, 6, "", (host, first.port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: {"tf-serving": found}[host])
        assert publish("--server", f"tf-serving:{first.port}") == 0
        assert [labelled(server) for server in (first, second)] == [2, 2]


def test_a_reload_that_outlives_its_connection_is_waited_for(exported, tmp_path, monkeypatch, out):
    """The flags limit the age of connections, and a new model's load may take minutes."""
    models_dir = tmp_path / "models"
    shutil.copytree(exported / "SA104", models_dir / "SA104")
    publish = published(models_dir, out)
    shutil.copytree(exported / "SA105", models_dir / "SA105")
    age = (("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 100))
    calls, reload_config = [], Client.reload_config
    monkeypatch.setattr(Client, "reload_config", lambda *args: calls.append(1) or reload_config(*args))
    with running(publish.settings(channel_arguments=age)) as server:
        load = server.manager.load
        monkeypatch.setattr(server.manager, "load", lambda *args: time.sleep(args[0] == "SA105") or load(*args))
        assert publish("--model", "SA104=1", server=server) == 0
        assert "SA105" in server.manager.served() and len(calls) > 1


def test_label_of_a_server_without_reload_requests_has_moved_by_its_poll(publish, capsys):
    with running(publish.settings(reload_rpc=False, config_poll_s=0.1)) as server:
        assert publish(server=server) == 0
        assert "takes no reload requests" in capsys.readouterr().err and labelled(server) == 2


def test_label_that_does_not_move_is_an_error(publish, monkeypatch, capsys, out):
    """The server does not read these files, so they say what it does not do."""
    assert publish("--model", "SA104=1,2") == 0
    monkeypatch.setattr(Client, "reload_config", lambda *_: True)
    monkeypatch.setattr(publication, "LOAD_TIMEOUT_S", 0.0)
    with running(publish.settings(models=model_config.from_file(out / "models.config"))) as server:
        assert publish(server=server) == 1
    error = capsys.readouterr().err
    assert "SA104: label stable is still that of version 1" in error and "not of version 2" in error


def test_models_config_that_a_server_does_not_take_is_put_back(publish, tmp_path, capsys, out):
    before = (out / "models.config").read_text()
    with running(publish.settings()) as server:
        assert publish("--mounted-at", tmp_path / "elsewhere", server=server) == 1
        error = capsys.readouterr().err
        assert "does not take these models (" in error and "look at --mounted-at" in error and error.count("\n") == 1
        assert labelled(server) == 1 and (out / "models.config").read_text() == before


def test_label_of_a_server_with_mtls_moves_with_the_citys_certificates(publish, tmp_path):
    authority = pair("authority")
    certificates.write(tmp_path, "client", authority)
    (tmp_path / "city.toml").write_text(
        '[serving]\ntls_ca = "ca"\ntls_certificate = "certificate"\ntls_key = "key"\ntls_server_name = "localhost"\n'
    )
    key, certificate, *_ = pair("server", authority)
    ssl = wire.SSLConfig(server_key=key, server_cert=certificate, custom_ca=authority[1], client_verify=True)
    with running(publish.settings(ssl=ssl)) as server:
        assert publish(server=server) == 1, "without certificates"
        assert publish("--city", tmp_path / "city.toml", server=server) == 0 and labelled(server) == 2


class Server:
    """Answers the status of one model from a list, one entry a request; the last one stays."""

    address = "there:8500"

    def __init__(self, *answers, labels=()):
        self.answers, self.labels = list(answers), dict(labels)

    def status(self, model):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [state(*entry) for entry in answer]

    def version_number(self, model, label):
        if label not in self.labels:
            raise BadRequest("Unrecognized servable version label")
        if not self.labels[label]:
            raise ModelNotFound("Servable not found")
        return self.labels[label]


def state(version, name, error=""):
    status = ModelVersionStatus(version=version, state=ModelVersionStatus.State.Value(name))
    status.status.error_message, status.status.error_code = error, 3 if error else 0
    return status


@pytest.fixture
def wait(monkeypatch):
    """Waits for version 2 of a model; `is_known`: what the server reports now is from before the call."""
    monkeypatch.setattr(publication, "STATUS_INTERVAL_S", 0.0)

    def wait(*answers, is_known=False):
        server = Server(*answers)
        statuses = publication.statuses_of_models(server, ["a"]) if is_known else {}
        versions = {"a": Versions((2,), {"stable": 2})}
        publication.wait_until_loaded(server, versions, publication.failed_loads(statuses))

    return wait


FAILED = [(2, "END", "bad graph")]


def test_wait_ends_with_the_error_of_a_version_that_failed_to_load(wait):
    message = r"a/2: there:8500 could not load it \(bad graph\); no label was moved"
    with pytest.raises(publication.NotLoaded, match=message):
        wait([(1, "AVAILABLE")], [(1, "AVAILABLE"), (2, "LOADING")], FAILED)


def test_error_from_before_the_call_counts_only_if_it_persists(wait, monkeypatch):
    wait(FAILED, FAILED, [(2, "LOADING")], [(2, "AVAILABLE")], is_known=True)
    monkeypatch.setattr(publication, "REPEATED_ERROR_S", 0.0)
    with pytest.raises(publication.NotLoaded, match="bad graph"):
        wait(FAILED, is_known=True)


def test_long_wait_shows_its_progress(wait, monkeypatch, capsys):
    monkeypatch.setattr(publication, "PROGRESS_INTERVAL_S", 0.0)
    wait([], [(2, "LOADING")], [(2, "AVAILABLE")])
    assert capsys.readouterr().err.splitlines() == [
        f"waiting until there:8500 has loaded a/2 ({state}); 0 s of at most 300 s"
        for state in ("not listed yet", "LOADING")
    ]


def test_label_of_an_unloaded_version_is_dropped_until_its_version_is_loaded():
    server = Server([(1, "AVAILABLE"), (2, "END")], labels={"canary": None, "stable": 1})
    current = publication.loaded_versions(server, "a")
    assert current == Versions((1,), {"stable": 1}, frozenset({"canary"}))
    target = Versions((1, 3), {"stable": 1, "canary": 3})
    assert intermediate_versions(current, target, current.numbers) == Versions((1, 3), {"stable": 1})
    assert intermediate_versions(current, target, (1, 3)) is None
    assert intermediate_versions(Versions((1,), {"stable": 1}), target, (1,)) == Versions((1, 3), {"stable": 1})


def test_previous_version_of_a_label_stays_listed_while_its_folder_exists():
    current, target = Versions((1,), {"stable": 1}), Versions((2,), {"stable": 2})
    assert with_previous_versions(current, target, (1, 2)) == Versions((1, 2), {"stable": 2})
    assert with_previous_versions(current, target, (2,)) == target
    assert with_previous_versions(Versions((1, 2), {"stable": 2}), target, (1, 2)) == target, "the next call"


def test_full_volume_leaves_the_files_as_they_were(write, out):
    assert write("--model", "SA104=1") == 0
    before = {path.name: path.read_text() for path in out.iterdir()}
    script = (
        "import resource, signal, sys\n"
        "from serving.tf_serving.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, *write.flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert {path.name: path.read_text() for path in out.iterdir()} == before


def test_each_district_has_its_own_files_and_its_labels_move_by_its_servers_address(exported, tmp_path, capsys, out):
    city = tmp_path / "city.toml"
    shutil.copy(GRID / "city.toml", city)
    write = Command(exported, out, "--city", city, "--mounted-at", exported)
    assert write("--shards", 4) == 2, "the last two TLs have no model"
    assert write("--shards", 2, "--model", "SA104=1") == 0
    assert models(out / "shard-1").keys() == {"SA101", "SA102", "SA104"} and models(out / "shard-2").keys() == {"SA105"}
    settings = embedded_flags.parse(["--model_config_file", str(out / "shard-1" / "models.config")])
    other = (out / "shard-2" / "models.config").read_bytes()
    with running(replace(settings, port=0)) as server:
        address = f"127.0.0.1:{server.port}"
        tables = (out / "districts.toml").read_text()
        assert tomllib.loads(tables)["serving"]["districts"]["shard-1"]["tls"] == ["SA101", "SA102", "SA103", "SA104"]
        city.write_text(city.read_text() + tables.replace("tf-serving-shard-1:8500", address))
        assert write(server=server) == 0 and labelled(server) == 2
    assert (out / "shard-2" / "models.config").read_bytes() == other
    district = city_config.load(city).serving.districts["shard-2"]
    assert (district.address, district.fleet) == ("tf-serving-shard-2:8500", "shard-2")
    assert write() == 0, "the districts of city.toml are the shards"
    assert write("--server", "other:8500") == 2
    assert f"no district has this address; pass one of {address}, tf-serving-shard-2" in capsys.readouterr().err


def test_certificates_become_an_ssl_config_that_only_the_server_may_read(write, tmp_path, out):
    for name in ("certificate", "key", "ca"):
        (tmp_path / name).write_text(f"-----BEGIN {name.upper()}-----\n")
    flags = ["--tls-certificate", tmp_path / "certificate", "--tls-key", tmp_path / "key"]
    assert write(*flags, "--tls-client-ca", tmp_path / "ca") == 0
    ssl = text_format.Parse((out / "ssl.config").read_text(), wire.SSLConfig())
    assert (ssl.server_key, ssl.custom_ca, ssl.client_verify) == ("-----BEGIN KEY-----\n", "-----BEGIN CA-----\n", True)
    assert (out / "ssl.config").stat().st_mode & 0o777 == 0o600
    assert "--ssl_config_file=/config/ssl.config" in (out / "flags").read_text().splitlines()


def test_every_flag_is_one_of_tensorflow_model_server_2_20(write, shared, out):
    known = set(re.findall(r"^\t--(\w+)=", (shared / "tfserving-2.20-help.txt").read_text(), re.M))
    assert write() == 0
    written = (out / "flags").read_text().splitlines()
    assert {flag.partition("=")[0].removeprefix("--") for flag in written} <= known and len(written) == len(FLAGS) + 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--models", "x"), "unrecognized arguments: --models x"),
        (("--models-dir", "nowhere"), "nowhere: no such folder"),
        (("--model", "SA104=9"), "has no version 9; it has 1, 2"),
        (("--model", "SA104=x"), "must be MODEL=STABLE or MODEL=STABLE,CANARY"),
        (("--model", "SA104=1,1"), "stable and canary are the same version"),
        (("--model", "SA999=1"), "there is no model SA999"),
        (("--model", "SA101=1"), "SA101 is in a fleet"),
        (("--model", "SA104=1", "--latest"), "--latest serves the newest versions"),
        (("--latest", "--loaded"), "--loaded moves labels, and --latest writes none"),
        (("--server", "127.0.0.1:1"), "has no models.config, so no server was started with it"),
        (("--shards", "0"), "--shards: 0 must lie between"),
        (("--shards", "99"), "--shards 99: there are"),
        (("--mounted-at", "models"), "must be an absolute path"),
        (("--tls-key", "key"), "--tls-certificate and --tls-key belong together"),
        (("--tls-certificate", "none", "--tls-key", "none"), "none: cannot be read: No such file"),
        (("--out", "/proc/none"), "/proc/none"),
    ],
)
def test_wrong_input_gives_one_line_and_no_file(write, tmp_path, capsys, flags, message, in_tmp_path):
    refused(capsys, write(*flags), message)
    assert list(tmp_path.iterdir()) == []
