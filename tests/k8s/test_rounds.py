"""The RayJobs of rounds and evaluation, compared with KubeRay's schema and our programs; none was run on a cluster."""

import re
import shlex
import tomllib

import pytest
import yaml

from evaluation.__main__ import _parse as parse_evaluation
from rounds.__main__ import _groups
from rounds.__main__ import parser as rounds_parser
from tests.conftest import GRID, ROOT
from tests.k8s.json_schema import validate, validator

FOLDER = ROOT / "k8s" / "rounds"


@pytest.fixture(params=["rayjob.yaml", "evaluation.yaml"])
def documents(request):
    return by_kind(request.param)


def by_kind(file):
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / file).read_text())}


def templates(documents):
    """The pods of a RayJob: head, workers, and the one that submits the job."""
    spec = documents["RayJob"]["spec"]
    groups = (spec["rayClusterSpec"]["headGroupSpec"], *spec["rayClusterSpec"]["workerGroupSpecs"])
    return [*(group["template"] for group in groups), spec["submitterPodTemplate"]]


@pytest.fixture(scope="module")
def kuberay(shared):
    path = shared / "schemas" / "ray.io_v1_RayJob.json"
    if not path.is_file():
        pytest.skip(f"KubeRay's schema is not at {path}")
    return validator(path)


def test_manifest_is_valid_for_kuberay(documents, kuberay):
    job = documents["RayJob"]
    kuberay.validate(job)
    for template in templates(documents):
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]})
    if "PersistentVolumeClaim" in documents:
        validate(documents["PersistentVolumeClaim"])


def command_of(documents):
    spec = documents["RayJob"]["spec"]
    shell, flag, script = shlex.split(spec["entrypoint"])
    assert (shell, flag) == ("sh", "-c")
    values = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    return shlex.split(re.sub(r"\$(\w+)", lambda match: values.get(match[1], ""), script.partition("exec ")[2]))


def test_command_of_the_rounds_is_accepted():
    command = command_of(by_kind("rayjob.yaml"))
    assert command[:3] == ["python", "-m", "rounds"]
    args = rounds_parser("rounds").parse_args(command[3:])
    known = list(tomllib.loads((GRID / "city.toml").read_text())["tl"])
    assert args.ray == "auto" and args.rounds == 3 and len(_groups(args.groups, known)) == 3
    assert (args.city.as_posix(), args.out.as_posix()) == ("/city/city.toml", "/rounds")


def test_command_of_the_evaluation_is_accepted():
    command = command_of(by_kind("evaluation.yaml"))
    assert command[:3] == ["python", "-m", "evaluation"]
    args = parse_evaluation(command[3:], "evaluation")
    assert args.ray == "auto" and args.seeds == 20 and args.gate in args.arms.split(",")[1:]
    paths = [path.as_posix() for path in (args.city, args.models_dir, args.out)]
    assert paths == ["/city/city.toml", "/models", "/rounds/evaluation"]
    head = by_kind("evaluation.yaml")["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"][
        "containers"
    ][0]
    assert {mount["mountPath"] for mount in head["volumeMounts"]} == {"/city", "/models", "/rounds"}


def test_ray_is_of_one_version(documents):
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert documents["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == pinned
    assert f"ARG BASE=rayproject/ray:{pinned}-py311\n" in (ROOT / "training" / "Dockerfile").read_text()


def test_image_has_the_projects_version_and_all_of_its_packages(documents):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    image = f"greenserve-training:{project['project']['version']}"
    for template in templates(documents):
        assert [each["image"] for each in template["spec"]["containers"]] == [image]
    text = (ROOT / "training" / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY --chown=1000:100 (\w+) \1$", text, re.M))
    assert copied == {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert f"-t {image} ." in text and "--constraint constraints.txt" in text


def test_city_is_read_at_the_same_path_everywhere(documents):
    cluster = documents["RayJob"]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        assert mounts["city"]["mountPath"] == "/city" and mounts["city"]["readOnly"] is True


def test_every_ray_pod_is_labelled_and_has_the_network_policy(documents):
    (policy,) = yaml.safe_load_all((FOLDER / "network-policy.yaml").read_text())
    validate(policy)
    selected = policy["spec"]["podSelector"]["matchLabels"]
    for document in (*documents.values(), policy):
        assert document["metadata"]["labels"].keys() >= {"app.kubernetes.io/name", *selected}
    for template in templates(documents):
        labels, spec = template["metadata"]["labels"], template["spec"]
        assert selected.items() <= labels.items() and "app.kubernetes.io/name" not in labels, "KubeRay sets the name"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert all(each["securityContext"]["allowPrivilegeEscalation"] is False for each in spec["containers"])


def test_only_ray_pods_and_kuberay_reach_ray_pods():
    (policy,) = yaml.safe_load_all((FOLDER / "network-policy.yaml").read_text())
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    among, operator = spec["ingress"]
    assert among == {"from": [{"podSelector": spec["podSelector"]}]} and len(operator["from"]) == 1
    assert operator["from"][0]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    assert operator["ports"] == [{"port": 8265}]
    base = yaml.safe_load((ROOT / "k8s" / "base" / "controller" / "network-policy.yaml").read_text())
    assert spec["egress"] == [{"to": [{"podSelector": spec["podSelector"]}]}, base["spec"]["egress"][-1]], "and DNS"
