"""Checkpoints of PyTorch libraries, read without torch: files that the libraries wrote, with the libraries' own
outputs."""

import argparse
import base64
import collections
import datetime
import json
import os
import pickle
import shutil
import types
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import save

from export.__main__ import main
from export.checkpoints import torch_state, torch_tensors
from tests.conftest import SHARED
from tests.export.exporting import export, exported, manifest, outputs_of, refuses, same, version
from tests.export.torch_files import FIVE, Tensor, linear_layers, outputs_of_layers, relu, softmax
from tests.export.torch_files import save as save_as_torch

TANH = ("--action", "categorical", "--hidden-activation", "tanh")
RELU = ("--action", "categorical", "--hidden-activation", "relu")


@pytest.fixture
def torch_files(shared):
    return shared / "checkpoints" / "torch"


@pytest.fixture
def copied(torch_files, checkpoints):
    """Copies a file, or a folder without the library's answers (which are arrays too), into the checkpoints."""

    def copy(name, to=""):
        source, target = torch_files / name, checkpoints / to
        if source.is_dir():
            ignored = shutil.ignore_patterns("expected.npz", "meta.json")
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)
        return checkpoints

    return copy


@pytest.fixture
def answers(torch_files):
    return lambda name: np.load(torch_files / name / "expected.npz")


@pytest.fixture
def changed_zip(torch_files, checkpoints):
    """Copies a model with its settings changed. `change`: is called with `data`."""

    def copy(name, change):
        with (
            zipfile.ZipFile(torch_files / name / "model.zip") as source,
            zipfile.ZipFile(checkpoints / "model.zip", "w") as target,
        ):
            for member in source.namelist():
                content = source.read(member)
                if member == "data":
                    settings = json.loads(content)
                    change(settings)
                    content = json.dumps(settings)
                target.writestr(member, content)
        return checkpoints

    return copy


@pytest.mark.parametrize(
    "name",
    [
        "sb3_ppo_cologne1", "sb3_a2c", "sb3_ppo_small", "sb3_ppo_separate", "sb3_ppo_linear", "sb3_ppo_vecnormalize",
        "sb3_ppo_vecnormalize_reward_only", "sb3_v1_7_ppo", "sb3_v2_0_ppo", "sb3contrib_maskable_ppo", "rllib_ppo",
        "rllib_ppo_shared", "rllib_ppo_meanstd",
    ],
)  # fmt: skip
def test_categorical_outputs_match_the_library(copied, answers, name):
    expected, source = answers(name), copied(name)
    outputs = outputs_of(source, x=expected["x"])
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)
    np.testing.assert_array_equal(outputs["action"], expected["y_action"])
    recorded = manifest(source)
    assert all(len(file["sha256"]) == 64 for file in recorded["source"]["files"])
    assert recorded["parity"]["largest_absolute_difference"] <= 1e-5


def test_dqn_gives_q_values_and_no_probabilities(copied, answers, capsys):
    expected, source = answers("sb3_dqn_cologne1"), copied("sb3_dqn_cologne1")
    outputs = outputs_of(source, x=expected["x"])
    assert sorted(outputs) == ["action", "q_values"]
    np.testing.assert_allclose(outputs["q_values"], expected["y_q"], atol=1e-5)
    np.testing.assert_array_equal(outputs["action"], expected["y_action"])
    policy = json.loads((version(source) / "assets.extra" / "policy.json").read_text())
    assert policy["action"]["scores"] == "q_values"
    assert main(["describe", str(version(source))]) == 0
    assert "categorical, 4 choices, q_values" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sb3_ppo_continuous", "sb3_ppo_continuous_squash", "sb3_sac_continuous"])
def test_continuous_policies_are_clipped_or_squashed_as_predict_does(copied, answers, name):
    expected = answers(name)
    scale = max(1.0, float(np.abs(expected["y_action"]).max()))
    np.testing.assert_allclose(exported(copied(name), x=expected["x"]), expected["y_action"], atol=1e-5 * scale)


