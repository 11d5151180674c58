"""The rollout's Job and component: its command, what it shares with server and controller, and how it is repeated."""

import shutil
import subprocess

import pytest

from city import config, program
from controller import config as controller_config
from rollout import desired
from rollout.__main__ import parser
from tests.conftest import GRID
from tests.k8s.test_manifests import (
    K8S,
    arguments,
    container,
    environment,
    named,
    pods,
    render,
    with_city,
    words_of,
)

SCRIPT_FOLDERS = ("/given", "/server-files", "/config")


@pytest.fixture
def documents():
    return render("overlays/rollout")


@pytest.fixture
def job(documents):
    return named(documents, "Job")["rollout"]["spec"]


def claims(documents, kind, name):
    """By name of the volume: its claim."""
    volumes = pods(documents)[kind, name]["spec"]["volumes"]
    return {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in volumes if len(each) == 2 and
            "persistentVolumeClaim" in each}  # fmt: skip


def test_command_of_the_job_is_accepted_with_further_flags(documents, tmp_path):
    each = container(documents, "rollout")
    command = [*each["command"], *arguments(documents, each)]
    name, *words = words_of(command, tmp_path, ROLLOUT_FLAGS="--skip shadow --again 17")
    parsed = parser(name).parse_args(words)
    assert name == "rollout" and (parsed.skip, parsed.again, parsed.tls, parsed.to) == ("shadow", 17, [], None)
    assert parsed.author == "rollout job", "not the pod's name, which is another one after a restart"
    assert parsed.control_tls_ca and parsed.control_tls_certificate and parsed.control_tls_key
    assert environment(documents, each)["ROLLOUT_FLAGS"] == ""


def test_numbers_are_those_of_the_mounted_config_map(documents, tmp_path):
    (volume,) = [v for v in pods(documents)["Job", "rollout"]["spec"]["volumes"] if v["name"] == "numbers"]
    text = named(documents, "ConfigMap")[volume["configMap"]["name"]]["data"]["numbers.toml"]
    path = tmp_path / "numbers.toml"
    city = config.load(GRID / "city.toml")
    path.write_text(text)
    assert desired.read(path, city) == {"SA101": 1, "SA104": 1}
    path.write_text((K8S / "base" / "rollout" / "numbers.toml").read_text())
    assert desired.read(path, city) == {}


def test_a_refusal_ends_the_job_and_everything_else_repeats_it(job):
    ignore, fail = job["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [program.GATE_FAILED])
    assert fail["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]
    assert ignore["action"] == "Ignore" and ignore["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] >= 100
    assert "activeDeadlineSeconds" not in job, "a rollout takes days"


def test_ledger_outlives_the_job_and_volumes_are_those_of_server_and_controller(documents, job):
    own = claims(documents, "Job", "rollout")
    assert own["ledger"] == "ledger" and "ledger" in named(documents, "PersistentVolumeClaim")
    assert own["server-files"] == claims(documents, "Deployment", "tf-serving")["server-files"]
    assert own["records"] == claims(documents, "Deployment", "controller")["records"]
    for claim in ("server-files", "records"):
        assert named(documents, "PersistentVolumeClaim")[claim]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_controller_records_and_serves_its_control_api_to_the_job(documents):
    each = container(documents, "controller")
    parsed = controller_config.parse(with_city(arguments(documents, each), GRID / "city.toml"))
    host, port = environment(documents, container(documents, "rollout"))["CONTROL_ADDRESS"].split(":")
    assert parsed.control.address == ("0.0.0.0", int(port)) and parsed.control.tls is not None
    (served,) = [p for p in named(documents, "Service")[host]["spec"]["ports"] if p["name"] == "control"]
    assert (served["port"], served["targetPort"]) == (int(port), "control")
    (rule,) = named(documents, "NetworkPolicy")["control"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "rollout"}}}]
    assert "--record=/records" in each["args"]


