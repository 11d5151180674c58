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
from serving.tf_serving import loaded_versions
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


@pytest.fixture
def write(exported, out):
    """Runs the command with further flags, which writes into the folder `out`; returns its exit code."""
    return lambda *flags: main(["--models-dir", str(exported), "--out", str(out), *flags])


def models(path):
    text = (path / "models.config").read_text()
    entries = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    return {entry.name: entry for entry in entries}


def test_newest_versions_are_pinned_and_labelled_stable(exported, tmp_path, capsys):
    assert serve(["config", "--models-dir", str(exported), "--out", str(tmp_path), "--mounted-at", "/m/"]) == 0
    found = models(tmp_path)
    assert found["SA104"].base_path == "/m/SA104" and found["SA104"].model_platform == "tensorflow"
    assert list(found["SA104"].model_version_policy.specific.versions) == [2] and found["SA104"].version_labels == {
        "stable": 2
    }
    assert capsys.readouterr().out == f"{tmp_path}: 3 models\n"
    monitoring = text_format.Parse((tmp_path / "monitoring.config").read_text(), wire.MonitoringConfig())
    assert monitoring.prometheus_config.enable and monitoring.prometheus_config.path == "/monitoring/prometheus/metrics"


def test_fleet_is_served_instead_of_the_models_that_it_holds(write, out):
    assert write() == 0 and models(out).keys() == {"SA104", "SA105", "city"}
    assert write("--all-models") == 0 and models(out).keys() == {*TLS, "city"}


def test_stable_and_canary_are_the_versions_that_are_named(write, out):
    assert write("--model", "SA104=1,2") == 0
    entry = models(out)["SA104"]
    assert list(entry.model_version_policy.specific.versions) == [1, 2]
    assert entry.version_labels == {"stable": 1, "canary": 2}


def test_label_moves_after_its_version_was_loaded_beside_the_one_before(write, capsys, out):
    assert write("--model", "SA104=1") == 0
    first = (), (1, 2), 1, "SA104: stable 1 -> 2 once it is loaded: run this again with --loaded"
    moved = ("--loaded",), (1, 2), 2, "1 -> 2\nversions that a label has left stay listed until this command runs"
    done = (), (2,), 2, "3 models\n"
    for more, expected, label, message in (first, first, moved, done):
        capsys.readouterr()
        assert write(*more) == 0
        entry = models(out)["SA104"]
        assert tuple(entry.model_version_policy.specific.versions) == expected and entry.version_labels == {
            "stable": label
        }
        assert message in capsys.readouterr().out


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


@pytest.fixture
def published(exported, out):
    return publish(exported, out)


def publish(exported, out):
    """Files in which version 1 of SA104 is stable: the flags that wrote them, and a server that never reads them again."""
    flags = ["--models-dir", str(exported), "--out", str(out), "--mounted-at", str(exported), "--config-at", str(out)]
    assert main([*flags, "--model", "SA104=1"]) == 0
    settings = embedded_flags.parse((out / "flags").read_text().splitlines())
    return flags, replace(settings, port=0, rest=None, config_poll_s=0)


def test_published_version_is_loaded_then_labelled_by_one_call_with_the_server(published, capsys, out):
    flags, settings = published
    with running(settings) as server:
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 0
        assert "SA104: stable 1 -> 2\n" in capsys.readouterr().out
        assert list(models(out)["SA104"].model_version_policy.specific.versions) == [1, 2]
        with Client(f"127.0.0.1:{server.port}") as client:
            assert {state.version: state.state for state in client.status("SA104")}[2] == AVAILABLE
            assert client.version_number("SA104", "stable") == 2, "the exit code means that the label has moved"
            assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 0
            assert [state.version for state in client.status("SA104") if state.state == AVAILABLE] == [2]
            assert main([*flags, "--server", f"127.0.0.1:{server.port}", "--model", "SA104=1"]) == 0, "a rollback"
            assert client.version_number("SA104", "stable") == 1
        assert list(models(out)["SA104"].model_version_policy.specific.versions) == [1, 2]


def test_file_that_a_server_refuses_is_replaced_by_one_that_loads_first(published, capsys, out):
    """An operator has moved the label by hand, and the server refuses the file at every poll."""
    flags, settings = published
    with running(settings) as server:
        text = (out / "models.config").read_text()
        entry = text[text.index('name: "SA104"') :]
        (out / "models.config").write_text(text.replace(entry, entry.replace(": 1", ": 2", 2)))
        assert models(out)["SA104"].version_labels == {"stable": 2}
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 0
        assert "SA104: stable 1 -> 2\n" in capsys.readouterr().out and models(out)["SA104"].version_labels == {
            "stable": 2
        }


