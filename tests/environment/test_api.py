"""The contracts of PettingZoo, Gymnasium and the libraries on top of them, and the first examples of the docs."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from types import ModuleType

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test
from pettingzoo.utils.conversions import parallel_to_aec

import greenserve
from city.errors import InputError
from tests.conftest import GRID, ROOT
from tests.environment.conftest import play

CITY = str(GRID / "city.toml")
NO_SB3 = "stable-baselines3 is not installed (pip install torch stable-baselines3)"


@pytest.fixture(autouse=True)
def _errors_for_warnings():
    """A warning of a checker is a failure."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        # render modes of registered environments alone are tested
        warnings.filterwarnings("ignore", ".*alternative render modes.*")
        # agents have the names of the TLs
        warnings.filterwarnings("ignore", "We recommend agents to be named in the format")
        warnings.filterwarnings("ignore", "SA101 and SA103 decide at different moments")
        yield


@pytest.mark.parametrize("target_tls", [["SA101", "SA102"], None], ids=["one interval", "any intervals"])
def test_pettingzoos_api_test_passes(target_tls, parallel):
    parallel_api_test(parallel(target_tls, seconds=100), num_cycles=60)


def test_pettingzoos_turn_by_turn_interface_works(parallel):
    api_test(parallel_to_aec(parallel(["SA101", "SA102"], seconds=100)), num_cycles=30)


def test_pettingzoos_seed_test_passes_with_two_environments_at_once():
    with pytest.warns(UserWarning, match="libsumo is in use in this process"):
        parallel_seed_test(lambda: greenserve.parallel_env(CITY, ["SA101", "SA103"]), 60)


def test_second_environment_of_a_process_runs_beside_the_first(parallel):
    environments = [parallel(["SA101"], seconds=60, demand="city") for _ in range(3)]
    with pytest.warns(UserWarning, match="libsumo is in use in this process") as warned:
        starts = [env.reset(seed=1)[0]["SA101"] for env in environments]
        for _ in range(12):
            steps = [env.step({"SA101": 1}) for env in environments]
        again = [env.reset(seed=1)[0]["SA101"] for env in environments]
    assert all(np.array_equal(starts[0], other) for other in (*starts, *again))
    assert len({float(rewards["SA101"]) for _, rewards, *_ in steps}) == 1 and steps[0][1]["SA101"] < 0
    own = [w.filename for w in warned if w.category is UserWarning]
    assert own == [__file__] * 2, "one line for each that runs over TraCI, at the user's line"


def test_masked_greens_are_those_that_the_safety_rules_would_not_allow(single, grid_city):
    """Random choices of the unmasked greens are followed without override."""
    safety = replace(grid_city.safety, min_green_s=12.0, max_red_s=60.0)
    env, rng = single("SA101", city=replace(grid_city, safety=safety), seconds=600), np.random.default_rng(1)
    with pytest.raises(ResetNeeded):
        env.action_masks()
    _, info = env.reset(seed=1)
    masks, is_over = [], False
    while not is_over:
        mask = env.action_masks()
        assert mask.dtype == bool and info["action_mask"].dtype == np.int8 and np.array_equal(mask, info["action_mask"])
        masks.append(tuple(mask))
        action = int(rng.choice(np.flatnonzero(mask)))
        decided_s = info["time_s"]
        _, _, _, is_over, info = env.step(action)
        overrides = {override["reason"] for override in info["overrides"] if override["at_s"] == decided_s}
        # those of a change that is permitted; the service of max red has its own yellow
        assert overrides <= {"yellow", "clearance", *(["max_red"] if sum(mask) == 1 else [])}
    assert (True,) * 4 in masks and any(sum(mask) == 1 for mask in masks) and all(map(any, masks))
    with pytest.raises(InputError, match="SA103: its actions are numbers, which have no mask"):
        numbers = single("SA103", seconds=60)
        numbers.reset(seed=1)
        numbers.action_masks()


def test_sb3_contribs_maskable_ppo_trains_with_the_masks(single):
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed (pip install sb3-contrib)")
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

    env = single("SA101", seconds=60)
    assert is_masking_supported(env)
    model = contrib.MaskablePPO("MlpPolicy", env, n_steps=24, batch_size=24, n_epochs=1, device="cpu").learn(48)
    observation, info = env.reset(seed=1)
    action, _ = model.predict(observation, action_masks=get_action_masks(env), deterministic=True)
    assert info["action_mask"][action]


def test_environment_evaluates_beside_its_training():
    sb3 = pytest.importorskip("stable_baselines3", reason=NO_SB3)
    callbacks = pytest.importorskip("stable_baselines3.common.callbacks", reason=NO_SB3)
    make_vec_env = pytest.importorskip("stable_baselines3.common.env_util", reason=NO_SB3).make_vec_env
    warnings.filterwarnings("ignore", "libsumo is in use")
    envs = make_vec_env(lambda: greenserve.env(CITY, "SA101", seconds=60), n_envs=2)
    with (
        contextlib.closing(envs),
        contextlib.closing(make_vec_env(lambda: greenserve.env(CITY, "SA101", seconds=60))) as evaluated,
    ):
        callback = callbacks.EvalCallback(evaluated, n_eval_episodes=1, eval_freq=16, verbose=0)
        sb3.PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(64, callback)
        assert len(callback.evaluations_results or [callback.last_mean_reward]) and np.isfinite(
            callback.last_mean_reward
        )


