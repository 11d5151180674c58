"""`python -m training`: checkpoints that the exporter reads, resumed trainings, and one line for every wrong input."""

import contextlib
import csv
import errno
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

import training.__main__
from city import config
from controller.check import main as check
from export import training_record
from export.__main__ import main as export
from serving.contract import from_saved_model
from simulation.executors import ThisProcess
from tests.conftest import GRID, ROOT
from tests.error_lines import refused
from tests.training import states
from training.__main__ import main
from training.episode import TrainingTask
from training.learning import Learning
from training.saved_state import locked, state_file
from training.settings import Settings
from training.statistics import FPS, NotFinite
from training.trainer import Trainer

FIRST_KERNEL = "actor/_functional/_operations/1/_kernel/.ATTRIBUTES/VARIABLE_VALUE"
"""The kernel of an actor's first layer, in a checkpoint of TensorFlow 2."""

REWARDS = "tests.training.own_rewards"
FORMATS = {"SA101": "tf1", "SA103": "h5", "SA107": "tf2"}
CITY = ("--city", str(GRID / "city.toml"))
SHORT = (
    *CITY, "--target-tl", ",".join(FORMATS), "--seconds", "200", "--episodes-per-update", "1", "--evaluate-every", "1",
    "--held-out", "1",
)  # fmt: skip
FORMAT_FLAGS = [word for tl, kind in FORMATS.items() for word in ("--format", f"{tl}={kind}")]


def curve_of(folder):
    """The rows of a curve without the speed, which differs from run to run."""
    rows = list(csv.DictReader((folder / "trial_3_curve.csv").open()))
    return [{name: value for name, value in row.items() if name != FPS} for row in rows]


def first_kernel(folder):
    return tf.train.load_checkpoint(tf.train.latest_checkpoint(folder)).get_tensor(FIRST_KERNEL)


def train(out, episodes, *flags):
    return main([*SHORT, *FORMAT_FLAGS, "--episodes", str(episodes), "--model-number", "3", "--out", str(out), *flags])


def other_city(folder):
    ignored = shutil.ignore_patterns("checkpoints", "models", "__pycache__")
    city = shutil.copytree(GRID, folder / "grid", ignore=ignored)
    return city, [str(city / "city.toml") if word == CITY[1] else word for word in SHORT]


class Changing(ThisProcess):
    """An executor that changes the trips of episodes. `change`: (job, trips) -> trips."""

    def __init__(self, change):
        self._change = change

    def run(self, function, jobs, cpus=1):
        for index, episode in super().run(function, jobs, cpus):
            yield index, replace(episode, trips=self._change(jobs[index], episode.trips))


class InterruptedAt(ThisProcess):
    """An executor that is interrupted at a call; `calls`: the jobs of each call."""

    def __init__(self, call):
        self.calls, self._last = [], call

    def run(self, function, jobs, cpus=1):
        self.calls.append(jobs)
        if len(self.calls) == self._last:
            raise KeyboardInterrupt
        return super().run(function, jobs, cpus)


def task_of(tls=("SA101",), seconds=60.0):
    return TrainingTask(config.load(GRID / "city.toml"), tls, seconds=seconds)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    assert train(out / "whole", 3) == 0
    return out / "whole"