def test_tl_is_served_until_each_served_version_of_its_fleet_holds_it(exported, tmp_path, out):
    copy = tmp_path / "models"
    shutil.copytree(exported, copy)
    assert export(["fleet", "city", "--tl", "SA101,SA102,SA105", "--models-dir", str(copy)]) == 0
    flags = ["--models-dir", str(copy), "--out", str(out)]
    assert main([*flags, "--model", "city=1"]) == 0
    assert models(out).keys() == {"SA104", "SA105", "city"}
    assert main(flags) == 0
    assert list(models(out)["city"].model_version_policy.specific.versions) == [1, 2]
    assert "SA105" in models(out), "label stable is still that of version 1, which does not hold it"
    assert main([*flags, "--loaded"]) == 0
    assert "SA105" in models(out), "version 1 stays listed until the next call"
    assert main(flags) == 0
    assert models(out).keys() == {"SA104", "city"}


def test_label_stays_if_its_version_is_not_loaded_in_time(published, monkeypatch, capsys, out):
    flags, settings = published
    monkeypatch.setattr(loaded_versions, "LOAD_TIMEOUT_S", 1.0)
    assert main([*flags, "--server", "127.0.0.1:1"]) == 1
    assert "--server 127.0.0.1:1: does not answer" in capsys.readouterr().err
    with running(replace(settings, reload_rpc=False)) as server:
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 1
    assert "SA104/2 is not AVAILABLE" in (error := capsys.readouterr().err) and "no label was moved" in error
    assert models(out)["SA104"].version_labels == {"stable": 1}


