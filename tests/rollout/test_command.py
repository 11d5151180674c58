"""`greenserve rollout`: flags, requests to an open rollout, and what it refuses before it touches the street."""

import shutil

import pytest

from city import run_lock
from city.ledger_file import LedgerFile
from rollout import model_files
from rollout.__main__ import main
from tests.error_lines import assert_refused
from tests.rollout.fake_street import World
from tests.sample_city import write_city


@pytest.fixture
def city(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_city(tmp_path)
    return tmp_path


@pytest.fixture
def opened(city):
    """A rollout that has passed its evaluation."""
    world = World(city / "ledger.jsonl")
    world.run(until="evaluate")
    return world


def run(*argv, code=0):
    assert main([*map(str, argv)], "greenserve rollout") == code


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ("--to 0", "--to 0 must be a model number"),
        ("--to 4 --skip canary", "--skip canary: only evaluate and shadow can be left out"),
        ("--to 4 --hours 9-9", "--hours '9-9' must be two different times of day"),
        ("--to 4 --hours 24:00-25:00", "such as 09:00-16:00"),
        ("--to 4 --poll-s 0.01", "--poll-s 0.01 must lie between 0.1 and 120"),
        ("--to 4 --poll-s nan", "--poll-s nan must lie between"),
        ("--to 4 --seeds 1", "--seeds 1 must lie between 2"),
        ("--to 4 --min-bins 1", "--min-bins 1 must lie between 2"),
        ("--to 4 --tolerance=-0.1", "--tolerance -0.1 must lie between 0"),
        ("--to 4 --control-tls-key k", "--control-tls-certificate and --control-tls-key belong"),
        ("--to 4", "config/models.config: no such file; write it (greenserve serve config"),
        ("SA999 --to 4", "SA999 is not one of the TLs"),
        ("A0 --to 4", "A0 is a signal, which belongs to TL SA101"),
    ],
)
def test_wrong_flags_are_one_line(city, capsys, flags, part):
    run(*([] if "A" in flags else ["SA101"]), *flags.split(), "--record", "rec", code=2)
    assert_refused(capsys, part)


def test_a_rollout_needs_the_record(city, capsys):
    run("SA101", "--to", "4", code=2)
    assert_refused(capsys, "the rollout needs the controller's record", "pass --record DIR")


def test_tls_of_several_districts_are_refused(city, capsys):
    more = "".join(
        f'\n[serving.districts.{name}]\naddress = "127.0.0.1:{port}"\ntls = {tls}\n'
        for name, port, tls in (("north", 1, '["SA101", "SA102", "SA103", "SA104"]'),
                                ("south", 2, '["SA105", "SA106", "SA107", "SA108"]'))
    )  # fmt: skip
    (city / "city.toml").write_text((city / "city.toml").read_text() + more)
    run("SA101,SA105", "--to", "4", "--record", "rec", code=2)
    assert_refused(capsys, "in the districts north, south")
    run("SA101", "--to", "4", "--record", "rec", code=2)
    assert_refused(capsys, "config/north/models.config: no such file")


def test_a_rollout_is_paused_and_resumed_by_anyone_and_status_shows_it(opened, capsys):
    run("status")
    _, first, second = capsys.readouterr().out.splitlines()
    assert "SA101" in first and "load" in first and "ann" in first and "evaluate: better: simulated" in first
    assert "SA104" in second
    run("pause", "SA104", "--author", "bob")
    (rollout,) = LedgerFile(opened.path).state.rollouts.values()
    assert rollout.is_paused and "paused" in capsys.readouterr().out
    run("status")
    assert "load (paused)" in capsys.readouterr().out
    run("resume", "SA101")
    (rollout,) = LedgerFile(opened.path).state.rollouts.values()
    assert not rollout.is_paused
    opened.run()
    run("pause", "SA101", code=2)
    assert_refused(capsys, "SA101 is in no open rollout; greenserve rollout status lists them")


def test_a_second_process_is_refused_and_an_abort_leaves_the_end_to_the_first(opened, city, capsys, monkeypatch):
    def held(path, message):
        raise run_lock.IsHeld(message)

    monkeypatch.setattr(run_lock, "held", held)
    (city / "config").mkdir()
    entry = 'config { name: "SA101" base_path: "/models/SA101" model_platform: "tensorflow" }'
    (city / "config" / "models.config").write_text(f"model_config_list {{ {entry} }}")
    run("SA101,SA104", "--to", "4", "--record", "rec", code=2)
    assert_refused(
        capsys, "another process rolls out SA101, SA104; wait for its end, or greenserve rollout abort SA101"
    )
    run("abort", "SA101")
    assert "its process takes the canaries back and ends it" in capsys.readouterr().out
    (rollout,) = LedgerFile(opened.path).state.rollouts.values()
    assert rollout.is_aborted


@pytest.fixture
def copied(grid_models, tmp_path):
    shutil.copytree(grid_models / "SA101", tmp_path / "models" / "SA101")
    return tmp_path / "models"


def test_a_model_is_its_files(copied):
    model = model_files.of_version(copied, "SA101", 1)
    assert model.number == 1 and model_files.of_version(copied, "SA101", 1) == model
    (copied / "SA101" / "1" / "assets.extra" / "later").write_text("x")
    assert model_files.of_version(copied, "SA101", 1).sha256 != model.sha256


@pytest.mark.parametrize("name", [*model_files.NEEDED, "variables/variables.data-00000-of-00001"])
def test_a_half_copied_model_is_refused(copied, name):
    (copied / "SA101" / "1" / name).unlink()
    with pytest.raises(model_files.InputError, match="it is half copied"):
        model_files.of_version(copied, "SA101", 1)


def test_a_renamed_model_is_refused(copied):
    (copied / "SA101" / "1").rename(copied / "SA101" / "4")
    shutil.copytree(copied / "SA101", copied / "SA102")
    for tl, number, message in (
        ("SA101", 4, "is model 1 of SA101, not 4 of SA101"),
        ("SA102", 4, "is model 1 of SA101, not 4 of SA102"),
        ("SA102", 5, "no such model; export it"),
    ):
        with pytest.raises(model_files.InputError, match=message):
            model_files.of_version(copied, tl, number)