STATE_DICTS = [
    *(("cleanrl_state_dict", name, "y_probs") for name in (
        "agent.pt", "agent_legacy.pt", "agent.safetensors", "agent_with_metadata.safetensors",
        "agent_training_checkpoint.pt", "agent_dataparallel_prefix.pt",
    )),
    *(
        ("dtype_variants", f"actor_{dtype}{suffix}", f"y_logits_{dtype}")
        for dtype in ("f16", "f32", "f64", "bf16")
        for suffix in (".pt", ".safetensors")
    ),
    *(
        ("dtype_variants", f"actor_{what}.pt", "y_logits_f32")
        for what in ("strided_shared_storage", "parameters", "big_endian", "rezipped_deflated")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "name", "key"), STATE_DICTS)
def test_every_layout_of_a_state_dict_is_read_as_torch_reads_it(copied, answers, folder, name, key):
    expected = answers(folder)
    outputs = outputs_of(copied(f"{folder}/{name}"), *TANH, x=expected["x"])
    probabilities = expected[key] if key == "y_probs" else softmax(expected[key])
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-5)


AGENT = "cleanrl_state_dict/agent.pt"
NORMALISED = "sb3_ppo_vecnormalize/model.zip"


@pytest.mark.parametrize(
    ("name", "flags", "parts"),
    [
        ("sb3_ppo_cnn", TANH, ["observation space is Box of shape [1, 36, 36]"]),
        ("sb3_ppo_dict", TANH, ["observation space is Dict"]),
        ("sb3_ppo_multidiscrete", TANH, ["action space is MultiDiscrete"]),
        ("sb3contrib_recurrent_ppo", TANH, ["lstm_actor/", "is not a tensor of a supported policy"]),
        ("torchscript", TANH, ["TorchScript archive, which holds a program"]),
        (
            "cleanrl_state_dict/agent_whole_module.pt",
            TANH,
            ["names __main__.Agent", "torch.save(model.state_dict(), path)"],
        ),
        ("dtype_variants/actor_nan_inf.pt", TANH, ["non-finite values"]),
        (AGENT, TANH[:2], ["pass --hidden-activation (tanh for CleanRL's PPO"]),
        (AGENT, TANH[2:], ["set output_activation in [tl.NAME]"]),
        (NORMALISED, (), ["was trained in a VecNormalize environment", "model_vecnormalize.pkl"]),
    ],
)
def test_policies_that_cannot_be_exported_are_refused_with_the_reason(copied, capsys, name, flags, parts):
    refuses(capsys, copied(name), *parts, flags=flags)


UNSEEN = "whether it was trained in a VecNormalize environment cannot be seen in it"


def with_space(key, space):
    """A change of a zip's space; what is printed beside its pickle stays."""
    stored = {":serialized:": base64.b64encode(pickle.dumps(space)).decode()}
    return lambda data: data[key].update(stored)


def observed_in(low, high):
    """A change of a zip's observation space; what it observed is as before, between 0 and 1."""
    return with_space("observation_space", gymnasium.spaces.Box(np.float32(low), np.float32(high), (21,)))


def observed(value):
    """A change of the last observation of training."""
    last = base64.b64encode(pickle.dumps(np.full((1, 21), value, np.float32))).decode()
    return lambda data: data["_last_obs"].update({":serialized:": last})


NORMALISING = "was trained in a VecNormalize environment"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "sb3_ppo_continuous",
            with_space("action_space", gymnasium.spaces.Discrete(4, start=1)),
            "only Discrete from 0 on and a Box",
        ),
        (
            "sb3_ppo_continuous",
            with_space("action_space", gymnasium.spaces.Box(-np.inf, np.inf, (4,))),
            "its action space is not bounded",
        ),
        (
            "sb3_ppo_continuous",
            with_space("observation_space", gymnasium.spaces.Discrete(21)),
            "its observation space is Discrete; only a Box",
        ),
        (
            "sb3_ppo_continuous",
            lambda data: data.pop("action_space"),
            "its action_space was not saved; save it without",
        ),
        # of DQN and SAC nothing but the last observation shows that VecNormalize was there
        ("sb3_dqn_cologne1", observed(-0.5), NORMALISING),
        ("sb3_dqn_cologne1", observed(1.5), NORMALISING),
        # MlpPolicy's tensors, and code of its own that no file holds
        (
            "sb3_ppo_cologne1",
            lambda data: data["policy_class"].update(__module__="__main__"),
            "of module __main__) is not supported: only MlpPolicy",
        ),
        (
            "sb3_ppo_cologne1",
            lambda data: data.update(policy_kwargs={"features_extractor_class": "<class '__main__.Scale'>"}),
            "its features extractor <class '__main__.Scale'> is not MlpPolicy's",
        ),
        ("sb3_ppo_cologne1", lambda data: data.pop("policy_kwargs"), "policy_kwargs, which contain the activations"),
    ],
)
def test_zip_of_a_policy_that_cannot_be_served_is_refused(changed_zip, capsys, name, change, message):
    refuses(capsys, changed_zip(name, change), message)


