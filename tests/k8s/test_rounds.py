"""The RayJob of the rounds: valid for KubeRay, of the installed Ray, with a command of ours. It was not run on a cluster."""

import json
import re
import shlex
import tomllib

import jsonschema
import pytest
import yaml

from tests.conftest import GRID, ROOT
from training.rounds.command import _groups, _parse

MANIFEST = ROOT / "k8s" / "rounds" / "rayjob.yaml"


@pytest.fixture(scope="module")
def documents():
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def schema(shared):
    path = shared / "schemas" / "ray.io_v1_RayJob.json"
    if not path.is_file():
        pytest.skip(f"KubeRay's schema is not at {path}")
    return json.loads(path.read_text())


def strict(schema):
    """The schema, but unknown fields are errors: the API server would drop them without a word."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def test_manifest_is_valid_for_kuberay(documents, schema):
    import kubernetes_validate

    job = documents["RayJob"]
    spec = {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
    jsonschema.validate(job, strict(spec))
    for group in (job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)
    kubernetes_validate.validate(documents["PersistentVolumeClaim"], "1.30", strict=True)


def test_validation_rejects_a_misspelt_field(documents, schema):
    broken = yaml.safe_load(yaml.safe_dump(documents["RayJob"]))
    broken["spec"]["entrypiont"] = broken["spec"].pop("entrypoint")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, strict(schema))


def test_command_is_accepted(documents):
    spec = documents["RayJob"]["spec"]
    shell, flag, script = shlex.split(spec["entrypoint"])
    values = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    command = re.sub(r"\$(\w+)", lambda match: values.get(match[1], ""), script.partition("exec ")[2])
    words = shlex.split(command)
    assert (shell, flag) == ("sh", "-c") and words[:4] == ["python", "-m", "training", "rounds"]
    args = _parse(words[4:], "rounds")
    known = list(tomllib.loads((GRID / "city.toml").read_text())["tl"])
    assert args.ray == "auto" and args.rounds == 3 and len(_groups(args.groups, known)) == 3
    assert (args.city.as_posix(), args.out.as_posix()) == ("/city/city.toml", "/rounds")


def test_ray_is_of_one_version(documents):
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert documents["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == pinned
    assert f"ARG BASE=rayproject/ray:{pinned}-py311\n" in (ROOT / "training" / "Dockerfile").read_text()


def test_image_has_the_projects_version_and_all_of_its_packages(documents):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    image = f"greenserve-training:{project['project']['version']}"
    cluster = documents["RayJob"]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert [each["image"] for each in group["template"]["spec"]["containers"]] == [image]
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