def test_label_of_every_replica_behind_a_name_has_moved(published, monkeypatch):
    """A headless service's name resolves to all servers of the same files."""
    flags, settings = published
    with running(settings) as first, running(replace(settings, host="127.0.0.2", port=first.port)) as second:
        found = [(AF_INET, SOCK_STREAM, 6, "", (host, first.port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: {"tf-serving": found}[host])
        assert main([*flags, "--server", f"tf-serving:{first.port}"]) == 0
        assert [labelled(server) for server in (first, second)] == [2, 2]


def labelled(server):
    return server.manager.find(ModelSpec(name="SA104", version_label="stable"))[0]


def test_a_reload_that_outlives_its_connection_is_waited_for(exported, tmp_path, monkeypatch, out):
    """The flags limit the age of connections, and a new model's load may take minutes."""
    models_dir = tmp_path / "models"
    shutil.copytree(exported / "SA104", models_dir / "SA104")
    flags, settings = publish(models_dir, out)
    shutil.copytree(exported / "SA105", models_dir / "SA105")
    age = (("grpc.max_connection_age_ms", 500), ("grpc.max_connection_age_grace_ms", 100))
    calls, reload_config = [], Client.reload_config
    monkeypatch.setattr(Client, "reload_config", lambda *args: calls.append(1) or reload_config(*args))
    with running(replace(settings, channel_arguments=age)) as server:
        load = server.manager.load
        monkeypatch.setattr(server.manager, "load", lambda *args: time.sleep(2 * (args[0] == "SA105")) or load(*args))
        assert main([*flags, "--model", "SA104=1", "--server", f"127.0.0.1:{server.port}"]) == 0
        assert "SA105" in server.manager.served() and len(calls) > 1


def test_label_of_a_server_without_reload_requests_has_moved_by_its_poll(published, capsys):
    flags, settings = published
    with running(replace(settings, reload_rpc=False, config_poll_s=0.2)) as server:
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 0
        assert "takes no reload requests" in capsys.readouterr().err and labelled(server) == 2


def test_label_that_does_not_move_is_an_error(published, monkeypatch, capsys, out):
    """The server does not read these files, so they say what it does not do."""
    flags, settings = published
    assert main([*flags, "--model", "SA104=1,2"]) == 0
    with running(replace(settings, models=model_config.from_file(out / "models.config"))) as server:
        monkeypatch.setattr(Client, "reload_config", lambda *_: True)
        monkeypatch.setattr(loaded_versions, "LOAD_TIMEOUT_S", 0.0)
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 1
    error = capsys.readouterr().err
    assert "SA104: label stable is still that of version 1" in error and "not of version 2" in error


def test_models_config_that_a_server_does_not_take_is_put_back(published, tmp_path, capsys, out):
    flags, settings = published
    before = (out / "models.config").read_text()
    with running(settings) as server:
        wrong = ["--mounted-at", str(tmp_path / "elsewhere"), "--server", f"127.0.0.1:{server.port}"]
        assert main([*flags, *wrong]) == 1
        error = capsys.readouterr().err
        assert "does not take these models (" in error and "look at --mounted-at" in error and error.count("\n") == 1
        assert labelled(server) == 1 and (out / "models.config").read_text() == before


def test_server_of_other_files_is_left_alone(write, capsys, out):
    assert write("--server", "127.0.0.1:1") == 2
    assert f"{out} has no models.config" in capsys.readouterr().err and not out.exists()


def test_label_of_a_server_with_mtls_moves_with_the_citys_certificates(published, tmp_path):
    authority = pair("authority")
    certificates.write(tmp_path, "client", authority)
    (tmp_path / "city.toml").write_text(
        '[serving]\ntls_ca = "ca"\ntls_certificate = "certificate"\ntls_key = "key"\ntls_server_name = "localhost"\n'
    )
    flags, settings = published
    server_key, server_certificate, *_ = pair("server", authority)
    ssl = wire.SSLConfig(
        server_key=server_key, server_cert=server_certificate, custom_ca=authority[1], client_verify=True
    )
    with running(replace(settings, ssl=ssl)) as server:
        assert main([*flags, "--server", f"127.0.0.1:{server.port}"]) == 1, "without certificates"
        assert main([*flags, "--server", f"127.0.0.1:{server.port}", "--city", str(tmp_path / "city.toml")]) == 0
        assert labelled(server) == 2


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


def wait(server, old_errors=()):
    loaded_versions.wait_until_loaded(server, {"a": Versions((2,), {"stable": 2})}, dict(old_errors))


def test_wait_ends_with_the_error_of_a_version_that_failed_to_load(monkeypatch):
    monkeypatch.setattr(loaded_versions, "STATUS_INTERVAL_S", 0.0)
    with pytest.raises(
        loaded_versions.NotLoaded, match=r"a/2: there:8500 could not load it \(bad graph\); no label was moved"
    ):
        wait(Server([(1, "AVAILABLE")], [(1, "AVAILABLE"), (2, "LOADING")], [(2, "END", "bad graph")]))


def test_error_from_before_the_call_counts_only_if_it_persists(monkeypatch):
    monkeypatch.setattr(loaded_versions, "STATUS_INTERVAL_S", 0.0)
    failed = [(2, "END", "bad graph")]
    server = Server(failed, failed, [(2, "LOADING")], [(2, "AVAILABLE")])
    wait(server, loaded_versions.failed_loads(loaded_versions.statuses_of_models(server, ["a"])))
    monkeypatch.setattr(loaded_versions, "REPEATED_ERROR_S", 0.0)
    server = Server(failed)
    with pytest.raises(loaded_versions.NotLoaded, match="bad graph"):
        wait(server, loaded_versions.failed_loads(loaded_versions.statuses_of_models(server, ["a"])))


def test_long_wait_shows_its_progress(monkeypatch, capsys):
    monkeypatch.setattr(loaded_versions, "STATUS_INTERVAL_S", 0.0)
    monkeypatch.setattr(loaded_versions, "PROGRESS_INTERVAL_S", 0.0)
    wait(Server([], [(2, "LOADING")], [(2, "AVAILABLE")]))
    assert capsys.readouterr().err.splitlines() == [
        f"waiting until there:8500 has loaded a/2 ({state}); 0 s of at most 300 s"
        for state in ("not listed yet", "LOADING")
    ]


def test_label_of_an_unloaded_version_is_dropped_until_its_version_is_loaded():
    server = Server([(1, "AVAILABLE"), (2, "END")], labels={"canary": None, "stable": 1})
    current = loaded_versions.loaded_versions(server, "a")
    assert current == Versions((1,), {"stable": 1}, frozenset({"canary"}))
    target = Versions((1, 3), {"stable": 1, "canary": 3})
    assert intermediate_versions(current, target, current.numbers) == Versions((1, 3), {"stable": 1})
    assert intermediate_versions(current, target, (1, 3)) is None


def test_previous_version_of_a_label_stays_listed_while_its_folder_exists():
    current, target = Versions((1,), {"stable": 1}), Versions((2,), {"stable": 2})
    assert with_previous_versions(current, target, (1, 2)) == Versions((1, 2), {"stable": 2})
    assert with_previous_versions(current, target, (2,)) == target
    assert with_previous_versions(Versions((1, 2), {"stable": 2}), target, (1, 2)) == target, "the next call"


def test_full_volume_leaves_the_files_as_they_were(write, exported, out):
    assert write("--model", "SA104=1") == 0
    before = {path.name: path.read_text() for path in out.iterdir()}
    script = (
        "import resource, signal, sys\n"
        "from serving.tf_serving.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    flags = ["--models-dir", str(exported), "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", script, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert {path.name: path.read_text() for path in out.iterdir()} == before


def test_latest_leaves_the_choice_of_versions_to_the_server(write, out):
    assert write("--latest") == 0
    entries = models(out).values()
    assert not any(entry.HasField("model_version_policy") or entry.version_labels for entry in entries)


def test_each_district_has_its_own_files(exported, tmp_path, out):
    shutil.copy(GRID / "city.toml", tmp_path)
    flags = ["--city", str(tmp_path / "city.toml"), "--models-dir", str(exported), "--out", str(out)]
    assert main([*flags, "--shards", "4"]) == 2, "the last two TLs have no model"
    shutil.rmtree(out, ignore_errors=True)
    assert main([*flags, "--shards", "2"]) == 0
    assert models(out / "shard-1").keys() == {"SA101", "SA102", "SA104"} and models(out / "shard-2").keys() == {"SA105"}
    tables = (out / "districts.toml").read_text()
    assert tomllib.loads(tables)["serving"]["districts"]["shard-1"]["tls"] == ["SA101", "SA102", "SA103", "SA104"]
    with (tmp_path / "city.toml").open("a") as file:
        file.write(tables)
    districts = city_config.load(tmp_path / "city.toml").serving.districts
    assert districts["shard-2"].address == "tf-serving-shard-2:8500" and districts["shard-2"].fleet == "shard-2"
    assert main(flags) == 0, "the districts of city.toml are the shards"


def test_labels_of_one_district_move_by_its_servers_address(exported, tmp_path, capsys, out):
    city = tmp_path / "city.toml"
    shutil.copy(GRID / "city.toml", city)
    flags = ["--city", str(city), "--models-dir", str(exported), "--out", str(out), "--mounted-at", str(exported)]
    assert main([*flags, "--shards", "2", "--model", "SA104=1"]) == 0
    settings = embedded_flags.parse(["--model_config_file", str(out / "shard-1" / "models.config")])
    other = (out / "shard-2" / "models.config").read_bytes()
    with running(replace(settings, port=0)) as server:
        address = f"127.0.0.1:{server.port}"
        tables = (out / "districts.toml").read_text().replace("tf-serving-shard-1:8500", address)
        city.write_text(city.read_text() + tables)
        assert main([*flags, "--server", address]) == 0 and labelled(server) == 2
    assert (out / "shard-2" / "models.config").read_bytes() == other
    assert main([*flags, "--server", "other:8500"]) == 2
    assert f"no district has this address; pass one of {address}, tf-serving-shard-2" in capsys.readouterr().err


def test_certificates_become_an_ssl_config_that_only_the_server_may_read(write, tmp_path, out):
    for name in ("certificate", "key", "ca"):
        (tmp_path / name).write_text(f"-----BEGIN {name.upper()}-----\n")
    flags = ["--tls-certificate", str(tmp_path / "certificate"), "--tls-key", str(tmp_path / "key")]
    assert write(*flags, "--tls-client-ca", str(tmp_path / "ca")) == 0
    ssl = text_format.Parse((out / "ssl.config").read_text(), wire.SSLConfig())
    assert (ssl.server_key, ssl.custom_ca, ssl.client_verify) == ("-----BEGIN KEY-----\n", "-----BEGIN CA-----\n", True)
    assert (out / "ssl.config").stat().st_mode & 0o777 == 0o600
    assert "--ssl_config_file=/config/ssl.config" in (out / "flags").read_text().splitlines()


def test_every_flag_is_one_of_tensorflow_model_server_2_20(write, shared, out):
    known = set(re.findall(r"^\t--(\w+)=", (shared / "tfserving-2.20-help.txt").read_text(), re.M))
    assert write() == 0
    written = (out / "flags").read_text().splitlines()
    assert {flag.partition("=")[0].removeprefix("--") for flag in written} <= known and len(written) == len(FLAGS) + 2


def test_embedded_server_takes_the_same_files(write, exported, out):
    assert write("--mounted-at", str(exported), "--config-at", str(out)) == 0
    server = embedded_flags.parse((out / "flags").read_text().splitlines())
    assert server.models.keys() == {"SA104", "SA105", "city"} and server.models["SA104"].labels == {"stable": 2}
    assert model_config.from_file(out / "models.config").keys() == server.models.keys()


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
