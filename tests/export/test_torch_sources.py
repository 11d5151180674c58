"""Checkpoints of PyTorch libraries, read without torch: files that the libraries wrote, with the libraries' own
outputs."""

import base64
import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from export.__main__ import main
from tests.export.exporting import refused, run


@pytest.fixture
def torch_files(shared):
    return shared / "checkpoints" / "torch"


def export(source, out, *flags, tl="SA101"):
    return main(["--model-path", str(source), "--tl", tl, "--models-dir", str(out), *map(str, flags)])


def folder_of(file, tmp_path):
    """A folder that holds one file, and the statistics beside it."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder)
    return folder


def without_answers(source, tmp_path):
    """A copy of a folder without the library's answers, which are arrays too."""
    return shutil.copytree(source, tmp_path / "checkpoints", ignore=shutil.ignore_patterns("expected.npz", "meta.json"))


def exported(source, out, *flags, tl="SA101", x=None):
    assert export(source, out, *flags, tl=tl) == 0
    (version,) = (out / tl).iterdir()
    return run(version, "serving_default", observation=x), version


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "name",
    [
        "sb3_ppo_cologne1", "sb3_a2c", "sb3_ppo_small", "sb3_ppo_separate", "sb3_ppo_linear", "sb3_ppo_vecnormalize",
        "sb3_ppo_vecnormalize_reward_only", "sb3_v1_7_ppo", "sb3_v2_0_ppo", "sb3contrib_maskable_ppo", "rllib_ppo",
        "rllib_ppo_shared", "rllib_ppo_meanstd",
    ],
)  # fmt: skip
def test_categorical_outputs_match_the_library(torch_files, tmp_path, name):
    expected = np.load(torch_files / name / "expected.npz")
    outputs, version = exported(without_answers(torch_files / name, tmp_path), tmp_path / "models", x=expected["x"])
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)
    np.testing.assert_array_equal(outputs["action"], expected["y_action"])
    manifest = json.loads((version / "assets.extra" / "export.json").read_text())
    assert all(len(file["sha256"]) == 64 for file in manifest["source"]["files"])
    assert manifest["parity"]["largest_absolute_difference"] <= 1e-5


def test_dqn_gives_q_values_and_no_probabilities(torch_files, tmp_path, capsys):
    expected = np.load(torch_files / "sb3_dqn_cologne1" / "expected.npz")
    outputs, version = exported(
        without_answers(torch_files / "sb3_dqn_cologne1", tmp_path), tmp_path / "models", x=expected["x"]
    )
    assert sorted(outputs) == ["action", "q_values"]
    np.testing.assert_allclose(outputs["q_values"], expected["y_q"], atol=1e-5)
    np.testing.assert_array_equal(outputs["action"], expected["y_action"])
    assert json.loads((version / "assets.extra" / "policy.json").read_text())["action"]["scores"] == "q_values"
    assert main(["describe", str(version)]) == 0 and "categorical, 4 choices, q_values" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sb3_ppo_continuous", "sb3_ppo_continuous_squash", "sb3_sac_continuous"])
def test_continuous_policies_are_clipped_or_squashed_as_predict_does(torch_files, tmp_path, name):
    expected = np.load(torch_files / name / "expected.npz")
    outputs, _ = exported(without_answers(torch_files / name, tmp_path), tmp_path / "models", x=expected["x"])
    scale = max(1.0, float(np.abs(expected["y_action"]).max()))
    np.testing.assert_allclose(outputs["action"], expected["y_action"], atol=1e-5 * scale)


