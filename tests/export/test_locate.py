"""Which checkpoint belongs to which TL, by names and folders; settings in its name are used, and never contradicted."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from city.errors import InputError
from export import locate
from export.__main__ import main
from serving.contract import from_saved_model
from tests.conftest import GRID
from tests.export import writers
from tests.export.exporting import export, export_city, exported, refused, refuses, run, same, version
from tests.export.writers import X, actions, keras3


def test_a_checkpoint_with_the_name_of_another_tl_of_the_city_is_not_taken(checkpoints, tmp_path, capsys):
    city = tmp_path / "city.toml"
    tl = '[tl.{0}]\nsignals = ["{0}"]\ndialect = "sappo"\nstate = "d"\naction = "kc"\n'
    city.write_text(tl.format("north") + tl.format("south"))
    writers.sequential(keras3).save_weights(checkpoints / "PPO-_south_trial_1.weights.h5")
    refuses(capsys, checkpoints, "no checkpoint for north", flags=("--city", str(city)), tl="north")


def test_an_actor_without_a_tl_name_is_refused_for_two_tls(checkpoints, capsys):
    writers.sequential(keras3).save_weights(checkpoints / "model_trial_3.weights.h5")
    assert export(checkpoints, tl="SA101,SA102") == 2
    assert "has a TL's name" in capsys.readouterr().err
    assert not (checkpoints.parent / "models").exists()
    assert export(checkpoints, tl="SA102") == 0


def test_every_model_of_a_builder_gets_its_own_weights(checkpoints, tmp_path, monkeypatch):
    """Actor and critic in one file without scopes: names that Keras numbers must not be matched with the critic's."""
    (tmp_path / "pair_builder.py").write_text(
        "import keras\n"
        "def build(sizes):\n"
        "    layers = [keras.layers.Dense(8, 'tanh'), keras.layers.Dense(1, 'tanh')]\n"
        "    return keras.Sequential([keras.Input((9,)), *layers])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rng, expected = np.random.default_rng(0), {}
    for tl in ("SA101", "SA102"):
        shapes = {"dense": (9, 8), "dense_1": (8, 1), "value/dense_2": (9, 8), "value/dense_3": (8, 1)}
        values = {}
        for layer, (a, b) in shapes.items():
            values[f"{layer}/kernel"] = rng.standard_normal((a, b)).astype(np.float32)
            values[f"{layer}/bias"] = rng.standard_normal(b).astype(np.float32)
        np.savez(checkpoints / f"{tl}_trial_1.npz", **values)
        hidden = np.tanh(X @ values["dense/kernel"] + values["dense/bias"])
        expected[tl] = np.tanh(hidden @ values["dense_1/kernel"] + values["dense_1/bias"])
    for tl, action in expected.items():
        same(exported(checkpoints, "--actor", "pair_builder:build", tl=tl), action)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(
            ("SA101_trial_3_actor", f"SA101_trial_4_{k}")
            for k in ("value", "target_actor", "actor_old", "vf", "optimizer")
        ),
        *(("model", k) for k in ("target_model", "model_target", "optimizer", "model_optim", "old_model")),
    ],
)
def test_critics_old_copies_target_networks_and_optimizers_beside_an_actor_are_ignored(name, other, checkpoints):
    (checkpoints / "SA101").mkdir()
    model = writers.sequential(keras3)
    model.save_weights(checkpoints / "SA101" / f"{name}.weights.h5")
    writers.randomise(writers.sequential(keras3), 9).save_weights(checkpoints / "SA101" / f"{other}.weights.h5")
    same(exported(checkpoints), actions(model))


def test_a_target_network_alone_is_exported(checkpoints):
    model = writers.sequential(keras3)
    model.save_weights(checkpoints / "SA101_target.weights.h5")
    same(exported(checkpoints), actions(model))