@pytest.mark.parametrize(
    ("name", "change", "is_seen"),
    [
        ("sb3_dqn_cologne1", lambda data: None, True),
        ("sb3_dqn_cologne1", observed_in(0.0, np.inf), True),
        ("sb3_dqn_cologne1", observed_in(-np.inf, np.inf), False),
        ("sb3_dqn_cologne1", observed_in(-3e38, 3e38), False),
        ("sb3_dqn_cologne1", lambda data: data.pop("_last_obs"), False),
        ("sb3_ppo_cologne1", lambda data: None, True),
        ("sb3_ppo_cologne1", lambda data: data.pop("_last_original_obs"), False),
    ],
)
def test_normalisation_that_a_zip_cannot_show_is_said(changed_zip, capsys, name, change, is_seen):
    assert export(changed_zip(name, change)) == 0
    assert (UNSEEN in capsys.readouterr().out) != is_seen


@pytest.mark.parametrize("name", ["dqn_stats.pkl", "env.pickle", "statistics"])
def test_statistics_are_recognised_by_their_content(copied, changed_zip, capsys, name):
    source = changed_zip("sb3_dqn_cologne1", observed_in(-np.inf, np.inf))
    (source / "replay_buffer.pkl").write_bytes(pickle.dumps(list(range(1000))))
    copied("sb3_ppo_vecnormalize/vecnormalize.pkl", name)
    refuses(capsys, source, f"{name} beside it", UNSEEN, "name them model_vecnormalize.pkl")


def test_rllib_module_without_its_env_runner_says_what_cannot_be_seen(copied, capsys):
    source = copied("rllib_ppo_meanstd")
    shutil.rmtree(source / "checkpoint" / "env_runner")
    assert export(source) == 0
    assert "whether a MeanStdFilter normalised its observations cannot be seen" in capsys.readouterr().out


def test_statistics_that_cannot_be_used_are_refused(copied, capsys):
    copied("sb3_ppo_cologne1/model.zip")
    source = copied("sb3_ppo_vecnormalize/vecnormalize.pkl")
    refuses(capsys, source, "was not trained in a VecNormalize environment, but vecnormalize.pkl is beside it")
    copied(NORMALISED)
    (source / "vecnormalize.pkl").write_bytes(b"not a pickle")
    refuses(capsys, source, f"{source / 'vecnormalize.pkl'}: cannot be read as statistics of VecNormalize")


@pytest.mark.parametrize(
    ("statistics", "other", "code"),
    [
        ("SA101_trial_1_vecnormalize.pkl", "SA101_trial_10", 0),
        ("vecnormalize_SA101_trial_1.pkl", "SA101_trial_10", 0),
        ("SA101_vecnormalize.pkl", None, 0),
        ("vecnormalize.pkl", None, 0),
        ("vecnormalize.pkl", "SA102_trial_1", 2),  # whose of the two?
        ("SA101_trial_10_vecnormalize.pkl", "SA101_trial_10", 2),  # the other's
        ("SA101_trial_10_vecnormalize.pkl", None, 2),
        ("SA102_trial_1_vecnormalize.pkl", "SA102_trial_1", 2),
    ],
)
def test_statistics_are_those_of_the_models_own_name(copied, checkpoints, statistics, other, code):
    for stem in filter(None, ("SA101_trial_1", other)):
        copied(NORMALISED, f"{stem}.zip")
    copied("sb3_ppo_vecnormalize/vecnormalize.pkl", statistics)
    assert export(checkpoints, "--model-number", "1") == code
    assert (checkpoints.parent / "models").exists() == (code == 0)