@pytest.mark.parametrize(
    "name",
    [
        "agent.pt", "agent_legacy.pt", "agent.safetensors", "agent_with_metadata.safetensors",
        "agent_training_checkpoint.pt",
        "agent_dataparallel_prefix.pt",
    ],
)  # fmt: skip
def test_cleanrl_state_dicts_act_as_torch_says(torch_files, tmp_path, name):
    expected = np.load(torch_files / "cleanrl_state_dict" / "expected.npz")
    source = folder_of(torch_files / "cleanrl_state_dict" / name, tmp_path)
    flags = ("--action", "categorical", "--hidden-activation", "tanh")
    outputs, _ = exported(source, tmp_path / "models", *flags, x=expected["x"])
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(
            (f"actor_{dtype}{suffix}", dtype)
            for dtype in ("f16", "f32", "f64", "bf16")
            for suffix in (".pt", ".safetensors")
        ),
        ("actor_strided_shared_storage.pt", "f32"),
        ("actor_parameters.pt", "f32"),
        ("actor_big_endian.pt", "f32"),
        ("actor_rezipped_deflated.pt", "f32"),
    ],
)
def test_every_layout_of_tensors_is_read_as_torch_reads_it(torch_files, tmp_path, name, key):
    expected = np.load(torch_files / "dtype_variants" / "expected.npz")
    source = folder_of(torch_files / "dtype_variants" / name, tmp_path)
    flags = ("--action", "categorical", "--hidden-activation", "tanh")
    outputs, _ = exported(source, tmp_path / "models", *flags, x=expected["x"])
    np.testing.assert_allclose(outputs["probabilities"], softmax(expected[f"y_logits_{key}"]), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("sb3_ppo_cnn", "observation has shape [1, 36, 36]"),
        ("sb3_ppo_dict", "observation space is Dict"),
        ("sb3_ppo_multidiscrete", "action space is MultiDiscrete"),
        ("sb3contrib_recurrent_ppo", "part of an LSTM"),
        ("torchscript", "TorchScript archive, which holds a program"),
    ],
)
def test_policies_that_are_no_mlp_are_refused_with_the_reason(torch_files, tmp_path, capsys, name, part):
    source = without_answers(torch_files / name, tmp_path)
    assert export(source, tmp_path / "models", "--action", "categorical", "--hidden-activation", "tanh") == 2
    refused(capsys, part)
    assert not (tmp_path / "models").exists()


def test_whole_pickled_module_is_refused_and_names_its_class(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "cleanrl_state_dict" / "agent_whole_module.pt", tmp_path)
    assert export(source, tmp_path / "models", "--action", "categorical", "--hidden-activation", "tanh") == 2
    refused(capsys, "names __main__.Agent", "torch.save(model.state_dict(), path)")


def test_weights_that_are_not_finite_are_refused(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "dtype_variants" / "actor_nan_inf.pt", tmp_path)
    assert export(source, tmp_path / "models", "--action", "categorical", "--hidden-activation", "tanh") == 2
    refused(capsys, "non-finite values")


def test_state_dict_without_a_known_activation_is_refused(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "cleanrl_state_dict" / "agent.pt", tmp_path)
    assert export(source, tmp_path / "models", "--action", "categorical") == 2
    refused(capsys, "pass --hidden-activation (tanh for CleanRL's PPO")
    assert export(source, tmp_path / "models", "--hidden-activation", "tanh") == 2
    refused(capsys, "set output_activation in [tl.NAME]")


def test_normalised_policy_without_its_statistics_is_refused(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "sb3_ppo_vecnormalize" / "model.zip", tmp_path)
    assert export(source, tmp_path / "models") == 2
    refused(capsys, "was trained in a VecNormalize environment", "model_vecnormalize.pkl")


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_value_network_that_observed_values_outside_its_space_is_refused(torch_files, tmp_path, capsys, value):
    """Of DQN and SAC nothing but the last observation shows that VecNormalize was there."""
    source = tmp_path / "checkpoints"
    source.mkdir()

    def change(data):
        last = np.full((1, 21), value, np.float32)
        data["_last_obs"][":serialized:"] = base64.b64encode(pickle.dumps(last)).decode()

    changed_zip(torch_files / "sb3_dqn_cologne1" / "model.zip", source / "model.zip", change)
    assert export(source, tmp_path / "models") == 2
    refused(capsys, "was trained in a VecNormalize environment")


def test_statistics_that_cannot_be_read_are_refused(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "sb3_ppo_vecnormalize" / "model.zip", tmp_path)
    (source / "vecnormalize.pkl").write_bytes(b"not a pickle")
    assert export(source, tmp_path / "models") == 2
    refused(capsys, "vecnormalize.pkl: cannot be read as statistics of VecNormalize")


