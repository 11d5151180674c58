"""Settings in file names are used; if city.toml contradicts them, both are shown and nothing is exported."""

import re
import shutil

import pytest
import tensorflow as tf

from export import locate
from export.__main__ import main
from serving.contract import from_saved_model
from tests.conftest import GRID
from tests.export.exporting import refused

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


def export(city):
    return main(["--city", str(city / "city.toml"), "--tl", "SA107"])


def test_settings_of_the_file_name_complete_the_contract(empty_city):
    named(empty_city, more="_offset_range_4_control_cycle_3_add_time_1")
    settings(empty_city, state=None, action=None, control_cycle=None)
    assert export(empty_city) == 0
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
    assert export(empty_city) == 2
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
    assert export(empty_city) == 2
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