def test_contract_has_the_change_times_that_the_training_had(tmp_path, capsys):
    """With a yellow of 2 s in city.toml, and the street's floor of 3 s: check asks for no other training."""
    city = tmp_path / "city.toml"
    city.write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[training]\nmodel_path = "out"\n'
        '[tl.SA101]\nsignals = ["A0"]\ndialect = "sumo-rl"\n'
    )
    out, flags = tmp_path / "out", ("--seconds", "50", "--episodes", "1", "--held-out", "1")
    assert main(["--city", str(city), "--out", str(out), *flags]) == 0
    assert export(["--city", str(city), "--tl", "SA101", "--models-dir", str(tmp_path / "models")]) == 0
    contract = from_saved_model(tmp_path / "models" / "SA101" / "1")
    assert (contract.timing.yellow_s, contract.origin.change_s) == (2, 3)
    capsys.readouterr()
    assert check(["--city", str(city)]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 TLs match" in shown and "[training.times]" not in shown
    training_record.path_in(out, 1).write_text('{"SA101": {"programs": {}, "change_s": -1}}')
    assert export(["--city", str(city), "--tl", "SA101", "--models-dir", str(tmp_path / "models"), "--overwrite"]) == 2
    assert "trial_1_training.json: is not the record of a training" in capsys.readouterr().err


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The same training, interrupted in its second update."""
    folder = tmp_path_factory.mktemp("interrupted")
    settings = Settings(folder, 3, 3, 1, evaluate_every=1, held_out=1, formats=FORMATS)
    with pytest.raises(KeyboardInterrupt):
        # after the episode of the second update, in its evaluation
        Trainer(task_of(tuple(FORMATS), 200.0), settings, InterruptedAt(4)).run()
    return folder


@pytest.fixture
def copy(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "copy")


def test_resumed_training_comes_to_the_same_numbers(trained, interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    assert train(tmp_path, 3, "--resume") == 0
    rows = curve_of(trained)
    assert curve_of(tmp_path) == rows and list((trained / "tensorboard" / "trial_3").glob("events*"))
    assert list(rows[0])[:2] == ["episode", "delay_s"] and [row["episode"] for row in rows] == ["1", "2", "3"]
    np.testing.assert_equal(states.read(state_file(tmp_path, 3)), states.read(state_file(trained, 3)))


@pytest.mark.parametrize("kind", ["best", "newest"])
def test_checkpoint_of_the_best_or_of_the_newest_state_is_written(trained, tmp_path, kind):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    values, arrays = states.read(state_file(tmp_path, 3))
    # as if an earlier state had been better than the newest one
    arrays["best/1/000"] = arrays["best/1/000"] + 1
    states.write(state_file(tmp_path, 3), values, arrays)
    assert train(tmp_path, 3, "--resume", "--checkpoint", kind) == 0
    first = first_kernel(tmp_path / "SA107")
    # SA107 is the second TL with a continuous actor
    # a state to resume from begins with the scales of the rewards
    expected = arrays["best/1/000" if kind == "best" else "state/1/001"]
    np.testing.assert_array_equal(first, expected[1, : len(first)])


def test_newest_state_is_on_disk_when_the_curve_has_its_row(tmp_path):
    """Also between two evaluations."""
    executor = InterruptedAt(3)
    with pytest.raises(KeyboardInterrupt):
        Trainer(task_of(), Settings(tmp_path, 3, 20, 1, evaluate_every=10, writes_newest=True), executor).run()
    first_kernels = [jobs[0][0][0][0] for jobs in executor.calls]
    assert len(curve_of(tmp_path)) == 2
    np.testing.assert_array_equal(first_kernel(tmp_path / "SA101"), first_kernels[2][0])
    assert not np.array_equal(first_kernels[1], first_kernels[2])


def test_trainer_is_imported_without_tensorflow():
    script = "import sys, training.trainer; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.slow
def test_simulations_begin_before_tensorflow_is_loaded(tmp_path):
    """With workers, which need none; it is loaded meanwhile."""
    script = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from city import config\n"
        "from simulation.executors import ThisProcess\n"
        "from training.episode import TrainingTask\n"
        "from training.settings import Settings\n"
        "from training.trainer import Trainer\n"
        "class Worker(ThisProcess):\n"
        "    def run(self, function, jobs, cpus=1):\n"
        "        begun.append('tensorflow' in sys.modules)\n"
        "        go_on.set()\n"
        "        return super().run(function, jobs, cpus)\n"
        "class Late(Trainer):\n"
        "    def _prepare(self):\n"
        "        go_on.wait()\n"
        "        super()._prepare()\n"
        "        threads.append(threading.current_thread() is threading.main_thread())\n"
        "begun, threads, go_on = [], [], threading.Event()\n"
        "task = TrainingTask(config.load(Path(sys.argv[1])), ('SA101',), seconds=50.0)\n"
        "Late(task, Settings(Path(sys.argv[2]), 1, 2, 1, workers=2, held_out=1), Worker()).run()\n"
        "print(begun[0], threads)\n"
    )
    command = [sys.executable, "-c", script, str(GRID / "city.toml"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False [False]\n", done.stderr[-2000:]


def test_resumed_training_in_another_city_is_refused(copy, tmp_path, capsys):
    city, short = other_city(tmp_path)
    flags = (*short, *FORMAT_FLAGS, "--episodes", "3", "--model-number", "3", "--out", str(copy), "--resume")
    refused(capsys, main([*flags, "--reward", "queue"]), "--reward")
    with (city / "demand.rou.xml").open("a") as file:
        file.write("<!-- another morning -->")
    refused(capsys, main(flags), "had another [network] or its files; pass the same flags")
    shutil.copy(GRID / "demand.rou.xml", city)
    (city / "city.toml").write_text((city / "city.toml").read_text().replace("all_red_s = 0", "all_red_s = 1"))
    refused(capsys, main(flags), "had another [safety]; pass the same flags")


def test_checkpoints_of_every_format_and_model_number_are_exported(trained, tmp_path, capsys):
    """A second training keeps the checkpoints of the first."""
    out, models = shutil.copytree(trained, tmp_path / "out"), tmp_path / "models"
    assert main([*SHORT, *FORMAT_FLAGS, "--episodes", "1", "--model-number", "4", "--out", str(out)]) == 0
    assert {"PPO-_SA101_trial_3.index", "SA107-3.index"} <= {path.name for path in out.rglob("*")}
    flags = ("--model-path", str(out), "--tl", ",".join(FORMATS), "--models-dir", str(models))
    for number in ("3", "4"):
        assert export([*CITY, *flags, "--model-number", number]) == 0, capsys.readouterr().err
    for tl in FORMATS:
        weights = [next((models / tl / number / "variables").glob("*.data-*")).read_bytes() for number in ("3", "4")]
        assert weights[0] != weights[1]
    change_s = {tl: from_saved_model(models / tl / "3").origin.change_s for tl in FORMATS}
    assert change_s == {"SA101": 3.0, "SA103": 0.0, "SA107": 0.0}, "of the only TL with a policy that chooses greens"


def test_training_is_not_overwritten_by_another(trained, capsys):
    before = (trained / "trial_3_curve.csv").read_text()
    refused(capsys, train(trained, 3), "pass --resume to continue it")
    assert (trained / "trial_3_curve.csv").read_text() == before


@pytest.mark.parametrize("name", ["trial_3_curve.csv", "PPO-_SA101_trial_3.index", "SA107"])
def test_results_of_the_same_model_number_are_never_replaced(trained, tmp_path, capsys, name):
    """Of a training whose state is gone, or of another trainer."""
    if (trained / name).is_dir():
        shutil.copytree(trained / name, tmp_path / name)
    else:
        for path in trained.glob(f"{Path(name).stem}*"):
            shutil.copy(path, tmp_path)

    def content():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = content()
    line = "already exists, with model number 3; pass another --model-number"
    refused(capsys, train(tmp_path, 3), f"{tmp_path}/", line)
    assert content() == before


def test_second_training_of_a_model_number_in_a_folder_is_refused(tmp_path, capsys):
    with locked(tmp_path, 3):
        refused(
            capsys,
            train(tmp_path, 3),
            f"{tmp_path}: another training of model number 3 runs in this folder; wait for its end",
        )
    assert not list(tmp_path.iterdir())


def test_episodes_without_a_vehicle_do_not_end_the_training(tmp_path, monkeypatch):
    """Of few vehicles a varied episode may have none; the city's own demand has one."""
    executor = Changing(lambda job, trips: replace(trips, total=0) if job[3] else trips)
    result = Trainer(task_of(), Settings(tmp_path, 1, 2, 1, evaluate_every=1, held_out=1), executor).run()
    assert result.episodes == 2 and result.paths["SA101"].is_dir()


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


def without_identity(path):
    values, arrays = states.read(path)
    del values["identity"]
    states.write(path, values, arrays)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"garbage"), "is not the state of this training (it is damaged, or not a .npz"),
        (lambda path: np.save(path.open("wb"), np.zeros(3)), "is not the state of this training (it is damaged"),
        (without_identity, "is not the state of this training ('identity'); pass another --model-number"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03", 1)), "is not the state"),
        (replaced_by_a_folder, "cannot be read: Is a directory; fix its path or permissions"),
    ],
)  # fmt: skip
def test_damaged_state_of_a_training_is_one_line(copy, capsys, damage, message):
    damage(state_file(copy, 3))
    refused(capsys, train(copy, 3, "--resume"), f"error: {state_file(copy, 3)}: {message}")


