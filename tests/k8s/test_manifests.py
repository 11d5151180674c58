"""Manifests and container files: rendered, validated, and checked against the programs they start."""

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from controller import config as controller_config
from controller.guard import __main__ as guard
from tests.conftest import GRID, ROOT

BASE = ROOT / "k8s" / "base"
KUBERNETES = "1.30"
CITY_MOUNT = "/city"


@pytest.fixture(scope="module")
def rendered():
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client); it renders the manifests")
    done = subprocess.run(["kubectl", "kustomize", str(BASE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def containers(rendered):
    pods = [d["spec"]["template"]["spec"] for d in rendered if d["kind"] == "Deployment"]
    return {c["name"]: c for pod in pods for c in (*pod.get("initContainers", ()), *pod["containers"])}


def test_every_object_is_valid(rendered):
    import kubernetes_validate

    assert {d["kind"] for d in rendered} >= {"Deployment", "Service", "PersistentVolumeClaim", "ConfigMap"}
    for document in rendered:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_validation_rejects_a_misspelt_field(rendered):
    import kubernetes_validate

    deployment = next(d for d in rendered if d["kind"] == "Deployment")
    broken = yaml.safe_load(yaml.safe_dump(deployment))
    broken["spec"]["template"]["spec"]["containers"][0]["imgae"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_models_are_mounted_read_only(rendered):
    (mount,) = containers(rendered)["tf-serving"]["volumeMounts"]
    assert mount["mountPath"] == "/models" and mount["readOnly"] is True


def test_no_container_runs_as_root_or_can_write_its_image(rendered):
    for container in containers(rendered).values():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
    for pod in [d["spec"]["template"]["spec"] for d in rendered if d["kind"] == "Deployment"]:
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_controller_accepts_its_arguments(rendered):
    parsed = controller_config.parse(with_city(arguments_of(rendered, "controller"), GRID / "city.toml"))
    assert (
        parsed.attach == ("127.0.0.1", 8814)
        and not parsed.guard
        and parsed.server == "tf-serving:8500"
        and parsed.http == ("0.0.0.0", 9108)
    )
    assert len(parsed.infer_tls) == 8


def arguments_of(rendered, name):
    settings = next(d for d in rendered if d["kind"] == "ConfigMap")["data"]
    return [re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], text) for text in containers(rendered)[name]["args"]]


def with_city(arguments, city):
    """The arguments with another city.toml than the one mounted in the pod."""
    place = arguments.index(f"--city={CITY_MOUNT}/city.toml")
    return [*arguments[:place], f"--city={city}", *arguments[place + 1 :]]


def test_the_guard_holds_the_connection_with_the_citys_watchdog(rendered, tmp_path):
    city = tmp_path / "city.toml"
    city.write_text("[controller]\nwatchdog_s = 7\n")
    args, sumo_arguments = guard.parse(with_city(arguments_of(rendered, "guard"), city))
    assert (args.sumo, args.port, args.order, sumo_arguments) == ("sumo:8813", 8814, 1, [])
    assert args.watchdog_s == 7
    assert containers(rendered)["guard"]["restartPolicy"] == "Always"


@pytest.mark.parametrize("name", ["guard", "controller"])
def test_the_citys_folder_is_mounted_read_only(rendered, name):
    (mount,) = [m for m in containers(rendered)[name]["volumeMounts"] if m["mountPath"] == CITY_MOUNT]
    assert mount["readOnly"] is True


def test_images_of_the_project_have_its_version(rendered):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image = f"greenserve-controller:{version}"
    assert {containers(rendered)[name]["image"] for name in ("guard", "controller")} == {image}
    compose = yaml.safe_load((ROOT / "serving" / "tf_serving" / "compose.yaml").read_text())
    assert compose["services"]["controller"]["image"] == f"{image}-sumo"
    assert f"-t {image} ." in (ROOT / "controller" / "Dockerfile").read_text()


def test_the_controllers_service_and_probe_reach_its_port(rendered):
    container = containers(rendered)["controller"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 9108}]


def test_image_and_manifest_start_the_same_server_with_equal_flags(rendered):
    dockerfile = (ROOT / "serving" / "tf_serving" / "Dockerfile").read_text()
    assert "FROM tensorflow/serving:2.20.0" in dockerfile
    assert re.findall(r'"(--[^"]+)"', dockerfile) == containers(rendered)["tf-serving"]["args"]


def test_compose_mounts_models_read_only_and_listens_on_loopback():
    compose = yaml.safe_load((ROOT / "serving" / "tf_serving" / "compose.yaml").read_text())
    services = compose["services"]
    assert services["tf-serving"]["volumes"] == ["${CITY:-../../examples/grid}/models:/models:ro"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    folder = ROOT / "serving" / "tf_serving"
    build = services["controller"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).resolve() == ROOT / "controller" / "Dockerfile"
    arguments = services["controller"]["command"]
    arguments[1] = str(GRID / "city.toml")
    assert controller_config.parse(arguments).server == "tf-serving:8500"


def test_the_controllers_image_has_no_tensorflow():
    text = (ROOT / "controller" / "Dockerfile").read_text()
    assert "ARG EXTRAS=controller\n" in text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [name for name in extras["controller"] + extras["sumo"] if "tensorflow" in name or "keras" in name]
    copied = re.findall(r"^COPY (\w+) \1$", text, re.M)
    assert copied == ["city", "protos", "serving", "controller", "greenserve"]
    for name in copied:
        assert (ROOT / name / "__init__.py").is_file()
    assert "constraints.txt" in re.search(r"^COPY (.+) \./$", text, re.M)[1].split()
    assert "--constraint constraints.txt" in text