@pytest.mark.parametrize(
    "vectorised",
    [
        gymnasium.vector.SyncVectorEnv,
        pytest.param(partial(gymnasium.vector.AsyncVectorEnv, context="spawn"), marks=pytest.mark.slow),
    ],
    ids=["here", "processes"],
)
def test_gymnasiums_vectorisation_runs(vectorised):
    warnings.filterwarnings("ignore", "libsumo is in use")
    makes = [lambda: greenserve.env(CITY, "SA101", seconds=60, demand="city")] * 2
    with contextlib.closing(vectorised(makes)) as envs:
        assert envs.reset(seed=[1, 1])[0].shape == (2, 21)
        for action in (0, 1, 2):
            observations, rewards, *_ = envs.step(np.array([action, action]))
        assert np.array_equal(*observations) and rewards[0] == rewards[1], "the same seed"


def test_episodes_of_other_seeds_are_others(parallel):
    env = parallel(["SA101"], seconds=60)
    first, other = (play(env, seed=seed) for seed in (3, 4))
    assert any(not np.array_equal(a["SA101"], b["SA101"]) for (a, *_), (b, *_) in zip(first, other, strict=True))


@pytest.mark.parametrize(("tl", "seconds"), [("SA101", 60), ("SA103", 60), ("SA107", 600)])
def test_gymnasiums_check_passes(tl, seconds, single):
    check_env(single(tl, seconds=seconds))


def test_stable_baselines3s_check_passes(single):
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason=NO_SB3)
    checker.check_env(single("SA101", seconds=60))


@pytest.mark.slow
def test_stable_baselines3s_subprocesses_run():
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason=NO_SB3)
    makes = [lambda: greenserve.env(CITY, "SA101", seconds=60)] * 2
    with contextlib.closing(vec_env.SubprocVecEnv(makes, start_method="spawn")) as envs:
        envs.seed(1)
        assert envs.reset().shape == (2, 21)
        _, rewards, done, _ = envs.step([0, 1])
        assert rewards.shape == (2,) and not done.any()


def test_supersuits_vectorisation_runs():
    """As CleanRL's ppo_pettingzoo_ma does it."""
    supersuit = pytest.importorskip("supersuit", reason="SuperSuit is not installed (pip install supersuit)")
    env = greenserve.parallel_env(CITY, ["SA101", "SA102", "SA104"], seconds=60)
    padded = supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env))
    vectorised = supersuit.pettingzoo_env_to_vec_env_v1(padded)
    with contextlib.closing(supersuit.concat_vec_envs_v1(vectorised, 1, num_cpus=0, base_class="gymnasium")) as envs:
        observations, _ = envs.reset(seed=1)
        assert np.shape(observations) == (3, 21)
        ends = [bool(all(envs.step(np.zeros(3, int))[3])) for _ in range(24)]
        assert [k for k, is_end in enumerate(ends) if is_end] == [11, 23], "it resets itself"


def test_environment_is_copied_by_its_arguments(parallel):
    env = parallel(["SA101"], seconds=60)
    env.reset(seed=1)
    copy = cloudpickle.loads(cloudpickle.dumps(env))
    assert copy.possible_agents == ["SA101"] and copy.agents == [] and copy.observation_space("SA101").shape == (21,)
    copy.close()
    env.step({"SA101": 0})


def run_script(script, folder):
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True)


def test_importing_greenserve_is_light_and_its_client_needs_no_gymnasium(tmp_path):
    script = """
import sys, greenserve
print([name for name in ("numpy", "gymnasium", "pettingzoo", "environment", "city") if name in sys.modules])
sys.modules["gymnasium"] = None
print(greenserve.Client.__module__)"""
    done = run_script(script, tmp_path)
    assert done.stdout.split() == ["[]", "serving.client.client"], done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = greenserve.nothing


@pytest.mark.parametrize("has_triton", [True, False])
def test_tensorboard_loads_no_tensorflow_beside_the_environment_if_there_is_triton(has_triton, tmp_path):
    pytest.importorskip("tensorboard")
    if has_triton:
        (tmp_path / "triton.py").write_text("")
    script = "import sys\nfrom greenserve import env\nfrom tensorboard.compat import tf\ntf.io"
    done = run_script(f"{script}\nprint('tensorflow' in sys.modules)", tmp_path)
    assert done.stdout.strip() == str(not has_triton), done.stderr


def test_tensorflow_beside_pytorch_with_triton_is_named(tmp_path, single, monkeypatch):
    (tmp_path / "triton.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tensorflow", "torch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.warns(UserWarning, match="import env from greenserve before stable_baselines3") as warned:
        single(seconds=60)
    assert warned[0].filename.endswith("conftest.py"), "the user's line"


@pytest.mark.parametrize("name", ["environment", "simulation"])
def test_module_of_the_user_that_hides_ours_is_named(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("")
    done = run_script("from greenserve import parallel_env", tmp_path)
    assert f"{tmp_path / name}.py hides greenserve's package {name}; rename it" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("gymnasium", "env", "environment"), ("grpc", "Client", "controller")]
)
def test_missing_package_names_the_extra(module, name, extra, tmp_path):
    done = run_script(f"import sys; sys.modules['{module}'] = None\nimport greenserve; greenserve.{name}", tmp_path)
    assert f"pip install 'greenserve[{extra}]'" in done.stderr.splitlines()[-1]


BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "environment.md").read_text(), re.M | re.S)


def test_episode_of_the_page_runs(grid_models, tmp_path, monkeypatch):
    for path in GRID.glob("*.*"):
        shutil.copy(path, tmp_path)
    sumocfg = tmp_path / "grid.sumocfg"
    sumocfg.write_text(sumocfg.read_text().replace('end value="3600"', 'end value="300"'))
    (tmp_path / "models").symlink_to(grid_models)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(BLOCKS[0], names)
    assert set(names["observations"]) == {"SA101", "SA102"} and names["env"].agents == []
    exec(BLOCKS[1], names)
    with contextlib.closing(names["env"]) as env:
        assert env.reset(seed=1)[0].shape == (21,)
