"""Rounds, evaluations and trainings on a real Ray cluster of several nodes on this machine, one of which is killed."""

import json
import os
import sys
import threading
import time

import numpy as np
import pytest

from city.errors import InputError
from evaluation.__main__ import main as evaluate
from pretraining import gate, plain_kinds
from pretraining.select_command import main as select
from pretraining.streets_trainer import StreetsSettings
from pretraining.synthetic.streets import generate
from pretraining.train_command import main as train
from rounds.__main__ import main
from simulation.executors.ray_tasks import RayTasks
from simulation.street_simulation import SimulationFailed
from tests.conftest import GRID

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason="Ray is not installed")

CITY = ("--city", str(GRID / "city.toml"))
SHORT = [
    "--episodes",
    "1",
    "--seconds",
    "120",
    "--evaluate-every",
    "1",
    "--held-out",
    "1",
    "--episodes-per-update",
    "1",
]
START_ATTEMPTS = 3
"""Ray gives a node, and each of its servers, some 30 s to start, which a machine under load may miss."""


@pytest.fixture
def cluster(monkeypatch):
    """A head without CPUs for tasks, and two nodes of one CPU; everything listens on loopback."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's switch for loopback: it would listen on the machine's own address
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
    local = {"node_ip_address": "127.0.0.1"}
    for attempt in range(START_ATTEMPTS):
        made = Cluster()
        try:
            made.add_node(num_cpus=0, include_dashboard=False, **local)
            made.nodes = [made.add_node(num_cpus=1, **local) for _ in range(2)]
            break
        except Exception as error:
            made.shutdown()
            if "timed out" not in str(error).lower() or attempt == START_ATTEMPTS - 1:
                raise
    yield made
    ray.shutdown()
    made.shutdown()


def process_id(seconds):
    time.sleep(seconds)
    return os.getpid()


def end(_):
    os._exit(1)


def test_tasks_of_a_killed_node_are_run_again(cluster):
    with RayTasks(cluster.address) as tasks:
        # while a task runs on each node
        killer = threading.Timer(8.0, lambda: cluster.remove_node(cluster.nodes[0], allow_graceful=False))
        killer.start()
        results = dict(tasks.run(process_id, [20.0, 20.0, 0.0]))
        killer.join()
    assert results.keys() == {0, 1, 2}


def test_a_process_runs_one_task_after_another_and_models_are_sent_once(cluster, monkeypatch):
    models, weights = {"a": os.urandom(1_000_000)}, np.arange(100_000, dtype=np.float32)
    with RayTasks(cluster.address) as tasks:
        put, sizes = tasks._ray.put, []
        monkeypatch.setattr(tasks._ray, "put", lambda value: sizes.append(size_of(value)) or put(value))
        results = dict(tasks.run(process_of, [(index, {**models}, [weights], 0.2) for index in range(12)]))
    assert [results[index][:3] for index in range(12)] == [
        (i, models["a"][:9], float(weights.sum())) for i in range(12)
    ]
    assert 1 <= len({process for *_, process in results.values()}) <= 4 < 12
    assert sorted(sizes) == [0, 400_000, 1_000_000]


def size_of(value):
    return getattr(value, "nbytes", None) or (len(value) if isinstance(value, bytes) else 0)


def process_of(job):
    index, models, (weights,), seconds = job
    time.sleep(seconds)
    return index, models["a"][:9], float(weights.sum()), os.getpid()


def test_what_a_cluster_cannot_run_is_an_error(cluster):
    with RayTasks(cluster.address) as tasks:
        with pytest.raises(SimulationFailed, match="a task on Ray failed 4 times"):
            dict(tasks.run(end, [1]))
        with pytest.raises(InputError, match=r"^--workers 2: no node .* has that many CPUs"):
            dict(tasks.run(process_id, [0.0], cpus=2))


def test_rounds_and_evaluation_run_on_a_cluster(cluster, grid_models, tmp_path, capsys):
    groups = "SA101,SA102,SA103;SA104,SA105,SA106,SA107,SA108"
    out = ("--out", str(tmp_path / "rounds"), "--seeds", "2")
    assert main([*CITY, "--groups", groups, "--rounds", "1", *SHORT, *out, "--ray", cluster.address]) == 0
    (decision,) = json.loads((tmp_path / "rounds" / "rounds.json").read_text())["rounds"]
    assert {"before", "new"} <= decision["mean_delay_s"].keys()
    assert {path.name for path in (tmp_path / "rounds" / "round_1").iterdir()} == {"group_1", "group_2", "models"}
    flags = ("--models-dir", str(grid_models), "--arms", "served,fixed", "--seeds", "2", "--seconds", "120")
    assert evaluate([*CITY, *flags, "--ray", cluster.address]) == 0
    on_ray = capsys.readouterr().out.splitlines()[-4:]
    assert evaluate([*CITY, *flags]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == on_ray, "the same numbers as on one machine"


def test_a_training_on_many_streets_is_the_same_on_a_cluster(cluster, tmp_path, monkeypatch):
    streets = tmp_path / "streets"
    for seed in (0, 3):
        generate(streets, seed)
    monkeypatch.setattr(gate.Verdict, "failure", "")  # a network of two updates is no good
    initialise = StreetsSettings.__init__
    monkeypatch.setattr(
        StreetsSettings,
        "__init__",
        lambda self, *args, **values: initialise(self, *args, **{"cloning_episodes": 2} | values),
    )
    found = gate.streets
    monkeypatch.setattr(gate, "streets", lambda folder, count: found(tmp_path / "gate_streets", count))
    plain = plain_kinds.write(tmp_path / "plain", plain_kinds.KINDS[:1])[:1]
    monkeypatch.setattr(gate.plain_kinds, "write", lambda folder: plain)
    flags = ("--episodes", "4", "--episodes-per-update", "2", "--streets", str(streets))
    for out, where in (("one", ()), ("two", ("--workers", "2")), ("ray", ("--ray", cluster.address))):
        own = ("--seconds", "60", "--out", str(tmp_path / out), *where)
        assert train([*flags, *own], "greenserve pretrain train") == 0
        trained = str(tmp_path / out / "street_trial_1.policy")
        assert select([trained, "--gate-streets", "1", "--model-number", "2", *own], "greenserve pretrain select") == 0
    one, two, on_ray = (results(tmp_path / out) for out in ("one", "two", "ray"))
    assert one.keys() >= {"street_trial_1.policy", "street_trial_2.policy", "trial_1_curve.csv", "trial_2_gate.csv"}
    assert one == two == on_ray


def results(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*") if path.is_file()}


def test_cluster_of_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(ray, "__version__", "2.0.0")
    with pytest.raises(InputError, match=r"--ray 127\.0\.0\.1:\d+: Version mismatch: .*2\.0\.0"):
        RayTasks(cluster.address)


def test_missing_ray_is_named_with_its_extra(cluster, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"install greenserve\[distributed\]"):
        RayTasks(cluster.address)