def test_file_in_the_place_of_tensorboards_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "tensorboard").touch()
    refused(capsys, train(tmp_path, 3), f"error: {tmp_path}/tensorboard/trial_3: cannot be written")


def test_best_state_by_held_out_demand_is_what_is_written(tmp_path, monkeypatch):
    delays, validated = iter((30.0, 20.0, 25.0, *[26.0] * 5)), []

    def with_delay(job, trips):
        if job[3]:
            return trips
        validated.append(job[0][0][0].copy())
        return replace(trips, delay_s=next(delays))

    settings = Settings(tmp_path, 1, 9, 1, evaluate_every=1, held_out=1, patience=1)
    result = Trainer(task_of(), settings, Changing(with_delay)).run()
    assert (result.best_delay_s, result.episodes) == (20.0, 3), "it ends after one evaluation without an improvement"
    assert result.fresh.text() == "mean delay 26.0 s on 5 fresh demands"
    assert all(np.array_equal(validated[1], kernel) for kernel in validated[3:]), "of what was written"
    np.testing.assert_array_equal(first_kernel(result.paths["SA101"]), validated[1][0])


def test_fresh_evaluation_is_on_demand_that_nothing_was_chosen_on(tmp_path):
    seen = []
    executor = Changing(lambda job, trips: seen.append(job[1].seed) or trips)
    result = Trainer(task_of(), Settings(tmp_path, 1, 2, 1, evaluate_every=1, held_out=2), executor).run()
    fresh = [demand.seed for demand in result.fresh.demands]
    assert len(fresh) == 5 == len(set(fresh)) and seen[-5:] == fresh and not set(seen[:-5]) & set(fresh)
    rows = list(csv.DictReader((tmp_path / "trial_1_evaluation.csv").open()))
    assert [(int(row["sumo_seed"]), float(row["delay_s"])) for row in rows] == [
        (seed, pytest.approx(trips.delay_s, rel=1e-5)) for seed, trips in zip(fresh, result.fresh.trips, strict=True)
    ]
    assert {row["start_delay_s"] for row in rows} == {""}


