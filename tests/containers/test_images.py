"""SUMO, server and controller out of images that are really built, on loopback.

buildah's chroot isolation stands for a container runtime: the image's files, user, entry point and environment, on
the network of this machine. It has no read-only root and no resource limits; the images' user can write nothing of
them.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from simulation.trips import read_trips
from tests.conftest import GRID, ROOT
from tests.containers.images import Images, missing_requirement
from tests.end_to_end.programs import free_port
from tests.end_to_end.trainer import SIGNALS, Trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_requirement()), reason=f"{missing_requirement()}: no image can be built here"),
]
CITY = {GRID: "/city"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    built = Images(tmp_path_factory.mktemp("images"))
    built.build_base()
    built.download_wheels("controller,record,sumo,serving")
    built.build("controller/Dockerfile", "controller", "controller")
    built.build("controller/Dockerfile", "controller-sumo", "controller,sumo")
    built.build("serving/embedded/Dockerfile", "server", "serving")
    yield built
    built.remove()


@pytest.fixture
def log(tmp_path):
    with (tmp_path / "log").open("w+") as file:
        yield file


@pytest.fixture(scope="module")
def server(images, grid_models, tmp_path_factory):
    """HOST:PORT of the server's image."""
    command = [*images.entrypoint("server"), "--models-dir=/models", "--host=127.0.0.1", "--port=0"]
    with (
        (tmp_path_factory.mktemp("server") / "log").open("w") as log,
        images.running("server", command, log, {grid_models: "/models"}) as container,
    ):
        ready = container.process.stdout.readline()
        assert ready.startswith("ready at "), Path(log.name).read_text()
        yield ready.removeprefix("ready at ").partition(",")[0].strip()


def sumo(images, log, clients, out=None, *options):
    port = free_port()
    command = [
        "sumo",
        "-c",
        "/city/grid.sumocfg",
        "--remote-port",
        str(port),
        "--num-clients",
        str(clients),
        "--no-step-log",
    ]
    volumes = CITY if out is None else {**CITY, out: "/out"}
    return port, images.running("controller-sumo", [*command, "--no-warnings", *options], log, volumes)


def controlled(images, log, *arguments):
    command = [*images.entrypoint("controller"), "--city=/city/city.toml", *arguments]
    return images.running("controller", command, log, CITY)


PROPERTIES = """
import importlib.util, json, os
writable = [folder for folder, _, _ in os.walk("/opt") if os.access(folder, os.W_OK)]
found = [name for name in ("tensorflow", "keras", "pip", "eclipse_sumo", "controller") if importlib.util.find_spec(name)]
print(json.dumps([os.getuid(), writable, found]))
"""


def test_controllers_image_has_no_tensorflow_and_is_not_writable(images, log):
    with images.running("controller", ["python", "-c", PROPERTIES], log) as container:
        output, _ = container.process.communicate(timeout=60)
        assert container.process.returncode == 0, Path(log.name).read_text()
    user, writable, found = json.loads(output)
    assert user == 65534 and writable == [] and found == ["controller"]
    stated = re.search(r"without TensorFlow: (\d+) MB beside its base", (ROOT / "docs" / "kubernetes.md").read_text())
    assert images.size_mb("controller") == pytest.approx(int(stated[1]), rel=0.1)


def test_trips_out_of_containers_are_those_of_the_demo(images, server, grid_server, log, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    recorded = ("--seed", "42", "--tripinfo-output", "/out/trips.xml", *TRIPINFO_OPTIONS)
    port, street = sumo(images, log, 1, out, *recorded)
    with (
        street as sumo_container,
        controlled(images, log, "--server", server, "--sumo", f"127.0.0.1:{port}") as container,
    ):
        assert container.process.wait(300) == 0, Path(log.name).read_text()
        assert sumo_container.process.wait(60) == 0
    command = [
        sys.executable,
        "-m",
        "controller",
        "--city",
        str(GRID / "city.toml"),
        "--server",
        grid_server,
        "--seed",
        "42",
    ]
    subprocess.run([*command, "--tripinfo", str(tmp_path / "here.xml")], cwd=ROOT, check=True, capture_output=True)
    trips = read_trips(out / "trips.xml")
    assert trips.total > 2000 and trips == read_trips(tmp_path / "here.xml")


def test_sigterm_hands_the_signals_back(images, server, log):
    port, street = sumo(images, log, 2)
    with (
        street,
        controlled(images, log, "--server", server, "--sumo", f"127.0.0.1:{port}", "--order", "2") as container,
    ):
        trainer = Trainer(port)
        trainer.until(lambda: trainer.online() == set(SIGNALS), 60)
        trainer.step(30)
        os.kill(container.pid(), signal.SIGTERM)
        trainer.until(lambda: not trainer.online(), 90)
        trainer.until(lambda: container.process.poll() is not None, 20_000)
        assert container.process.returncode == 0, Path(log.name).read_text()
        trainer.client.close()
    trainer.assert_safe()