def test_model_path_may_name_one_checkpoint(checkpoints, capsys):
    folder = checkpoints / "SA101"
    folder.mkdir()
    models = {name: writers.randomise(writers.sequential(keras3), k) for k, name in enumerate(("first", "second"))}
    for name, model in models.items():
        model.save_weights(folder / f"{name}.weights.h5")
    refuses(capsys, checkpoints, "several checkpoints without a number", "pass one of them with --model-path")
    command = ["--tl", "SA101", "--models-dir", str(checkpoints.parent / "models"), "--model-path"]
    assert main([*command, str(folder / "second.weights.h5")]) == 0
    same(run(version(checkpoints), "serving_default", observation=X)["action"], actions(models["second"]))
    for path, message in (("third.h5", "no such file or folder"), ("notes.txt", "is not a checkpoint by its name")):
        (folder / "notes.txt").touch()
        assert main([*command, str(folder / path)]) == 2
        assert message in capsys.readouterr().err
    assert main([*command[:1], "SA102", *command[2:], str(folder / "first.weights.h5")]) == 2
    assert "no checkpoint for SA102" in capsys.readouterr().err


def test_model_path_may_name_the_prefix_of_a_tensorflow_checkpoint(checkpoints):
    expected = writers.tf1_agents(checkpoints, "SA101_trial_3", ["actor"])["actor"]
    writers.tf1_agents(checkpoints, "SA101_trial_4", ["actor"])
    models = checkpoints.parent / "models"
    assert main(["--model-path", f"{checkpoints}/SA101_trial_3", "--tl", "SA101", "--models-dir", str(models)]) == 0
    same(run(models / "SA101" / "3", "serving_default", observation=X)["action"], expected)


def test_a_state_file_counts_only_for_its_own_folder(checkpoints):
    for folder, number in (("a", 3), ("b", 9)):
        (checkpoints / folder).mkdir()
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(actor=writers.sequential(keras3)), str(checkpoints / folder), 3, checkpoint_name="SA101"
        )
        manager.save(number)
    (checkpoints / "b" / "checkpoint").unlink()
    assert export(checkpoints) == 0
    assert [path.name for path in (checkpoints.parent / "models" / "SA101").iterdir()] == ["9"]


class OutOfOrder(keras3.Model):
    """Layers created in an order that is neither that of the calls nor that of their names."""

    def __init__(self):
        super().__init__()
        self.h1, self.h3, self.h2 = (keras3.layers.Dense(8, "relu") for _ in range(3))
        self.out = keras3.layers.Dense(2, "tanh")

    def call(self, x, training=False):
        return self.out(self.h3(self.h2(self.h1(x))))


def test_layers_numbered_out_of_order_need_the_layers_flag(checkpoints, capsys):
    model = OutOfOrder()
    model(X)
    writers.randomise(model)
    tf.train.Checkpoint(actor=model).write(str(checkpoints / "SA101-1"))
    refuses(capsys, checkpoints, "does not define the order of its layers h1, h3, h2, out")
    same(exported(checkpoints, "--layers", "h1,h2,h3,out"), actions(model))


def test_an_invalid_name_fails_only_its_own_tl(checkpoints, capsys):
    writers.sequential(keras3).save_weights(checkpoints / "SA109_trial_1.weights.h5")
    np.savez(checkpoints / "SA101_trial_99999999999999999999.npz", **{"dense/kernel": np.zeros((9, 2))})
    (checkpoints / "SA102-3.index").symlink_to(checkpoints / "nowhere")
    (checkpoints / "²").mkdir()
    shutil.copy(checkpoints / "SA109_trial_1.weights.h5", checkpoints / "SA103\udcff_trial_1.weights.h5")
    shutil.copy(checkpoints / "SA109_trial_1.weights.h5", checkpoints / "SA104\n_trial_1.weights.h5")
    models = checkpoints.parent / "models"
    (models / "SA105").mkdir(parents=True)
    (models / "SA105" / "1").write_text("a file")
    shutil.copy(checkpoints / "SA109_trial_1.weights.h5", checkpoints / "SA105_trial_1.weights.h5")
    assert export(checkpoints, "--overwrite", tl="SA101,SA102,SA103,SA104,SA105,SA109") == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in captured.err and len(errors) == 3, captured.err
    for line, part in zip(
        errors, ("must be below 2**62", "SA102-3.index: cannot be read", "is a link or a file"), strict=True
    ):
        assert part in line
    assert [line.split(":")[0] for line in captured.out.splitlines()] == ["SA103", "SA104", "SA109"]