def test_validation_without_a_vehicle_is_no_delay_of_zero(tmp_path):
    """The newest state is kept, and the first with a vehicle is better than none."""
    validated, lines = [], []

    def without_vehicles(job, trips):
        if job[3]:
            return trips
        validated.append(job[0][0][0].copy())
        return replace(trips, total=0, delay_s=0.0)

    settings = Settings(tmp_path, 1, 2, 1, evaluate_every=1, held_out=1, patience=1)
    trainer = Trainer(task_of(), settings, Changing(without_vehicles), lines.append, shows_bar=False)
    result = trainer.run()
    assert (result.best_delay_s, result.episodes) == (float("inf"), 2)
    assert result.fresh.text() == "mean delay unknown (no vehicle) on 5 fresh demands"
    assert "validation unknown (no vehicle)" in lines[0]
    np.testing.assert_array_equal(trainer._best[0][0], validated[1])
    rows = list(csv.DictReader((tmp_path / "trial_1_curve.csv").open()))
    assert [row["validation_delay_s"] for row in rows] == ["", ""]


def test_disk_that_is_full_costs_no_saved_state(copy, monkeypatch, capsys):
    state = (copy / ".trial_3.progress.npz").read_bytes()

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    refused(capsys, train(copy, 3, "--resume"), "No space left on device")
    assert (copy / ".trial_3.progress.npz").read_bytes() == state
    assert not list(copy.glob("*.partial"))


