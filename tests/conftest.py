"""Shared fixtures: the sample city, real training output and networks, small networks, servers."""

import fcntl
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from city import config, network
from city.network import SignalNetwork

# the duration of an example depends on the machine; the same examples in every run: `--hypothesis-profile explore`
# draws others
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("repeatable")
# hundreds of programs that tests start would else compile the project's modules, each of them anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).resolve().parent.parent
GRID = ROOT / "examples" / "grid"
SHARED = ROOT.parent / "shared"
SLOWEST_FILES = (
    "examples/test_train_elsewhere.py",
    "simulation/test_ray_cluster.py",
    "containers/test_images.py",
    "signals/safety/test_mutations.py",
    "packaging/test_wheel.py",
    "end_to_end/test_rollout.py",
    "export/test_phase_competition.py",
    "end_to_end/test_faults.py",
    "end_to_end/test_several_clients.py",
    "training/test_training.py",
    "end_to_end/test_guard_ends.py",
    "end_to_end/test_strange_neighbours.py",
    "end_to_end/test_operator.py",
    "end_to_end/test_sumo_rl_identity.py",
    "rounds/test_rounds.py",
    "controller/operator/page/test_server.py",
    "end_to_end/test_guard.py",
    "export/test_architectures.py",
    "training/phase_competition/test_shared_networks.py",
    "evaluation/test_evaluation.py",
)
"""Files that take longest in `make slow`, then in `make test` (`--durations`): they run first, so that no process ends
long after the others."""


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"real training output and real streets are not at {SHARED}")
    return SHARED


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch) -> None:
    """Let the test run in its own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def grid_city() -> config.City:
    return config.load(GRID / "city.toml")


@pytest.fixture(scope="session")
def grid_street(grid_city) -> network.StreetNetwork:
    return network.of_city(grid_city)


@pytest.fixture
def crossing() -> SignalNetwork:
    """Four links: 0 and 2 go straight on, 1 turns left across 2, 3 crosses both.

    Link 1 yields to 2; 3 is a foe of 0, 1 and 2 without right of way between them.
    """
    foes = np.zeros((4, 4), bool)
    yields = np.zeros((4, 4), bool)
    for i, j in ((1, 2), (0, 3), (1, 3), (2, 3)):
        foes[i, j] = foes[j, i] = True
    yields[1, 2] = True
    links = tuple(((f"in{i}_0", f"out{i}_0"),) for i in range(4))
    lanes = tuple(f"in{i}_0" for i in range(4))
    phases = tuple(network.ProgramPhase(s, 20, 20, 20) for s in ("GgGr", "yyyr", "rrrG", "rrry"))
    program = network.Program("0", "static", 0, phases)
    return SignalNetwork("X", links, lanes, (program,), "0", foes, yields, yields | yields.T)


CROSSROADS = {
    "node": """<nodes><node id="J" x="0" y="0" type="traffic_light"/><node id="N" x="0" y="300"/><node id="S" x="0" y="-300"/>
        <node id="E" x="300" y="0"/><node id="W" x="-300" y="0"/></nodes>""",
    "edge": "<edges>"
    + "".join(
        f'<edge id="{a}{b}" from="{a}" to="{b}" numLanes="{lanes}" speed="{mps}" sidewalkWidth="2"/>'
        for end, lanes, mps in (("N", 2, 13.89), ("S", 2, 13.89), ("E", 3, 19.44), ("W", 3, 19.44))
        for a, b in ((end, "J"), ("J", end))
    )
    + "</edges>",
    "connection": """<connections><crossing node="J" edges="NJ JN" priority="1" linkIndex="22" linkIndex2="23"/>
        <crossing node="J" edges="EJ JE" priority="1" linkIndex="24"/>
        <crossing node="J" edges="SJ JS" priority="1" linkIndex="25"/></connections>""",
}


@pytest.fixture(scope="session")
def crossroads_net(tmp_path_factory) -> Path:
    """A junction of a 70 km/h and a 50 km/h street with three pedestrian crossings; the first has a link per
    direction."""
    from controller.sumo.programs import sumo_program

    folder = tmp_path_factory.mktemp("crossroads")
    command = [sumo_program("netconvert"), "--output-file", str(folder / "x.net.xml")]
    for kind, text in CROSSROADS.items():
        (folder / f"{kind}.xml").write_text(text)
        command += [f"--{kind}-files", str(folder / f"{kind}.xml")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "x.net.xml"


WALKS = ("NJ JE", "NJ JW", "EJ JN", "EJ JS", "SJ JE", "WJ JN", "WJ JS", "JW WJ")
"""Some over one crossing, some over two, and some beside the crossings."""


@pytest.fixture(scope="session")
def crossroads_walkers(crossroads_net) -> Path:
    """A route file of `crossroads_net` with many persons and a few cars, for 150 s."""
    flows = [
        f'<personFlow id="{way.replace(" ", "-")}-é" begin="0" end="150" period="exp(0.15)" departPos="260">'
        f'<walk edges="{way}"/></personFlow>'
        for way in WALKS
    ]
    car = '<flow id="car" begin="0" end="150" period="5" from="WJ" to="JE" departLane="best"/>'
    routes = crossroads_net.parent / "walkers.rou.xml"
    routes.write_text(f"<routes>{''.join(flows)}{car}</routes>")
    return routes


@pytest.fixture(scope="session")
def crossroads(crossroads_net) -> SignalNetwork:
    """The signal of `crossroads_net`."""
    return network.read(crossroads_net).signals["J"]


@pytest.fixture(scope="session")
def grid_models(tmp_path_factory) -> Path:
    """Folder of the sample city's models, exported from its checkpoints once for all of pytest-xdist's workers: for
    reading."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    models = folder / "grid-models"
    with (folder / "grid-models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not models.is_dir():
            from export.__main__ import main

            draft = folder / "grid-models.draft"
            assert main(["--city", str(GRID / "city.toml"), "--tl", "all", "--models-dir", str(draft)]) == 0
            draft.rename(models)
    return models


@pytest.fixture(params=["TCP", "Unix socket"])
def fake(request, tmp_path):
    """A server whose responses the test chooses, on a port and on a Unix socket."""
    from tests.serving.fake_server import Fake

    made = Fake(str(tmp_path / "grpc") if request.param == "Unix socket" else "")
    yield made
    made.stop()


def pytest_addoption(parser):
    parser.addoption("--server", metavar="HOST:PORT", help="run tests/contracts against this server's gRPC API")
    parser.addoption("--rest", metavar="HOST:PORT", help="and against this REST API")


def pytest_collection_modifyitems(items):
    """Put the slowest files first."""
    rank = {ROOT / "tests" / name: k for k, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items:
        if item.get_closest_marker("alone") and not item.get_closest_marker("slow"):
            raise pytest.UsageError(f"{item.nodeid} is marked alone; mark it slow too: only make slow runs tests alone")


@pytest.fixture(scope="session")
def _grid_socket(tmp_path_factory):
    return tmp_path_factory.mktemp("unix") / "grpc"


@pytest.fixture(scope="session")
def _grid(grid_models, _grid_socket):
    """An embedded server of the sample city's models: port, Unix socket and REST."""
    from serving.embedded.config import METRICS_PATH, RestConfig, ServerConfig
    from serving.embedded.server import Server

    rest = RestConfig(0, metrics_path=METRICS_PATH)
    server = Server(ServerConfig(grid_models, port=0, rest=rest, socket_path=_grid_socket))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def grid_server(_grid):
    """HOST:PORT of an embedded server of the sample city's models, in this process."""
    return f"127.0.0.1:{_grid.port}"


@pytest.fixture(scope="session")
def grid_unix(_grid, _grid_socket):
    """unix:PATH of the same server."""
    return f"unix:{_grid_socket}"


@pytest.fixture(scope="session")
def grid_rest(_grid):
    """HOST:PORT of its REST API."""
    return f"127.0.0.1:{_grid.rest_port}"
