"""Settings of PPO: as flags and in [training], what they change, what is recorded, what is refused, and the
statistics."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf

from city import ppo_settings
from greenserve.__main__ import main
from pretraining.synthetic.streets import generate
from rounds.rounds import Rounds
from tests.conftest import GRID
from tests.error_lines import refused
from tests.training import states
from training.saved_state import state_file
from training.settings import PpoConfig, StreetPpo
from training.statistics import IN_CURVES, TRAIN

pytestmark = pytest.mark.slow

STREETS = ("--seconds", "100", "--episodes", "2", "--episodes-per-update", "1")
TRAINING = (*STREETS, "--held-out", "1", "--evaluate-every", "2")
OTHER = {
    "learning_rate": 0.01, "learning_rate_schedule": "constant", "gamma": 0.5, "gae_lambda": 0.1, "clip_range": 0.001,
    "ent_coef": 0.5, "vf_coef": 0.0, "max_grad_norm": 1e-3, "normalize_advantage": False,
    "n_epochs": 3, "minibatch": 4, "final_sharpness": 30.0, "target_kl": 1e-6, "hidden_sizes": (8, 16),
}  # fmt: skip
"""A value of each setting that is not its default."""
DEFAULTS = {
    "learning_rate": 0.001, "learning_rate_schedule": "linear", "gamma": 0.97, "gae_lambda": 0.95, "clip_range": 0.2,
    "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "normalize_advantage": True,
    "n_epochs": 8, "minibatch": 128, "final_sharpness": 10.0, "hidden_sizes": (64, 64),
}  # fmt: skip


def flag_of(key):
    return f"--{key.replace('_', '-')}"


def as_flag(key, value):
    if isinstance(value, bool):
        return flag_of(key if value else f"no_{key}")
    return f"{flag_of(key)}={','.join(map(str, value)) if isinstance(value, tuple) else value}"


TLS = {
    "sumo-rl": 'dialect = "sumo-rl"',
    "street": 'dialect = "street"',
    "sappo": 'dialect = "sappo"\nstate = "vd"\naction = "kc"\naction_t_s = 5',
}


def city_with(folder, settings, dialect="sumo-rl"):
    """A city of one TL with settings in [training]."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    (folder / "city.toml").write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[training]\n{lines}\n[tl.SA101]\nsignals = '
        f'["A0"]\n{TLS[dialect]}\n'
    )
    return folder / "city.toml"


def train(folder, settings, *flags, dialect="sumo-rl"):
    city = city_with(folder, settings, dialect)
    assert main(["train", "--city", str(city), "--out", str(folder / "out"), *TRAINING, *flags]) == 0
    return state_of(folder / "out")


def state_of(out):
    values, arrays = states.read(state_file(out, 1))
    return values["identity"], [arrays[name] for name in sorted(arrays)]


def is_same(arrays, others):
    return [array.tobytes() for array in arrays] == [array.tobytes() for array in others]


@pytest.fixture(scope="module")
def unset(tmp_path_factory):
    """(folder, identity, state) of a training without any setting."""
    folder = tmp_path_factory.mktemp("unset")
    return folder, *train(folder, {})


def test_every_field_of_the_configuration_is_a_setting():
    fields = set(PpoConfig.__dataclass_fields__)
    assert fields == set(StreetPpo.__dataclass_fields__) == ppo_settings.METADATA.keys()
    assert OTHER.keys() == ppo_settings.METADATA.keys() == DEFAULTS.keys() | {"target_kl"}


def test_defaults_that_are_given_change_no_bit(unset, tmp_path):
    _, identity, state = unset
    given, flagged = train(tmp_path / "flags", {}, *(as_flag(*item) for item in DEFAULTS.items()))
    assert is_same(flagged, state)
    names = {flag_of(key) for key in DEFAULTS} - {"--hidden-sizes"}
    assert {name: given[name][0] for name in names} == {name: identity[name][0] for name in names}