def test_nan_ends_the_training_with_the_best_state_written(copy, monkeypatch, capsys):

    monkeypatch.setattr(Learning, "learn", Mock(side_effect=NotFinite("a loss is not finite any more")))
    assert train(copy, 3, "--resume") == 1
    assert "not finite" in capsys.readouterr().err and (copy / "SA107").is_dir()


def test_ctrl_c_names_resume(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ThisProcess, "run", Mock(side_effect=KeyboardInterrupt))
    assert train(tmp_path, 3) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: interrupted; nothing was saved yet"


def descendants(pid):
    """Processes that a process has started, and those that they have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                own = int(path.parent.name)
                found += [own, *descendants(own)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signal_ends_the_training_and_every_process_it_started(number, tmp_path):
    command = [sys.executable, "-m", "training", *SHORT, "--episodes", "1000", "--model-number", "3", "--workers", "2"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    next(line for line in iter(process.stderr.readline, "") if line.startswith("update 2 of"))
    started = descendants(process.pid)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and error.splitlines()[-1] == "error: interrupted; --resume continues"
    assert len(started) >= 2
    end_s = time.monotonic() + 20
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end_s, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        time.sleep(0.05)
    values, _ = states.read(state_file(tmp_path, 3))
    assert values["update"] >= 2 and not list(tmp_path.rglob("*.partial"))
    assert {"SA101", "SA103", "SA107"} <= {path.name for path in tmp_path.iterdir()}, "the best state so far"


@pytest.mark.slow
def test_disk_that_is_full_leaves_the_last_whole_checkpoint(trained, tmp_path):
    """The limit of a file's size stands for a full disk: TensorFlow writes the files itself."""
    shutil.copytree(trained, tmp_path / "out")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "out" / "SA107").iterdir())}
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from city import config, network\n"
        "from city.errors import InputError\n"
        "from signals.contract import build\n"
        "from training import checkpoints\n"
        "city = config.load(Path(sys.argv[1]))\n"
        "contract = build(city, city.tls['SA107'], network.of_city(city))\n"
        "layers = [(np.ones((contract.observation.size, 4096), np.float32), np.ones(4096, np.float32))]\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n"
        "    checkpoints.write('tf2', Path(sys.argv[2]), contract, layers, 3)\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(GRID / "city.toml"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "the checkpoint of SA107 cannot be written" in done.stdout and done.stdout.count("\n") == 1, done.stderr
    assert {path: path.read_bytes() for path in sorted((tmp_path / "out" / "SA107").iterdir())} == before
    assert not list((tmp_path / "out").glob("*.partial"))


def test_infer_models_of_several_folders_and_numbers_act_in_one_simulation(grid_models, tmp_path, monkeypatch, capsys):
    shutil.copytree(grid_models / "SA104", tmp_path / "a" / "SA104")
    shutil.copytree(grid_models / "SA107", tmp_path / "b" / "SA107")
    (tmp_path / "b" / "SA107" / "1").rename(tmp_path / "b" / "SA107" / "5")
    served = []
    model_server = training.__main__.model_server
    monkeypatch.setattr(
        training.__main__, "model_server", lambda versions: served.append(dict(versions)) or model_server(versions)
    )
    named = ("--infer-model", f"SA_104={tmp_path / 'a'}:1", "--infer-model", f"SA107={tmp_path / 'b'}")
    flags = ("--target-TLs", "SA 101", "--infer-TLs", "SA102, SA 104,SA107", "--infer-model-path", str(grid_models))
    assert main([*CITY, *flags, *named, "--seconds", "50", "--episodes", "1", "--out", str(tmp_path / "out")]) == 0
    folders = {"SA102": grid_models / "SA102" / "1", "SA104": tmp_path / "a/SA104/1", "SA107": tmp_path / "b/SA107/5"}
    assert served == [folders]


