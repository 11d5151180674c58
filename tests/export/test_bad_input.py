"""Invalid input to the exporter: one line, exit code 2, nothing lost and nothing half-published."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from export.__main__ import main
from export.saved_model import verify
from tests.conftest import GRID

TF2 = "SA102"


@pytest.fixture
def city(tmp_path):
    """A copy of the sample city that a test may damage."""
    for name in ("city.toml", "grid.net.xml", "grid.sumocfg", "fixed_time.add.xml", "demand.rou.xml"):
        shutil.copy(GRID / name, tmp_path)
    shutil.copytree(GRID / "checkpoints", tmp_path / "checkpoints", ignore=shutil.ignore_patterns(".*"))
    return tmp_path


def export(city, *flags):
    return main(["--city", str(city / "city.toml"), *flags])


def refused(capsys, *parts):
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in err, err
    for part in parts:
        assert part in lines[0], lines[0]


def published(city):
    models = city / "models"
    return sorted(str(p.relative_to(models)) for p in models.glob("*/*")) if models.exists() else []


def test_an_unknown_tl_lists_the_known_ones(city, capsys):
    assert export(city, "--tl", "SA999") == 2
    refused(capsys, "SA999 is not one of the TLs", "SA101, SA102")


def test_a_missing_checkpoint_names_the_searched_folder(city, capsys):
    (city / "city.toml").write_text(
        (city / "city.toml").read_text() + '\n[tl.SA200]\nsignals = ["B1x"]\ndialect = "sumo-rl"\n'
    )
    assert export(city, "--tl", "SA200") == 2
    refused(capsys, "no checkpoint for SA200", str(city / "checkpoints"), "SA101")
    assert export(city, "--tl", "SA101", "--model-path", str(city / "nowhere")) == 2
    refused(capsys, "nowhere: no such folder")
    assert export(city, "--tl", "SA101", "--model-number", "77") == 2
    refused(capsys, "no checkpoint of SA101 with model number 77", "available: 1")


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_a_truncated_data_file_is_refused(city, capsys, keep):
    data = city / "checkpoints" / TF2 / f"{TF2}-1.data-00000-of-00001"
    raw = data.read_bytes()
    data.write_bytes(raw[: int(len(raw) * keep)])
    assert export(city, "--tl", TF2) == 2
    refused(capsys, f"{TF2}-1", "cannot be read")
    assert published(city) == []


def test_a_flipped_byte_of_the_actor_is_refused(city, capsys):
    data = city / "checkpoints" / "PPO-_SA101_trial_1.data-00000-of-00001"
    raw = bytearray(data.read_bytes())
    raw[40] ^= 0xFF  # variables lie in order of their names, the actor's first
    data.write_bytes(raw)
    assert export(city, "--tl", "SA101") == 2
    refused(capsys, "PPO-_SA101_trial_1", "cannot be read")
    assert published(city) == []


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
@pytest.mark.parametrize(
    "name", ["PPO-_SA101_trial_1.index", "SAPPO-_state_vd_action_kc_netSz_(64, 64)-trial_1_SA103_actor.weights.h5"]
)
def test_empty_and_garbage_files_are_refused(city, capsys, name, content):
    (city / "checkpoints" / name).write_bytes(content)
    assert export(city, "--tl", "SA101" if "SA101" in name else "SA103") == 2
    refused(capsys, "cannot be read")
    assert published(city) == []


def h5(city):
    return next((city / "checkpoints").glob("*SA103*.h5"))


def test_missing_variables_are_named(city, capsys):
    with h5py.File(h5(city), "a") as file:
        del file["layers/dense_1/vars/1"]
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "layers/dense_1/bias is missing")


@pytest.mark.parametrize("layer", ["dense", "dense_1"])
def test_a_missing_layer_is_named(city, capsys, layer):
    with h5py.File(h5(city), "a") as file:
        del file[f"layers/{layer}/vars/0"], file[f"layers/{layer}/vars/1"]
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, f"variable layers/{layer}/kernel is missing")


def test_an_interrupted_overwrite_keeps_the_old_version(city, capsys, monkeypatch):
    assert export(city, "--tl", "SA103") == 0
    real = Path.rename

    def interrupted(self, target):
        if ".draft-" in self.name:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    assert export(city, "--tl", "SA103", "--overwrite") == 1
    assert published(city) == ["SA103/1"]
    assert (city / "models" / "SA103" / "1" / "saved_model.pb").is_file()


def test_weights_that_are_not_finite_are_refused(city, capsys):
    with h5py.File(h5(city), "a") as file:
        file["layers/dense_1/vars/0"][3, 3] = np.nan
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "layers/dense_1/kernel", "non-finite")
    assert published(city) == []


def test_an_actor_of_another_street_is_refused(city, capsys):
    text = (city / "city.toml").read_text().replace('signals = ["A2"]', 'signals = ["A2", "Z9"]')
    (city / "city.toml").write_text(text)
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "signal Z9 is not in")
    (city / "city.toml").write_text(
        text.replace('["A2", "Z9"]', '["A2"]').replace('state = "vd"\naction = "kc"', 'state = "d"\naction = "kc"', 1)
    )
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "has state vd", "has d")


def test_a_network_without_a_lane_is_refused(city, capsys):
    net = (city / "grid.net.xml").read_text()
    kept = [line for line in net.splitlines() if not (' tl="A0"' in line and 'linkIndex="2"' in line)]
    (city / "grid.net.xml").write_text("\n".join(kept))
    assert export(city, "--tl", "SA101") == 2
    refused(capsys, "has 21 inputs, but the network's lanes give 19", "A0")


def test_repeated_export_leaves_existing_versions_with_skip_existing(city, capsys):
    assert export(city, "--tl", "SA103") == 0
    published = next(city.rglob("export.json"))
    before = published.stat().st_mtime_ns
    assert export(city, "--tl", "SA103,SA101", "--skip-existing") == 0
    assert published.stat().st_mtime_ns == before
    out = capsys.readouterr().out
    assert "SA103" in out and "exists already; left as it is" in out and len(list(city.rglob("export.json"))) == 2
    assert export(city, "--tl", "SA103", "--skip-existing", "--overwrite") == 2
    refused(capsys, "not allowed with argument --skip-existing")


def test_an_existing_version_is_replaced_only_with_overwrite(city, capsys):
    assert export(city, "--tl", "SA103") == 0
    pb = city / "models" / "SA103" / "1" / "saved_model.pb"
    before = pb.stat().st_mtime_ns
    capsys.readouterr()
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "exists already", "--overwrite")
    assert pb.stat().st_mtime_ns == before
    assert export(city, "--tl", "SA103", "--overwrite") == 0
    assert pb.stat().st_mtime_ns > before
    assert published(city) == ["SA103/1"]


def test_a_model_that_fails_the_parity_check_is_not_published(city, capsys, monkeypatch):
    monkeypatch.setattr(verify, "TOLERANCE", 0.0)
    assert export(city, "--tl", "SA103") == 1
    assert "not published" in capsys.readouterr().err
    assert published(city) == []


def test_ctrl_c_leaves_complete_versions_only(city, capsys, monkeypatch):
    real = verify.compare_with_checkpoint

    def interrupted(folder, actor, contract, *others):
        if contract.tl == "SA103":
            raise KeyboardInterrupt
        return real(folder, actor, contract, *others)

    monkeypatch.setattr(verify, "compare_with_checkpoint", interrupted)
    assert export(city, "--tl", "SA101,SA103,SA104") == 1
    assert "interrupted" in capsys.readouterr().err
    assert published(city) == ["SA101/1"]
    assert [path.name for path in (city / "models").iterdir()] == ["SA101"]


def test_one_bad_checkpoint_does_not_stop_the_others(city, capsys):
    h5(city).write_bytes(b"")
    assert export(city, "--tl", "all") == 2
    err = capsys.readouterr().err
    assert "7 of 8 TLs exported" in err and "failed: SA103" in err
    assert len(published(city)) == 7


def test_an_unknown_scope_lists_the_known_ones(city, capsys):
    assert export(city, "--tl", "SA101", "--scope", "Actor_9") == 2
    refused(capsys, "has no scope Actor_9", "actor")


def test_a_scope_is_refused_for_a_file_of_one_actor(city, capsys):
    assert export(city, "--tl", "SA103", "--scope", "Actor_0") == 2
    refused(capsys, "scope Actor_0 is for checkpoints of several agents")


def test_several_actors_need_a_scope(shared, tmp_path, capsys):
    source = shared / "checkpoints" / "tf1_multi_agent_saver"
    assert main(["--model-path", str(source), "--tl", "SA101", "--models-dir", str(tmp_path)]) == 2
    refused(capsys, "Actor_0, Actor_1, Actor_2", "--scope")


def test_a_models_dir_that_is_a_file_is_refused(city, capsys):
    (city / "models").write_text("a file where the folder should be")
    assert export(city, "--tl", "SA103") == 2
    refused(capsys, "cannot be written")