@pytest.mark.parametrize("key", OTHER)
def test_setting_of_the_city_changes_the_weights_and_is_recorded(key, unset, tmp_path, capsys):
    _, identity, state = unset
    changed, other = train(tmp_path, {key: OTHER[key]})
    assert not is_same(other, state)
    name = flag_of(key)
    assert [flag for flag in identity if identity[flag] != changed[flag]] == [name], "and nothing else differs"
    assert changed[name] in ([OTHER[key], OTHER[key]], list(OTHER[key]) if key == "hidden_sizes" else None)
    capsys.readouterr()
    flags = ("--city", str(city_with(tmp_path, {})), "--out", str(tmp_path / "out"), *TRAINING, "--resume")
    refused(capsys, main(["train", *flags]), f"the training to resume had another {name}; pass the same flags")


def test_flags_take_precedence_over_the_city(unset, tmp_path):
    in_city = train(tmp_path / "city", OTHER)
    by_flags = train(tmp_path / "flags", DEFAULTS | {"target_kl": 5.0}, *(as_flag(*item) for item in OTHER.items()))
    assert by_flags[0] == in_city[0] and is_same(by_flags[1], in_city[1])


@pytest.mark.parametrize(
    ("key", "value", "requirement"),
    [
        ("learning_rate", 1.0, "lie between 0 and 1"),
        ("gamma", 1.0, "be at least 0 and less than 1"),
        ("gae_lambda", 1.5, "be at least 0 and at most 1"),
        ("clip_range", 0.0, "lie between 0 and 1"),
        ("ent_coef", 2.0, "be at least 0 and at most 1"),
        ("vf_coef", -0.5, "be at least 0 and at most 100"),
        ("max_grad_norm", 0.0, "be greater than 0 and at most 1000"),
        ("n_epochs", 0, "lie between 1 and 1000"),
        ("minibatch", 0, "lie between 1 and 1000000"),
        ("final_sharpness", 0.5, "be at least 1 and at most 1000"),
        ("target_kl", 0.0, "be greater than 0 and at most 10"),
        ("learning_rate_schedule", "cosine", ""),
        ("hidden_sizes", (64, 5000), "be integers between 1 and 4096"),
    ],
)
@pytest.mark.parametrize("command", [("train",), ("rounds", "--groups", "SA101")])
def test_setting_out_of_range_is_one_line(command, key, value, requirement, tmp_path, capsys):
    good, bad = city_with(tmp_path / "good", {}), city_with(tmp_path / "bad", {key: value})
    own = ("--out", str(tmp_path / "out"), "--seconds", "50")
    code = main([*command, "--city", str(bad), *own])
    refused(capsys, code, f"{bad}: [training] {key} = ", requirement)
    code = main([*command, "--city", str(good), *own, as_flag(key, value)])
    refused(capsys, code, flag_of(key), requirement)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "dialect", "reason"),
    [
        ("--hidden-sizes=8", "street", "the networks of the dialect street have fixed sizes"),
        ("--final-sharpness=5", "sappo", "no target TL has categorical actions"),
    ],
)
def test_flag_that_applies_to_no_target_is_refused(flag, dialect, reason, tmp_path, capsys):
    city = city_with(tmp_path, {}, dialect)
    refused(
        capsys,
        main(["train", "--city", str(city), "--out", str(tmp_path / "out"), *TRAINING, flag]),
        f"{flag.partition('=')[0]} does not apply: {reason}; leave it out",
    )


def test_settings_apply_to_the_street_dialect_in_a_city(tmp_path):
    _, unset = train(tmp_path / "unset", {}, dialect="street")
    identity, state = train(tmp_path / "set", {"gae_lambda": 0.1}, dialect="street")
    assert identity["--gae-lambda"] == [0.1, 0.1] and not is_same(state, unset)