def test_features_extractor_that_only_flattens_may_be_named(changed_zip):
    named = {"features_extractor_class": "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"}
    assert export(changed_zip("sb3_ppo_cologne1", lambda data: data["policy_kwargs"].update(named))) == 0


def test_statistics_of_their_own_number_of_steps_are_used(copied, checkpoints, answers):
    """CheckpointCallback writes rl_model_1000_steps.zip and rl_model_vecnormalize_1000_steps.pkl."""
    for steps in (1000, 2000):
        copied(NORMALISED, f"SA101_{steps}_steps.zip")
        copied("sb3_ppo_vecnormalize/vecnormalize.pkl", f"SA101_vecnormalize_{steps}_steps.pkl")
    expected = answers("sb3_ppo_vecnormalize")
    outputs = outputs_of(checkpoints, x=expected["x"])
    assert version(checkpoints).name == "2000"
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


REFUSED = {"evil_sb3_data.zip"}
"""Files that may be exported, and are refused: the spaces are in pickles that name programs."""


def cases(kind):
    """Names of the hostile files that must be refused or exported; [] where the data is absent."""
    meta = SHARED / "checkpoints" / "torch" / "hostile" / "meta.json"
    stored = json.loads(meta.read_text())["cases"] if meta.is_file() else {}
    return [name for name, case in stored.items() if case["must"].startswith(kind) != (name in REFUSED)]


@pytest.mark.parametrize("name", cases("refuse"))
def test_hostile_files_are_refused_with_one_line_and_nothing_is_run(copied, tmp_path, capsys, name, in_tmp_path):
    assert export(copied(f"hostile/{name}"), *TANH) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and "Traceback" not in lines[0] and name in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


@pytest.mark.parametrize("name", cases("export"))
def test_files_with_harmless_oddities_are_exported_and_nothing_is_run(copied, tmp_path, name, in_tmp_path):
    assert export(copied(f"hostile/{name}"), *(() if name.endswith(".zip") else TANH)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "models"]


def test_pickle_in_rllib_settings_is_not_run(copied, tmp_path, capsys, in_tmp_path):
    source = copied("rllib_ppo")

    class Payload:
        def __reduce__(self):
            return Path.touch, (Path("PWNED"),)

    next(source.rglob("default_policy/class_and_ctor_args.pkl")).write_bytes(pickle.dumps(Payload()))
    refuses(capsys, source, "its pickle names pathlib.Path", "no code of it was run")
    assert not (tmp_path / "PWNED").exists()


def test_rllib_state_as_msgpack_is_read(copied, answers):
    import msgpack

    from export.checkpoints import rllib

    source = copied("rllib_ppo")
    state = next(source.rglob("default_policy/module_state.pkl"))

    def pack(a):
        return {b"nd": True, b"type": a.dtype.str, b"kind": b"", b"shape": list(a.shape), b"data": a.tobytes()}

    packed = {name.replace("/", "."): pack(a) for name, a in rllib.contents(state).arrays.items()}
    state.with_suffix(".msgpack").write_bytes(msgpack.packb(packed, use_bin_type=True))
    state.unlink()
    expected = answers("rllib_ppo")
    np.testing.assert_allclose(outputs_of(source, x=expected["x"])["probabilities"], expected["y_probs"], atol=1e-5)


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("checkpoint_000012/learner_group/learner/rl_module/SA101", "12"),
        ("SA101/checkpoint_000003/learner_group/learner/rl_module/default_policy", "3"),
    ],
)
def test_rllib_policies_are_found_by_the_names_of_tls(torch_files, checkpoints, answers, place, number):
    """One policy for each TL by its agent's name, or in a folder named after the TL."""
    files = {"SA101": "rllib_ppo", "SA102": "rllib_ppo_shared"}
    for tl, name in files.items():
        policy = next((torch_files / name).rglob("rl_module/default_policy"))
        shutil.copytree(policy, checkpoints / place.replace("SA101", tl))
    for tl, name in files.items():
        expected = answers(name)
        outputs = outputs_of(checkpoints, tl=tl, x=expected["x"])
        assert version(checkpoints, tl).name == number
        np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