DAMAGED = [
    b"", b"{}", b"[]", b"\xff", b'{"parity":{}}', b'{"actor":{"steps":[{"join":""}]}}', b'{"actor":{"steps":[]}}',
    b'{"actor":{"steps":[{"dense":"x"},{"activation":"odd"}]}}', b"[" * 100_000,
    b'{"parity":{"largest_absolute_difference":0,"observations":Infinity}}',
    b'{"actor":{"architecture":"a","inputs":1,"outputs":1,"steps":[{"phase_competition":null}]}, '
    b'"parity":{"observations":1,"largest_absolute_difference":NaN}}',
    b'{"actor":{"architecture":"a","inputs":1,"outputs":1,"steps":[1]}, '
    b'"parity":{"observations":1,"largest_absolute_difference":Infinity}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_manifest_does_not_stop_describe_or_a_fleet(content, grid_models, tmp_path, capsys):
    shutil.copytree(grid_models / "SA103", tmp_path / "SA103")
    (tmp_path / "SA103" / "1" / "assets.extra" / "export.json").write_bytes(content)
    assert main(["describe", str(tmp_path / "SA103" / "1")]) == 0
    assert capsys.readouterr().out.count("export.json is damaged") == 2
    assert main(["fleet", "city", "--tl", "all", "--models-dir", str(tmp_path)]) == 0, (
        "a fleet reads actor.json, not the manifest"
    )


INVALID = [
    [], ["--tl"], ["--model-number", "x"], ["fleet"], ["inspect"], ["describe"], ["inspect", "."], ["inspect", ""],
    ["--nonsense", "--tl", "SA101"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", INVALID)
def test_an_invalid_command_line_gives_one_error_line(arguments, capsys, in_tmp_path):
    assert main(arguments) == 2
    refused(capsys)


def test_inspecting_a_folder_shows_its_latest_checkpoint(shared, capsys):
    assert main(["inspect", str(shared / "checkpoints" / "tf2_checkpoint_manager")]) == 0
    assert "dense 2 bias" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "tl", "expected"),
    [
        (("ppo_0_trial_3.zip", "ppo_3_trial_2.zip"), "3", "ppo_3_trial_2.zip"),
        (("ppo_0_trial_1.zip", "ppo_1_trial_1.zip"), "1", "ppo_1_trial_1.zip"),
        (("ppo_cluster_1_trial_1.zip", "ppo_cluster_1_2_trial_2.zip"), "cluster_1", "ppo_cluster_1_trial_1.zip"),
        (("ppo_J_1_trial_1.zip", "ppo_J_1_2_trial_1.zip"), "J1", "ppo_J_1_trial_1.zip"),
        (("ppo_A1_trial_1.zip", "ppo_A1-2_trial_1.zip"), "A1-2", "ppo_A1-2_trial_1.zip"),
        (("ppo_A1_trial_1.zip", "ppo_A1-2_trial_1.zip"), "A1", "ppo_A1_trial_1.zip"),
    ],
)
def test_names_of_signals_are_not_confused_with_numbers_or_longer_names(tmp_path, names, tl, expected):
    for name in names:
        (tmp_path / name).touch()
    assert found(tmp_path, tl, ["0", "1", "3", "cluster_1", "cluster_1_2", "J1", "J_1_2", "A1", "A1-2"]) == expected


def test_checkpoint_may_be_named_after_the_long_id_of_its_tls_signal(tmp_path):
    ids = {"TL001": "cluster_1098574052_1098574061_247379905", "TL002": "cluster_1098574052_1098574061_247379905_1"}
    for name in (f"ppo_{ids['TL001']}_trial_2.npz", f"ppo_{ids['TL002']}_trial_2.npz", "TL003_trial_2.npz"):
        (tmp_path / name).touch()
    candidates = locate.find_candidates(tmp_path)
    search = locate.Search(tmp_path, candidates, [*ids, "TL003"], ids)
    found = {tl: search.choose(tl, None).path.name for tl in [*ids, "TL003"]}
    assert found == {**{tl: f"ppo_{signal}_trial_2.npz" for tl, signal in ids.items()}, "TL003": "TL003_trial_2.npz"}
    with pytest.raises(InputError, match=r"no checkpoint for TL004: .*; put TL004 or cluster_9 into the name"):
        locate.Search(tmp_path, candidates, [*ids, "TL004"], {**ids, "TL004": "cluster_9"}).choose("TL004", None)


def checkpoint_in(checkpoints, *paths):
    writers.sequential(keras3).save_weights(checkpoints / "actor.weights.h5")
    for path in paths:
        (checkpoints / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkpoints / "actor.weights.h5", checkpoints / path)
    (checkpoints / "actor.weights.h5").unlink()


@pytest.mark.parametrize(
    "path",
    [
        "SA101_SA102_joint/SA101_trial_3.weights.h5",
        "SA102/SA101_trial_3.weights.h5",
        "SA102/SA101/trial_3.weights.h5",
        "SA101_SA102/x/SA101/trial_3.weights.h5",
    ],
)
def test_a_folders_name_never_beats_another_tl_in_the_files_name(path, checkpoints, capsys):
    checkpoint_in(checkpoints, path)
    refuses(capsys, checkpoints, "no checkpoint for SA102", "another TL's", tl="SA102")
    assert export(checkpoints, tl="SA101,SA102") == 2
    assert [model.name for model in (checkpoints.parent / "models").iterdir()] == ["SA101"]


def found(folder, tl, known):
    search = locate.Search(folder, locate.find_candidates(folder), known)
    return str(search.choose(tl, None).path.relative_to(folder))


def test_tls_with_names_of_any_form_keep_their_checkpoints_in_a_joint_folder(checkpoints):
    known = ["north", "north-east", "south"]
    checkpoint_in(checkpoints, "north_south/north-1.h5", "south/north/north-east/model.h5")
    assert found(checkpoints, "north", known) == "north_south/north-1.h5"
    assert found(checkpoints, "north-east", known) == "south/north/north-east/model.h5"
    with pytest.raises(InputError, match=r"no checkpoint for south: .* lies in a folder of south"):
        found(checkpoints, "south", known)


def test_a_number_in_the_file_of_a_tls_own_folder_is_not_another_tl(checkpoints):
    checkpoint_in(checkpoints, "1/model_5.h5", "2/model_1.h5", "1_2_joint/actor_3.h5")
    known = ["1", "2", "3"]
    assert [found(checkpoints, tl, known) for tl in known] == ["1/model_5.h5", "2/model_1.h5", "1_2_joint/actor_3.h5"]


@pytest.mark.parametrize("name", ["PPO_100", "DQN 1000", "EP100", "RUN_01"])
def test_an_algorithms_name_before_a_number_is_no_tl(name, checkpoints):
    checkpoint_in(checkpoints, f"SA101/{name}.h5")
    assert export(checkpoints, tl="all") == 0
    assert [model.name for model in (checkpoints.parent / "models").iterdir()] == ["SA101"]


def test_the_only_actor_of_another_tl_is_refused(checkpoints, capsys):
    layers = {"SA101/actor/dense/kernel": np.ones((9, 2)), "SA101/actor/dense/bias": np.ones(2)}
    np.savez(checkpoints / "SA102_trial_1.npz", **layers)
    refuses(capsys, checkpoints, "holds no actor of SA102", "--scope SA101/actor", tl="SA102")
    assert export(checkpoints, "--scope", "SA101/actor", tl="SA102") == 0


NAME = "SAPPO-_state_{state}_action_{action}_reward_cwq_gamma_0.99_netSz_({sizes}){more}-trial_3_SA_107_actor"


def named(city, sizes="64, 64", more="_offset_range_2", name=NAME):
    """Add SA107's actor to a city, under a file name of the sappo dialect's trainer, which is returned."""
    name = name.format(state="vdd", action="gro", sizes=sizes, more=more)
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(GRID / "checkpoints" / f"PPO-_SA107_trial_1.{suffix}", city / "checkpoints" / f"{name}.{suffix}")
    return name


def settings(city, **lines):
    """Replace SA107's settings; None takes one out."""
    head, body = (city / "city.toml").read_text().split("[tl.SA107]\n")
    body, _, tail = body.partition("\n[")
    for key, value in lines.items():
        body = re.sub(rf"^{key} = .*\n", "", body, flags=re.M)
        body += "" if value is None else f"\n{key} = {value}\n"
    (city / "city.toml").write_text(f"{head}[tl.SA107]\n{body}\n[{tail}")


def test_settings_of_the_file_name_complete_the_contract(empty_city):
    named(empty_city, more="_offset_range_4_control_cycle_3_add_time_1")
    settings(empty_city, state=None, action=None, control_cycle=None)
    assert export_city(empty_city, "--tl", "SA107") == 0
    policy = from_saved_model(empty_city / "models" / "SA107" / "3")
    assert (policy.observation.state, policy.action.kind) == ("vdd", "gro")
    assert (policy.action.offset_range, policy.timing.control_cycle, policy.action.add_time_s) == (4, 3, 1)
    assert policy.origin.model_number == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state", '"vd"', "has state vdd, but {city} has vd"),
        ("action", '"offset"', "has action gro, but {city} has offset"),
        ("offset_range", "3", "has offset_range 2, but {city} has 3"),
        ("control_cycle", "7", "has control_cycle 2, but {city} has 7"),
        ("hidden_sizes", "[64, 32]", "has hidden_sizes 64, 64, but {city} has 64, 32"),
    ],
)
def test_contradicting_file_name_and_city_toml_are_refused(empty_city, key, value, message, capsys):
    name = named(empty_city, more="_offset_range_2_control_cycle_2")
    settings(empty_city, **{key: value})
    assert export_city(empty_city, "--tl", "SA107") == 2
    refused(capsys, name, message.format(city=empty_city / "city.toml"), "fix the one that is wrong")
    assert not (empty_city / "models").exists()