def test_statistics_beside_a_policy_that_never_had_any_are_refused(torch_files, tmp_path, capsys):
    source = folder_of(torch_files / "sb3_ppo_cologne1" / "model.zip", tmp_path)
    shutil.copy(torch_files / "sb3_ppo_vecnormalize" / "vecnormalize.pkl", source)
    assert export(source, tmp_path / "models") == 2
    refused(capsys, "was not trained in a VecNormalize environment, but vecnormalize.pkl is beside it")


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
def test_statistics_are_those_of_the_models_own_name(torch_files, tmp_path, statistics, other, code):
    source, files = tmp_path / "checkpoints", torch_files / "sb3_ppo_vecnormalize"
    source.mkdir()
    for stem in filter(None, ("SA101_trial_1", other)):
        shutil.copy(files / "model.zip", source / f"{stem}.zip")
    shutil.copy(files / "vecnormalize.pkl", source / statistics)
    assert export(source, tmp_path / "models", "--model-number", "1") == code
    assert (tmp_path / "models").exists() == (code == 0)


def changed_zip(original, changed, change):
    """Copy a model with its settings changed. `change`: is called with `data`."""
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data":
                settings = json.loads(content)
                change(settings)
                content = json.dumps(settings)
            target.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data["policy_class"].update(__module__="__main__"),
            "of module __main__) is not one of stable-baselines3's",
        ),
        (
            lambda data: data.update(policy_kwargs={"features_extractor_class": "<class '__main__.Scale'>"}),
            "its features extractor Scale is not MlpPolicy's",
        ),
        (lambda data: data.pop("policy_kwargs"), "its policy_kwargs, which contain the activations, were not saved"),
    ],
)
def test_policy_that_may_compute_something_else_is_refused(torch_files, tmp_path, capsys, change, message):
    """It has MlpPolicy's tensors, and code of its own that no file holds."""
    (tmp_path / "checkpoints").mkdir()
    changed_zip(torch_files / "sb3_ppo_cologne1" / "model.zip", tmp_path / "checkpoints" / "model.zip", change)
    assert export(tmp_path / "checkpoints", tmp_path / "models") == 2
    refused(capsys, message)


