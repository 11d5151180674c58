"""The model server of a simulation: in a process of its own, which ends with its parent in every case."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from city.errors import InputError
from serving.client import Client
from simulation import model_files
from simulation.model_server import model_server
from tests.conftest import GRID, ROOT
from tests.simulation.process_jobs import has_ended

EPISODE = f"""
import sys
from pathlib import Path
import greenserve
env = greenserve.env({str(GRID / "city.toml")!r}, "SA101", ["SA102"], infer_model_path=sys.argv[1], seconds=60)
env.reset(seed=1)
while not env.step(0)[3]:
    pass
maps = Path("/proc/self/maps").read_text()
print([name for name in sys.modules if name.startswith("tensorflow")], "tensorflow" in maps)
"""
SERVE = """
import multiprocessing, os, sys, time
from pathlib import Path
from simulation.model_server import model_server
with model_server({"SA102": Path(sys.argv[1])}):
    if sys.argv[2] == "fork":
        holder = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        holder.start()
        print(holder.pid)
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def version(grid_models):
    return model_files.find(grid_models, {"SA102": None})["SA102"]


def script(text, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)


def ends(pid, within_s=20):
    """True once a process is gone, or waits for its exit code to be read."""
    deadline = time.monotonic() + within_s
    while not (ended := has_ended(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return ended


def test_environment_beside_served_tls_loads_no_tensorflow(grid_models):
    # PyTorch with Triton crashes beside TensorFlow
    output, _ = script(EPISODE, grid_models).communicate(timeout=120)
    assert output.strip() == "[] False"


@pytest.mark.parametrize("kind", ["alone", "fork"])
def test_server_ends_with_a_killed_parent(kind, version):
    parent = script(SERVE, version, kind)
    holder = int(parent.stdout.readline()) if kind == "fork" else None
    server = int(parent.stdout.readline())
    assert not ends(server, 0.3), "it serves"
    parent.kill()
    try:
        assert ends(server)
    finally:
        parent.wait()
        if holder is not None:
            os.kill(holder, signal.SIGKILL)


def test_server_that_is_starting_ends_with_a_killed_parent(version):
    parent = script(SERVE, version, "alone")
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (started := children.read_text().split()):
        time.sleep(0.002)
    parent.kill()
    parent.wait()
    assert ends(int(started[0]))


def test_server_has_exactly_the_given_versions_and_ends_with_the_block(version):
    with model_server({"SA102": version}) as address, Client(address) as client:
        assert [status.version for status in client.status("SA102")] == [int(version.name)]
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (server,) = [pid for pid in children if b"simulation.model_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert ends(server, 0.1)
    with model_server({}) as address:
        assert address == ""


def test_version_that_cannot_be_loaded_is_named(tmp_path):
    broken = tmp_path / "SA102" / "3"
    broken.mkdir(parents=True)
    (broken / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"SA102/3: cannot be loaded .* again"), model_server({"SA102": broken}):
        pass


@pytest.mark.parametrize("package", ["tensorflow", "grpc_health"])
def test_missing_package_names_the_extra(package, version, tmp_path, monkeypatch):
    (tmp_path / f"{package}.py").write_text("raise ImportError('it is not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install 'greenserve\[serving\]'"), model_server({"SA102": version}):
        pass