def test_rllib_connector_that_changes_observations_is_refused(copied, capsys):
    source = copied("rllib_ppo_meanstd")
    filter_folder = next(source.rglob("MeanStdFilter"))
    filter_folder.rename(filter_folder.with_name("FrameStackingEnvToModule"))
    refuses(capsys, source, "connector FrameStackingEnvToModule, which may change observations")


def assert_probabilities(checkpoints, logits, *flags):
    found = outputs_of(checkpoints, *flags, x=FIVE)["probabilities"]
    np.testing.assert_allclose(found, softmax(logits), atol=1e-5)


@pytest.mark.parametrize("prefix", ["actor.", ""])
def test_npz_with_pytorch_names_is_read(checkpoints, prefix):
    arrays = linear_layers((f"{prefix}0", 8, 5), (f"{prefix}2", 3, 8))
    np.savez(checkpoints / "SA101_trial_1.npz", **arrays)
    logits = outputs_of_layers(arrays, f"{prefix}0", f"{prefix}2", hidden=relu)
    assert_probabilities(checkpoints, logits, *RELU[:2], *(() if prefix else ("--scores", "probabilities")))


@pytest.mark.parametrize(("dtype", "cause"), [(bfloat16, "(bfloat16?)"), (np.int32, "holds int32")])
def test_npz_without_floats_is_refused_with_a_remedy(dtype, cause, checkpoints, capsys):
    arrays = linear_layers(("actor.0", 8, 5), ("actor.2", 3, 8))
    np.savez(checkpoints / "SA101_trial_1.npz", **{name: values.astype(dtype) for name, values in arrays.items()})
    refuses(capsys, checkpoints, "actor/0/weight", cause, "save it as float32: values.astype(numpy.float32)")


def test_layers_by_name_leave_the_others_unread(checkpoints):
    """An actor whose layers are attributes: fc1, fc2, fc_mean, and fc_logstd, which serves training."""
    arrays = linear_layers(("fc1", 8, 5), ("fc2", 8, 8), ("fc_mean", 2, 8), ("fc_logstd", 2, 8))
    np.savez(checkpoints / "SA101_trial_1.npz", **arrays)
    expected = np.tanh(outputs_of_layers(arrays, "fc1", "fc2", "fc_mean", hidden=relu))
    same(exported(checkpoints, "--layers", "fc1,fc2,fc_mean", x=FIVE), expected)


def test_hidden_layers_without_bias_are_exported_and_named(checkpoints, capsys):
    rng = np.random.default_rng(3)
    kernels = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (8, 8), (8, 2))]
    np.savez(checkpoints / "SA101_trial_1.npz", **{f"actor/dense_{k}/kernel": v for k, v in enumerate(kernels)})
    expected = np.tanh(relu(relu(FIVE @ kernels[0]) @ kernels[1]) @ kernels[2])
    same(exported(checkpoints, x=FIVE), expected)
    assert "its hidden layers have no bias" in capsys.readouterr().out


def test_arrays_without_names_of_layers_are_refused_with_names_to_use(checkpoints, capsys):
    np.savez(checkpoints / "SA101_trial_1.npz", w1=np.ones((5, 8), np.float32), b1=np.zeros(8, np.float32))
    names = ("actor/dense/kernel [inputs, units]", "0.weight [units, inputs]")
    refuses(capsys, checkpoints, "holds no layers of an actor", *names)


@pytest.fixture
def saved(checkpoints):
    def write(tensors):
        (checkpoints / "SA101_trial_1.safetensors").write_bytes(save(tensors))
        return checkpoints

    return write