def test_features_extractor_that_only_flattens_may_be_named(torch_files, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    named = {"features_extractor_class": "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"}
    original = torch_files / "sb3_ppo_cologne1" / "model.zip"
    changed_zip(original, tmp_path / "checkpoints" / "model.zip", lambda data: data["policy_kwargs"].update(named))
    assert export(tmp_path / "checkpoints", tmp_path / "models") == 0


def test_bounds_of_actions_are_exact_whatever_numpy_printed(torch_files, tmp_path):
    """np.set_printoptions(precision=1) in the training script changes the text beside the pickle."""
    (tmp_path / "checkpoints").mkdir()

    def change(data):
        data["action_space"].update(low="[-9. -9.]", high="[9. 9.]")

    source = torch_files / "sb3_ppo_continuous"
    changed_zip(source / "model.zip", tmp_path / "checkpoints" / "model.zip", change)
    expected = np.load(source / "expected.npz")
    outputs, _ = exported(tmp_path / "checkpoints", tmp_path / "models", x=expected["x"])
    np.testing.assert_allclose(outputs["action"], expected["y_action"], atol=1e-5)


def test_statistics_of_their_own_number_of_steps_are_used(torch_files, tmp_path):
    """CheckpointCallback writes rl_model_1000_steps.zip and rl_model_vecnormalize_1000_steps.pkl."""
    source = tmp_path / "checkpoints"
    source.mkdir()
    for steps, name in ((1000, "sb3_ppo_vecnormalize"), (2000, "sb3_ppo_vecnormalize")):
        shutil.copy(torch_files / name / "model.zip", source / f"SA101_{steps}_steps.zip")
        shutil.copy(torch_files / name / "vecnormalize.pkl", source / f"SA101_vecnormalize_{steps}_steps.pkl")
    expected = np.load(torch_files / "sb3_ppo_vecnormalize" / "expected.npz")
    outputs, version = exported(source, tmp_path / "models", x=expected["x"])
    assert version.name == "2000"
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


def cases(kind):
    """Names of the hostile files that must be refused or exported; [] where the data is absent."""
    meta = Path(__file__).resolve().parents[3] / "shared" / "checkpoints" / "torch" / "hostile" / "meta.json"
    if not meta.is_file():
        return []
    return [name for name, case in json.loads(meta.read_text())["cases"].items() if case["must"].startswith(kind)]


@pytest.mark.parametrize("name", cases("refuse"))
def test_hostile_files_are_refused_with_one_line_and_nothing_is_run(torch_files, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    source = folder_of(torch_files / "hostile" / name, tmp_path)
    assert export(source, tmp_path / "models", "--action", "categorical", "--hidden-activation", "tanh") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and "Traceback" not in lines[0] and name in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


@pytest.mark.parametrize("name", cases("export"))
def test_files_with_harmless_oddities_are_exported_and_nothing_is_run(torch_files, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    source = folder_of(torch_files / "hostile" / name, tmp_path)
    flags = () if name.endswith(".zip") else ("--action", "categorical", "--hidden-activation", "tanh")
    assert export(source, tmp_path / "models", *flags) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "models"]


def test_pickle_in_rllib_settings_is_not_run(torch_files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    without_answers(torch_files / "rllib_ppo", tmp_path)
    settings = next((tmp_path / "checkpoints").rglob("default_policy/class_and_ctor_args.pkl"))

    class Payload:
        def __reduce__(self):
            return Path.touch, (Path("PWNED"),)

    settings.write_bytes(pickle.dumps(Payload()))
    assert export(tmp_path / "checkpoints", tmp_path / "models") == 2
    refused(capsys, "its pickle names pathlib.Path", "no code of it was run")
    assert not (tmp_path / "PWNED").exists()


def test_rllib_state_as_msgpack_is_read(torch_files, tmp_path):
    import msgpack

    from export.checkpoints import rllib

    without_answers(torch_files / "rllib_ppo", tmp_path)
    state = next((tmp_path / "checkpoints").rglob("default_policy/module_state.pkl"))
    arrays = rllib.contents(state).arrays
    packed = {
        name.replace("/", "."): {
            b"nd": True,
            b"type": a.dtype.str,
            b"kind": b"",
            b"shape": list(a.shape),
            b"data": a.tobytes(),
        }
        for name, a in arrays.items()
    }
    state.with_suffix(".msgpack").write_bytes(msgpack.packb(packed, use_bin_type=True))
    state.unlink()
    expected = np.load(torch_files / "rllib_ppo" / "expected.npz")
    outputs, _ = exported(tmp_path / "checkpoints", tmp_path / "models", x=expected["x"])
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


def test_rllib_policies_by_agent_are_found_by_the_names_of_tls(torch_files, tmp_path):
    """`checkpoint_000012/.../rl_module/SA101` and `SA102`: one policy for each TL, number 12."""
    root = tmp_path / "results" / "checkpoint_000012"
    for tl, name in (("SA101", "rllib_ppo"), ("SA102", "rllib_ppo_shared")):
        policy = next((torch_files / name).rglob("rl_module/default_policy"))
        shutil.copytree(policy, root / "learner_group" / "learner" / "rl_module" / tl)
    for tl, name in (("SA101", "rllib_ppo"), ("SA102", "rllib_ppo_shared")):
        expected = np.load(torch_files / name / "expected.npz")
        outputs, version = exported(tmp_path / "results", tmp_path / "models", tl=tl, x=expected["x"])
        assert version.name == "12"
        np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)


def test_rllib_connector_that_changes_observations_is_refused(torch_files, tmp_path, capsys):
    without_answers(torch_files / "rllib_ppo_meanstd", tmp_path)
    filter_folder = next((tmp_path / "checkpoints").rglob("MeanStdFilter"))
    filter_folder.rename(filter_folder.with_name("FrameStackingEnvToModule"))
    assert export(tmp_path / "checkpoints", tmp_path / "models") == 2
    refused(capsys, "connector FrameStackingEnvToModule, which may change observations")


def test_inspect_shows_a_zip_like_any_other_checkpoint(torch_files, capsys):
    assert main(["inspect", str(torch_files / "sb3_ppo_cologne1" / "model.zip")]) == 0
    out = capsys.readouterr().out
    assert "mlp_extractor/policy_net/0/weight" in out and "dense 0 kernel" in out
    assert "would be exported as mlp tanh, 21 -> 64 -> 64 -> 4" in out
    assert main(["inspect", str(torch_files / "hostile" / "evil_state_dict.pt")]) == 2
    assert "names posix.system" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names",
    [
        ("actor.0.weight", "actor.0.bias", "actor.2.weight", "actor.2.bias"),
        ("0.weight", "0.bias", "2.weight", "2.bias"),
    ],
)
def test_npz_with_pytorch_names_is_read(checkpoints, names):
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((8, 5), (8,), (3, 8), (3,))]
    np.savez(checkpoints / "SA101_trial_1.npz", **dict(zip(names, arrays, strict=True)))
    x = rng.random((4, 5)).astype(np.float32)
    outputs, _ = exported(checkpoints, checkpoints.parent / "models", "--action", "categorical", x=x)
    hidden = np.maximum(x @ arrays[0].T + arrays[1], 0)
    np.testing.assert_allclose(outputs["probabilities"], softmax(hidden @ arrays[2].T + arrays[3]), atol=1e-5)