def started(script, folders):
    """Run the first container of the server, with folders of the test in the place of its volumes."""
    for path, folder in zip(SCRIPT_FOLDERS, folders, strict=True):
        script = script.replace(path, str(folder))
    subprocess.run(["/bin/sh", "-ec", script], check=True, env={"PATH": "/usr/bin:/bin", "HOSTNAME": "pod-1"})


def test_server_reads_the_jobs_models_config_and_the_config_maps_other_files(documents, tmp_path):
    (files,) = pods(documents)["Deployment", "tf-serving"]["spec"]["initContainers"]
    assert {mount["mountPath"] for mount in files["volumeMounts"]} == set(SCRIPT_FOLDERS)
    given, live, links = folders = [tmp_path / name for name in ("given", "live", "links")]
    for folder in folders:
        folder.mkdir()
    for name in ("flags", "models.config", "monitoring.config"):
        (given / name).write_text(f"{name} of the map")
    started(files["command"][-1], folders)
    assert {each.name: each.read_text() for each in links.iterdir()} == {
        name: f"{name} of the map" for name in ("flags", "models.config", "monitoring.config")
    }
    assert [each.name for each in live.iterdir()] == ["models.config"]
    (live / "draft").write_text("of the job")
    (live / "draft").rename(live / "models.config")
    assert (links / "models.config").read_text() == "of the job", "also after a rename"
    (given / "flags").write_text("changed")
    started(files["command"][-1], folders)
    assert (links / "models.config").read_text() == "of the job" and (links / "flags").read_text() == "changed"
    assert [each.name for each in live.iterdir()] == ["models.config"]


def test_other_numbers_make_another_job(documents, tmp_path):
    folder = shutil.copytree(K8S, tmp_path / "k8s") / "overlays" / "rollout"
    (folder / "numbers.toml").write_text("SA101 = 4\nSA104 = 1\n")
    before, now = pods(documents), pods(render(folder))
    assert before["Job", "rollout"] != now["Job", "rollout"]
    assert before["Deployment", "tf-serving"] == now["Deployment", "tf-serving"], "no server is restarted"


def with_components(tmp_path, *components):
    """The rollout overlay with these components."""
    folder = shutil.copytree(K8S, tmp_path / "k8s") / "overlays" / "rollout"
    path = folder / "kustomization.yaml"
    listed = "".join(f"  - ../../{name}\n" for name in components)
    path.write_text(path.read_text().replace("  - ../../rollout\n", listed))
    return render(folder)


def test_with_signatures_the_job_and_a_servers_start_refuse_unsigned_numbers(tmp_path):
    documents = with_components(tmp_path, "rollout", "signing")
    job = container(documents, "rollout")
    name, *flags = job["args"]
    signers = parser(f"greenserve {name}").parse_args(flags).signed_by
    assert str(signers.parent) in [mount["mountPath"] for mount in job["volumeMounts"]]
    server = pods(documents)["Deployment", "tf-serving"]["spec"]
    files, verify = server["initContainers"]
    assert (files["name"], verify["name"]) == ("files", "verify")
    assert all(mount in verify["volumeMounts"] for mount in server["containers"][0]["volumeMounts"])


@pytest.mark.parametrize("components", [("mtls", "rollout"), ("rollout", "mtls")])
def test_rollouts_go_together_with_certificates_of_the_server(components, tmp_path):
    server = pods(with_components(tmp_path, *components))["Deployment", "tf-serving"]["spec"]
    assert "--ssl_config_file=/config/ssl.config" in server["containers"][0]["command"][-1]
    (config_volume,) = [each["projected"] for each in server["volumes"] if each["name"] == "config"]
    assert any("secret" in source for source in config_volume["sources"])
    mounts = {each["name"]: each["mountPath"] for each in server["containers"][0]["volumeMounts"]}
    assert mounts["config"] == "/given" and mounts["links"] == "/config"