ACTOR = (("actor.0", 8, 5), ("actor.2", 3, 8))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            linear_layers(("encoder.0", 5, 5), *ACTOR),
            "encoder/0/weight [5, 5] is not part of actor, but may be a layer before it",
        ),
        (
            {**linear_layers(*ACTOR), "obs_mean": np.zeros(5, np.float32), "obs_var": np.ones(5, np.float32)},
            "obs_mean [5] is not part of actor, but may be statistics or factors of its observation",
        ),
        ({**linear_layers(*ACTOR), "filter.m": np.ones(5, np.float32)}, "filter/m [5] is not part of actor"),
        ({**linear_layers(*ACTOR), "logit_scale": np.ones(3, np.float32)}, "logit_scale [3] is not part of actor"),
        (
            linear_layers(("q_network.fc1", 8, 5), ("q_network.fc2", 3, 8), ("q_network.value", 1, 8)),
            "q_network/value/bias is the value stream of a dueling Q-network",
        ),
        (linear_layers(("actor.1", 8, 5), ("actor.3", 3, 8)), "actor has modules 0 to 3, with weights in 1, 3"),
        (linear_layers(("actor.dense_1", 8, 5), ("actor.dense_3", 3, 8)), "variable actor/dense_2/kernel is missing"),
        (
            {**linear_layers(*ACTOR), "actor.action_scale": np.ones(3), "actor.action_bias": np.zeros(3)},
            "is continuous, but --action",
        ),
    ],
)
def test_tensors_that_may_change_the_actions_are_never_left_out(saved, capsys, tensors, message):
    refuses(capsys, saved(tensors), message, flags=TANH)


def hold(monkeypatch, *layers, modules=()):
    """Let every PyTorch file hold these layers, and modules without tensors."""
    arrays = {name.replace(".", "/"): values for name, values in linear_layers(*layers).items()}
    monkeypatch.setattr(torch_state._HELPER, "read", lambda path: torch_tensors.SavedTensors(arrays, modules))


def test_module_after_the_last_layer_is_refused(saved, monkeypatch, capsys):
    """It may be an activation of the output: a state dict lists modules without their kinds."""
    hold(monkeypatch, *ACTOR, modules=("actor/0", "actor/1", "actor/2", "actor/3"))
    refuses(capsys, saved(linear_layers(*ACTOR)), "actor has modules 0 to 3, with weights in 0, 2", flags=TANH)


def test_networks_that_serve_training_do_not_stop_an_export(saved):
    others = linear_layers(("critic.0", 5, 5), ("target_actor.0", 5, 5), ("actor_target.0", 3, 5))
    assert export(saved({**others, **linear_layers(*ACTOR)}), *TANH) == 0


SB3_POLICY = ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net")


def leaky_relu(slope):
    return lambda y: np.where(y > 0, y, slope * y)


@pytest.mark.parametrize(
    ("layers", "calls", "hidden", "flags"),
    [
        (
            [("encoder.0", 5, 5), *ACTOR],
            ("encoder.0", "actor.0", "actor.2"),
            np.tanh,
            (*TANH, "--scope", ".", "--layers", "encoder/0,actor/0,actor/2"),
        ),
        (
            [(SB3_POLICY[2], 3, 3), ("value_net", 1, 3), (SB3_POLICY[0], 8, 5), (SB3_POLICY[1], 3, 8),
            ("mlp_extractor.value_net.0", 8, 5)],
            SB3_POLICY,
            np.tanh,
            TANH,
        ),
        *(
            ([(names[0], 8, 5), (names[1], 8, 8), (names[2], 3, 8)], names, np.tanh, (*TANH, *flags))
            for names, flags in (
                (("actor.dense_1", "actor.dense_2", "actor.dense_3"), ()),
                (("actor.dense_1", "actor.dense_2", "actor.dense_3"), ("--layers", "actor/dense_1,actor/dense_2,actor/dense_3")),
                (("actor.dense_4", "actor.dense_5", "actor.dense_6"), ("--layers", "actor/dense_4,actor/dense_5,actor/dense_6")),
            )
        ),
        (ACTOR, ("actor.0", "actor.2"), leaky_relu(0.01), (*RELU[:3], "leaky_relu")),
        (ACTOR, ("actor.0", "actor.2"), leaky_relu(0.2), (*RELU[:3], "leaky_relu:0.2")),
        (ACTOR, ("actor.0", "actor.2"), leaky_relu(0.3), (*RELU[:3], "leaky_relu:0.3")),
    ],
    ids=["a named trunk", "stable-baselines3", "numbered from 1", "numbered from 1, named", "numbered from 4",
    "PyTorch's leaky_relu", "a given slope", "another slope"],
)  # fmt: skip
def test_layers_are_called_in_the_order_of_their_names_or_of_the_flag(saved, layers, calls, hidden, flags):
    tensors = linear_layers(*layers)
    assert_probabilities(saved(tensors), outputs_of_layers(tensors, *calls, hidden=hidden), *flags)