def test_a_function_of_the_users_own_rewards_in_every_worker(tmp_path, capsys):
    flags = ("--target-tl", "SA101", "--seconds", "100", "--episodes", "2", "--episodes-per-update", "2")
    for out, reward, workers in (("own", f"{REWARDS}:halting", "2"), ("same", "queue", "1")):
        assert main([*CITY, *flags, "--reward", reward, "--workers", workers, "--out", str(tmp_path / out)]) == 0
    own, same = (states.read(state_file(tmp_path / out, 1)) for out in ("own", "same"))
    assert own[0]["identity"]["--reward"] == f"{REWARDS}:halting"
    assert all(np.array_equal(array, same[1][name]) for name, array in own[1].items()), "it is the reward queue"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--target-tl", "SA999"), "SA999 is not one of the TLs"),
        (("--target-tl", "SA101", "--infer-tl", "SA101"), "SA101 cannot be in --target-tl and --infer-tl at once"),
        (("--target-tl", "SA101", "--infer-tl", "SA104", "--infer-model-number", "77"), "SA104/77; SA104 has 1"),
        (("--infer-model-number", "3"), "--infer-model-number needs --infer-tl"),
        (
            ("--target-tl", "SA101", "--infer-tl", "SA104", "--server", "x:1", "--infer-model-path", "m"),
            "both name the models",
        ),
        (("--target-tl", "SA101", "--infer-tl", "SA104", "--server", "127.0.0.1:1"), "no model server answers"),
        (("--target-tl", "SA101", "--infer-tl", "SA104", "--server", "foo"), "--server"),
        (("--target-tl", "SA101", "--infer-tl", "SA104", "--infer-model-path", "nowhere"), "there is no model in"),
        (("--infer-tl", "all"), "--infer-tl names every TL"),
        (("--resume",), "no such file, so no training to resume"),
        (("--episodes", "0"), "--episodes: 0 must lie between 1"),
        (("--seconds", "-1"), "--seconds: -1 must lie between 1"),
        (("--learning-rate", "nan"), "--learning-rate nan"),
        (("--hidden-sizes", "64;64"), "--hidden-sizes '64;64' must be"),
        (("--format", "SA101=onnx"), "--format 'SA101=onnx' must be"),
        (("--reward", "speed"), "--reward 'speed' must be module:function, or one of average-speed, delay,"),
        (("--reward", "nowhere:f"), "reward nowhere:f cannot be imported: ModuleNotFoundError"),
        (("--reward", f"{REWARDS}:missing"), f"reward {REWARDS}:missing cannot be imported: AttributeError"),
        (("--reward", f"{REWARDS}:TEXT"), f"reward {REWARDS}:TEXT is not a function"),
        (("--reward", f"{REWARDS}:nothing"), "reward: nothing gave 'nothing' for"),
        (("--infer-model", "SA104=1"), "--infer-model needs --infer-tl"),
        (("--infer-tl", "SA104", "--infer-model", "SA101=1"), "--infer-model 'SA101=1' must be TL=NUMBER, TL=DIR"),
        (("--infer-tl", "SA104", "--infer-model", "SA104=nowhere:7"), "there is no model in nowhere/SA104"),
        (
            ("--infer-tl", "SA104", "--infer-model", "SA104=1", "--server", "127.0.0.1:1"),
            "--server and --infer-model both name the models",
        ),
        (("--workers", "0"), "--workers: 0 must"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(flags, message, grid_models, tmp_path, capsys):
    models = ("--infer-model-path", str(grid_models)) if "77" in flags else ()
    # of a flag that is given twice, the last one counts
    refused(capsys, main([*CITY, *models, "--seconds", "50", *flags, "--out", str(tmp_path)]), message)


@pytest.mark.parametrize(("end", "message"), [("", "has no end"), ('<end value="60"/>', "no vehicle departs")])
def test_city_without_end_or_demand_is_refused_and_nothing_is_written(end, message, tmp_path, capsys):
    network = f'<input><net-file value="{GRID / "grid.net.xml"}"/></input>'
    (tmp_path / "a.sumocfg").write_text(f"<configuration>{network}<time>{end}</time></configuration>")
    (tmp_path / "city.toml").write_text(
        '[network]\nsumocfg = "a.sumocfg"\n[tl.SA101]\nsignals = ["A0"]\ndialect = "sumo-rl"\n'
    )
    flags = ("--city", str(tmp_path / "city.toml"), "--out", str(tmp_path / "out"), "--episodes", "1")
    refused(capsys, main(flags), message)
    assert not (tmp_path / "out").exists()