def test_rounds_train_with_the_settings_of_the_city_and_the_flags(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Rounds, "run", lambda self: {})
    city = city_with(tmp_path, {"gamma": 0.5, "clip_range": 0.1, "hidden_sizes": (8, 8)})
    flags = ("--groups", "SA101", "--seconds", "50", "--clip-range", "0.3", "--out", str(tmp_path / "out"))
    assert main(["rounds", "--city", str(city), *flags]) == 0, capsys.readouterr().err
    identity = json.loads((tmp_path / "out" / "rounds.json").read_text())["identity"]
    assert (identity["--gamma"], identity["--clip-range"], identity["--hidden-sizes"]) == (
        [0.5, 0.5],
        [0.3, 0.3],
        [8, 8],
    )
    (tmp_path / "city.toml").write_text((tmp_path / "city.toml").read_text().replace("gamma = 0.5", "gamma = 0.6"))
    refused(
        capsys, main(["rounds", "--city", str(city), *flags, "--resume"]), "the rounds to resume had another --gamma"
    )


def scalars(logs):
    values = {}
    for path in logs.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                values.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    return values


def test_statistics_have_stable_baselines3s_names_everywhere(tmp_path, capsys):
    """For the trainer of a city, whose TLs have two kinds of actors, and for that of many streets."""
    flags = ("--city", str(GRID / "city.toml"), "--target-tl", "SA101,SA103", *TRAINING)
    assert main(["train", *flags, "--out", str(tmp_path / "city")]) == 0
    generate(tmp_path / "folder", 0)
    assert (
        main(["pretrain", "train", "--streets", str(tmp_path / "folder"), *STREETS, "--out", str(tmp_path / "streets")])
        == 0
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("update ")]
    assert len(lines) == 4
    for name in TRAIN:
        assert all(f"{name.removeprefix('train/')} " in line for line in lines)
    assert all(line.endswith(" fps") for line in lines)
    for out in ("city", "streets"):
        rows = list(csv.DictReader((tmp_path / out / "trial_1_curve.csv").open()))
        tags = scalars(tmp_path / out / "tensorboard" / "trial_1")
        assert "time/fps" not in rows[0], "curves have no wall times: the same training has the same curve"
        for name in IN_CURVES:
            logged, written = tags[name], [float(row[name]) for row in rows]
            np.testing.assert_allclose(logged, written, rtol=1e-4, err_msg=name)
        assert all(fps > 0 for fps in tags["time/fps"]) and all(loss < 0 for loss in tags["train/entropy_loss"])
    assert tuple(rows[0])[:4] == ("update", "delay_s", "vehicles_per_lane_h", "decisions")
    own = ("episode", "delay_s", "finished", "total", "overrides", "validation_delay_s")
    assert tuple(csv.DictReader((tmp_path / "city" / "trial_1_curve.csv").open()).fieldnames) == (*own, *IN_CURVES)
    kinds = scalars(tmp_path / "city" / "tensorboard" / "trial_1")
    assert {f"train/approx_kl/{kind}" for kind in ("categorical", "continuous")} <= kinds.keys()


def test_settings_of_many_streets_are_recorded_in_the_policy(tmp_path, capsys):
    from export.checkpoints import phase_networks

    generate(tmp_path / "folder", 0)
    others = [as_flag(key, value) for key, value in OTHER.items() if key != "hidden_sizes"]
    flags = ("pretrain", "train", "--streets", str(tmp_path / "folder"), *STREETS, "--out", str(tmp_path / "out"))
    refused(capsys, main([*flags, "--hidden-sizes", "8,8"]), "unrecognized arguments: --hidden-sizes 8,8")
    assert main([*flags, *others]) == 0, capsys.readouterr().err
    identity = phase_networks.description_of(tmp_path / "out" / "street_trial_1.policy")["training"]
    assert all(identity[flag_of(key)] == OTHER[key] for key in OTHER if key != "hidden_sizes")
    refused(capsys, main([*flags, "--resume"]), "had another --learning-rate, --learning-rate-schedule, --gamma")
