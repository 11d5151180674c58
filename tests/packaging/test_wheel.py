"""The wheel, installed in a bare environment, exports, serves and controls in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from export import pretrained
from tests.conftest import GRID, ROOT

pytestmark = pytest.mark.slow

CITY_FILES = ("city.toml", "grid.sumocfg", "grid.net.xml", "demand.rou.xml", "fixed_time.add.xml")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """(wheel, sdist) built from a copy of the tree."""
    source = tmp_path_factory.mktemp("source") / "greenserve"
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "out", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "models"
    )
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda folder, names: (
            ignored(folder, names) - {"models"} if "embedded" in folder else ignored(folder, names)
        ),
    )
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_what_the_docs_use(distributions):
    wheel, sdist = distributions
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "protos/policy.proto",
        "protos/tensorflow_serving.binpb",
        *(
            f"{package}/py.typed"
            for package in ("city", "controller", "environment", "export", "greenserve", "protos", "serving")
        ),
        "serving/embedded/models/manager.py",
        "controller/runbook.md",
        *(f"controller/operator/page/static/{name}" for name in ("index.html", "main.js", "page.css")),
        *(f"controller/operator/page/static/vendor/{name}" for name in ("uPlot.iife.min.js", "uPlot.LICENSE")),
        pretrained.policy().relative_to(ROOT).as_posix(),
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "examples/"))]
    members = subprocess.run(["tar", "-tzf", str(sdist)], check=True, capture_output=True, text=True).stdout
    for name in (
        "/constraints.txt",
        "/CHANGELOG.md",
        "/docs/",
        "/k8s/base/controller/controller.yaml",
        "/compose.yaml",
        "/controller/Dockerfile",
        "/controller/greenserve-controller.service",
        "/examples/grid/city.toml",
    ):
        assert name in members


CLIENT = """
import sys, grpc
from tensorflow_serving.apis import model_service_pb2, predict_pb2, prediction_service_pb2, prediction_service_pb2_grpc
stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(sys.argv[1]))
request = predict_pb2.PredictRequest()
request.model_spec.name = "SA103"
request.inputs["observation"].dtype = 1
request.inputs["observation"].float_val.append(0.0)
for size in (1, 17):
    request.inputs["observation"].tensor_shape.dim.add(size=size)
print(stub.Predict(request, timeout=60).model_spec.version.value)
"""


def test_tensorflow_servings_own_client_runs_beside_the_serving_extra(distributions, grid_models, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary", ":all:"]
    # until 2.20 its prediction_service_pb2 cannot be imported beside the protobuf that TensorFlow needs
    subprocess.run([*pip, f"{distributions[0]}[serving]", "tensorflow-serving-api>=2.21"], check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, "-m", "serving", "--models-dir", grid_models, "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE) as server:
        try:
            client = [python, "-c", CLIENT, server.stdout.readline().split()[2]]
            output = subprocess.run(
                client, cwd=tmp_path, env=environment, text=True, check=True, capture_output=True
            ).stdout
            assert output == "1\n"
        finally:
            server.terminate()
            server.wait(30)


@pytest.fixture(scope="module")
def greenserve(distributions, tmp_path_factory):
    """A function that runs the installed command outside of the source tree."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [
        str(venv / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
    ]
    extras = f"{distributions[0]}[export,serving,controller,sumo]"
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), extras], check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return lambda *words, **options: subprocess.Popen(
        [str(venv / "bin" / "greenserve"), *map(str, words)], env=environment, text=True, **options
    )


def run(greenserve, folder: Path, *words) -> str:
    process = greenserve(*words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def test_the_installed_command_exports_serves_and_controls(greenserve, tmp_path):
    for name in CITY_FILES:
        shutil.copy(GRID / name, tmp_path / name)
    shutil.copytree(GRID / "checkpoints", tmp_path / "checkpoints")
    # a user's own file of that name must not be run instead of ours
    (tmp_path / "controller.py").write_text("raise SystemExit('the wrong controller')\n")
    exported = run(greenserve, tmp_path, "export", "--tl", "all")
    assert "TLs exported" in exported and "tensorflow/core" not in exported
    assert "match the network" in run(greenserve, tmp_path, "check")
    server = greenserve("serve", "--port", "0", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        address = server.stdout.readline().removeprefix("ready at ").strip()
        assert "AVAILABLE" in run(greenserve, tmp_path, "status", "--server", address)
        run(greenserve, tmp_path, "control", "--server", address, "--end", "600", "--summary", "summary.json")
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
    assert json.loads((tmp_path / "summary.json").read_text())["decisions"] > 100


def test_the_installed_command_exports_the_policy_for_any_street(greenserve, tmp_path):
    for name in ("grid.sumocfg", "grid.net.xml", "demand.rou.xml", "fixed_time.add.xml"):
        shutil.copy(GRID / name, tmp_path / name)
    assert "greenserve export --pretrained --tl all" in run(
        greenserve, tmp_path, "city", "init", "--sumocfg", "grid.sumocfg", "--dialect", "street"
    )
    assert "9 of 9 TLs exported" in run(greenserve, tmp_path, "export", "--pretrained", "--tl", "all")
    assert "9 of 9 TLs match the network" in run(greenserve, tmp_path, "check")