def test_layers_by_name_leave_the_others_unread(checkpoints, capsys):
    """An actor whose layers are attributes: fc1, fc2, fc_mean, and fc_logstd, which serves training."""
    rng = np.random.default_rng(3)
    sizes = {"fc1": (8, 5), "fc2": (8, 8), "fc_mean": (2, 8), "fc_logstd": (2, 8)}
    arrays = {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    arrays |= {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in sizes.items()}
    np.savez(checkpoints / "SA101_trial_1.npz", **arrays)
    x = rng.random((4, 5)).astype(np.float32)
    outputs, _ = exported(checkpoints, checkpoints.parent / "models", "--layers", "fc1,fc2,fc_mean", x=x)
    hidden = np.maximum(np.maximum(x @ arrays["fc1.weight"].T, 0) @ arrays["fc2.weight"].T, 0)
    np.testing.assert_allclose(outputs["action"], np.tanh(hidden @ arrays["fc_mean.weight"].T), atol=1e-5)


def test_hidden_layers_without_bias_are_exported_and_named(checkpoints, capsys):
    rng = np.random.default_rng(3)
    kernels = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (8, 8), (8, 2))]
    np.savez(
        checkpoints / "SA101_trial_1.npz", **{f"actor/dense_{k}/kernel": kernel for k, kernel in enumerate(kernels)}
    )
    x = rng.random((4, 5)).astype(np.float32)
    outputs, _ = exported(checkpoints, checkpoints.parent / "models", x=x)
    hidden = np.maximum(np.maximum(x @ kernels[0], 0) @ kernels[1], 0)
    np.testing.assert_allclose(outputs["action"], np.tanh(hidden @ kernels[2]), atol=1e-5)
    assert "its hidden layers have no bias" in capsys.readouterr().out


