"""Settings in file names are used; if city.toml contradicts them, both are shown and nothing is exported."""

import re
import shutil

import pytest
import tensorflow as tf

from export import locate
from export.__main__ import main
from serving.contract import from_saved_model
from tests.conftest import GRID

NAME = "SAPPO-_state_{state}_action_{action}_reward_cwq_gamma_0.99_netSz_({sizes}){more}-trial_3_SA_107_actor"


@pytest.fixture
def city(tmp_path):
    """The sample city with SA107's actor alone, under a file name of the sappo dialect's trainer."""
    for name in ("city.toml", "grid.net.xml", "grid.sumocfg", "fixed_time.add.xml", "demand.rou.xml"):
        shutil.copy(GRID / name, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def named(city, sizes="64, 64", more="_offset_range_2", name=NAME):
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


def test_settings_of_the_file_name_complete_the_contract(city):
    named(city, more="_offset_range_4_control_cycle_3_add_time_1")
    settings(city, state=None, action=None, control_cycle=None)
    assert export(city) == 0
    policy = from_saved_model(city / "models" / "SA107" / "3")
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
def test_contradicting_file_name_and_city_toml_are_refused(city, key, value, message, capsys):
    name = named(city, more="_offset_range_2_control_cycle_2")
    settings(city, **{key: value})
    assert export(city) == 2
    err = capsys.readouterr().err
    assert name in err and message.format(city=city / "city.toml") in err and "fix the one that is wrong" in err
    assert not (city / "models").exists()


def test_a_sappo_checkpoint_of_a_sumo_rl_tl_is_refused(city, capsys):
    named(city)
    settings(city, dialect='"sumo-rl"', state=None, action=None)
    assert export(city) == 2
    assert "has state vdd, which is not a setting of dialect sumo-rl in" in capsys.readouterr().err


def test_a_missing_state_is_refused(city, capsys):
    named(city, name="PPO-_SA107_trial_1")
    settings(city, state=None)
    assert export(city) == 2
    err = capsys.readouterr().err
    assert "SA107: " in err and "state is missing; set it in [tl.SA107] to one of d, v, vd, vdd" in err


def test_hidden_sizes_other_than_the_layers_are_refused(city, capsys):
    named(city, sizes="64, 32")
    assert export(city) == 2
    assert "hidden sizes are 64, 32, but the hidden layers of its mlp have 64, 64 units" in capsys.readouterr().err


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


def test_critics_hidden_folders_and_exports_are_not_candidates(city, grid_models):
    shutil.copytree(grid_models / "SA101", city / "checkpoints" / "models" / "SA101")
    (city / "checkpoints" / ".old").mkdir()
    for name in ("x_SA101_critic.h5", "critic_SA101.index", ".old/SA101.h5", "SA101_actor_critic.npz", "notes.txt"):
        (city / "checkpoints" / name).write_bytes(b"")
    found = locate.find_candidates(city / "checkpoints")
    assert [candidate.label for candidate in found] == ["SA101_actor_critic.npz"]


def test_a_saved_model_is_a_single_candidate(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "SA101" / "7"))
    (found,) = locate.find_candidates(tmp_path)
    assert (found.format, found.number, found.label) == ("saved-model", 7, "SA101/7")
    assert locate.Search(tmp_path, [found]).choose("SA101", None) is found