@pytest.mark.parametrize(
    ("file", "changed", "message"),
    [
        (
            {},
            {"dialect": '"sumo-rl"', "state": None, "action": None},
            "has state vdd, which is not a setting of dialect sumo-rl in",
        ),
        (
            {"name": "PPO-_SA107_trial_1"},
            {"state": None},
            "state is missing; set it in [tl.SA107] to one of d, v, vd, vdd",
        ),
        ({"sizes": "64, 32"}, {}, "hidden sizes are 64, 32, but the hidden layers of its mlp have 64, 64 units"),
    ],
    ids=["setting of another dialect", "no state", "other layers"],
)
def test_settings_that_do_not_fit_the_checkpoint_are_refused(empty_city, capsys, file, changed, message):
    named(empty_city, **file)
    settings(empty_city, **changed)
    assert export_city(empty_city, "--tl", "SA107") == 2
    refused(capsys, message)


@pytest.mark.parametrize(
    ("name", "number", "settings"),
    [
        (NAME.format(state="d", action="kc", sizes="8", more="_actionp_0.25_action_t_9"), 3, ("d", "kc", "0.25", "9")),
        ("PPO-_SA101_round-12.npz", 12, (None,) * 4),
        ("ckpt-41", 41, (None,) * 4),
        ("model.ckpt-1000", 1000, (None,) * 4),
        ("SA101", None, (None,) * 4),
        ("SAPPO_action_t_9-trial_0_SA101.h5", 0, (None, None, None, "9")),
    ],
)
def test_file_names_are_parsed(tmp_path, name, number, settings):
    candidate = locate.Candidate(tmp_path / name, "tensorflow", locate.number_in_name(name))
    assert candidate.number == number
    assert tuple(candidate.settings.get(key) for key in ("state", "action", "actionp", "action_t_s")) == settings


def test_critics_hidden_folders_and_exports_are_not_candidates(checkpoints, grid_models):
    shutil.copytree(grid_models / "SA101", checkpoints / "models" / "SA101")
    (checkpoints / ".old").mkdir()
    for name in ("x_SA101_critic.h5", "critic_SA101.index", ".old/SA101.h5", "SA101_actor_critic.npz", "notes.txt"):
        (checkpoints / name).touch()
    assert [candidate.label for candidate in locate.find_candidates(checkpoints)] == ["SA101_actor_critic.npz"]


def test_a_saved_model_is_a_single_candidate(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "SA101" / "7"))
    (found,) = locate.find_candidates(tmp_path)
    assert (found.format, found.number, found.label) == ("saved-model", 7, "SA101/7")
    assert locate.Search(tmp_path, [found]).choose("SA101", None) is found