def test_keras_weights_without_bias_are_exported(checkpoints):
    import keras

    layers = [keras.layers.Dense(8, "relu", use_bias=False), keras.layers.Dense(2, use_bias=False)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.save_weights(checkpoints / "SA101_trial_1_actor.weights.h5")
    x = np.random.default_rng(3).random((4, 5)).astype(np.float32)
    outputs, _ = exported(checkpoints, checkpoints.parent / "models", x=x)
    np.testing.assert_allclose(outputs["action"], np.tanh(model(x).numpy()), atol=1e-5)


def test_arrays_without_names_of_layers_are_refused_with_names_to_use(checkpoints, capsys):
    np.savez(checkpoints / "SA101_trial_1.npz", w1=np.ones((5, 8), np.float32), b1=np.zeros(8, np.float32))
    assert export(checkpoints, checkpoints.parent / "models") == 2
    refused(capsys, "holds no layers of an actor", "actor/dense/kernel [inputs, units]", "0.weight [units, inputs]")


def linear_layers(*named):
    """Tensors of linear layers, in this order. `named`: (name, units, inputs)."""
    rng = np.random.default_rng(4)
    tensors = {}
    for name, units, inputs in named:
        tensors[f"{name}.weight"] = rng.standard_normal((units, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = rng.standard_normal(units).astype(np.float32)
    return tensors


def saved(folder, tensors):
    """Write tensors as a .safetensors file: a header in JSON, then the numbers."""
    folder.mkdir(exist_ok=True)
    header, end = {}, 0
    for name, values in tensors.items():
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = b"".join(values.tobytes() for values in tensors.values())
    (folder / "SA101_trial_1.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


ACTOR = (("actor.0", 8, 5), ("actor.2", 3, 8))
CATEGORICAL = ("--action", "categorical", "--hidden-activation", "tanh")


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
            "q_network/value/weight is the value stream of a dueling Q-network",
        ),
        (linear_layers(("actor.1", 8, 5), ("actor.3", 3, 8)), "actor has modules 0 to 3, with weights in 1, 3"),
    ],
)
def test_tensors_that_may_change_the_actions_are_never_left_out(tmp_path, capsys, tensors, message):
    assert export(saved(tmp_path / "checkpoints", tensors), tmp_path / "models", *CATEGORICAL) == 2
    refused(capsys, message)


def test_networks_that_serve_training_do_not_stop_an_export(tmp_path):
    others = linear_layers(("critic.0", 5, 5), ("target_actor.0", 5, 5), ("actor_target.0", 3, 5))
    tensors = {**others, **linear_layers(*ACTOR)}
    assert export(saved(tmp_path / "checkpoints", tensors), tmp_path / "models", *CATEGORICAL) == 0


def test_a_trunk_is_exported_if_the_user_names_every_layer(tmp_path):
    tensors = linear_layers(("encoder.0", 5, 5), *ACTOR)
    x = np.random.default_rng(6).random((4, 5)).astype(np.float32)
    flags = (*CATEGORICAL, "--scope", ".", "--layers", "encoder/0,actor/0,actor/2")
    outputs, _ = exported(saved(tmp_path / "checkpoints", tensors), tmp_path / "models", *flags, x=x)
    y = x
    for name in ("encoder.0", "actor.0", "actor.2"):
        y = (y if name == "encoder.0" else np.tanh(y)) @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
    np.testing.assert_allclose(outputs["probabilities"], softmax(y), atol=1e-5)


def test_state_dict_of_a_stable_baselines3_policy_keeps_its_last_layer(tmp_path):
    hidden = [("mlp_extractor.policy_net.0", 8, 5), ("mlp_extractor.policy_net.2", 3, 8)]
    tensors = linear_layers(("action_net", 3, 3), ("value_net", 1, 3), *hidden, ("mlp_extractor.value_net.0", 8, 5))
    x = np.random.default_rng(6).random((4, 5)).astype(np.float32)
    outputs, _ = exported(saved(tmp_path / "checkpoints", tensors), tmp_path / "models", *CATEGORICAL, x=x)
    y = x
    for name, _, _ in hidden:
        y = np.tanh(y @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
    logits = y @ tensors["action_net.weight"].T + tensors["action_net.bias"]
    np.testing.assert_allclose(outputs["probabilities"], softmax(logits), atol=1e-5)


def test_cleanrl_network_of_q_values_is_not_given_probabilities(tmp_path):
    """CleanRL's dqn.py calls the Q-network's sequence `network`; its policies are called actor."""
    source = saved(tmp_path / "checkpoints", linear_layers(("network.0", 8, 5), ("network.2", 3, 8)))
    x = np.zeros((1, 5), np.float32)
    outputs, _ = exported(source, tmp_path / "models", "--action", "categorical", "--hidden-activation", "relu", x=x)
    assert sorted(outputs) == ["action", "q_values"]


def test_rllib_checkpoint_in_a_folder_named_after_the_tl_is_found(torch_files, tmp_path):
    policy = next((torch_files / "rllib_ppo").rglob("rl_module/default_policy"))
    place = Path("checkpoint_000003") / "learner_group" / "learner" / "rl_module" / "default_policy"
    shutil.copytree(policy, tmp_path / "results" / "SA101" / place)
    expected = np.load(torch_files / "rllib_ppo" / "expected.npz")
    outputs, version = exported(tmp_path / "results", tmp_path / "models", x=expected["x"])
    assert version.name == "3"
    np.testing.assert_allclose(outputs["probabilities"], expected["y_probs"], atol=1e-5)