def test_cleanrl_network_of_q_values_is_not_given_probabilities(checkpoints, monkeypatch):
    """CleanRL's dqn.py calls the Q-network's sequence `network`; its policies are called actor."""
    hold(monkeypatch, ("network.0", 8, 5), ("network.2", 3, 8))
    (checkpoints / "SA101.cleanrl_model").touch()
    assert sorted(outputs_of(checkpoints, *RELU, x=FIVE)) == ["action", "q_values"]


SETTINGS = {
    "reward": np.float64(1.5),
    "rewards": [np.float32(1), np.int64(2)],
    "names": np.array(["a", "b"]),
    "objects": np.array([None, "b"], dtype=object),
    "text": np.str_("a"),
    "rng": np.random.RandomState(1).get_state(),
    "generator": np.random.default_rng(1),
    "args": argparse.Namespace(path=Path("runs"), lr=1e-3),
    "more": types.SimpleNamespace(a=1),
    "began": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "took": datetime.timedelta(seconds=3),
    "seen": {1, 2},
    "window": collections.deque([1.0, 2.0], maxlen=5),
    "counts": collections.Counter("ab"),
    "by_name": collections.defaultdict(int, a=1),
    "z": 1 + 2j,
}


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_beside_the_weights_are_inert(checkpoints, key):
    tensors = linear_layers(*ACTOR)
    weights = {name: Tensor(values) for name, values in tensors.items()}
    save_as_torch(checkpoints / "SA101_trial_1.pt", {"model_state_dict": weights, key: SETTINGS[key]})
    assert_probabilities(checkpoints, outputs_of_layers(tensors, "actor.0", "actor.2", hidden=relu), *RELU)


def test_code_beside_the_weights_is_still_refused(checkpoints, capsys):
    weights = {name: Tensor(values) for name, values in linear_layers(*ACTOR).items()}
    save_as_torch(checkpoints / "SA101_trial_1.pt", {**weights, "f": os.path.join})
    refuses(capsys, checkpoints, "its pickle names posixpath.join", "no code of it was run", flags=RELU)


@pytest.mark.parametrize("scope", ["", "actor."])
def test_cleanrl_actions_are_scaled_after_a_tanh(saved, scope):
    tensors = linear_layers((f"{scope}fc1", 8, 5), (f"{scope}fc_mean", 2, 8), (f"{scope}fc_logstd", 2, 8))
    scale, bias = np.array([[0.5, 2]], np.float32), np.array([[0.5, -1]], np.float32)
    tensors |= {f"{scope}action_scale": scale, f"{scope}action_bias": bias}
    flags = ("--action", "offset", "--hidden-activation", "relu", "--layers", "fc1,fc_mean")
    y = outputs_of_layers(tensors, f"{scope}fc1", f"{scope}fc_mean", hidden=relu)
    same(exported(saved(tensors), *flags, x=FIVE), np.tanh(y) * scale + bias)


def test_stable_baselines3_leaky_relu_is_pytorchs(changed_zip, capsys):
    def change(settings):
        settings["policy_kwargs"]["activation_fn"] = "<class 'torch.nn.modules.activation.LeakyReLU'>"

    assert export(changed_zip("sb3_ppo_small", change)) == 0
    assert "(mlp leaky_relu:0.01" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [lambda d: d[:5], lambda d: d[:-4], lambda d: d + b"more", lambda d: d[8:]])
def test_damaged_safetensors_file_is_refused(saved, capsys, damage):
    source = saved(linear_layers(*ACTOR))
    (file,) = source.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    refuses(capsys, source, f"{file}: cannot be read as PyTorch weights", "not a complete safetensors file", flags=TANH)
