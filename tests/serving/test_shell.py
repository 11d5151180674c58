"""`python -m serving predict` and `status`, as people type them."""

import io
import json

import numpy as np
import pytest
from serving.client.commands import main


def ask(capsys, *argv):
    code = main(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_predict_prints_the_action_as_json(grid_server, capsys, tmp_path, monkeypatch):
    numbers = np.linspace(0, 1, 17, dtype=np.float32)
    np.save(tmp_path / "x.npy", numbers)
    (tmp_path / "x.json").write_text(json.dumps(numbers.tolist()))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(numbers.tolist())))
    found = []
    for told in (",".join(map(str, numbers.tolist())), str(tmp_path / "x.npy"), str(tmp_path / "x.json"), "-"):
        code, out, _ = ask(capsys, "predict", "SA103", "--observation", told, "--server", grid_server)
        assert code == 0
        found.append(json.loads(out))
    assert all(one == found[0] for one in found) and len(found[0]["action"]) == 1
    code, out, _ = ask(capsys, "predict", "SA101", "--observation=zeros", "--server", grid_server, "--model_version=1")
    assert code == 0 and set(json.loads(out)) == {"action", "probabilities"}


def test_status_lists_versions_of_named_models_or_of_the_folder(grid_server, grid_models, capsys, tmp_path):
    (tmp_path / "city.toml").write_text(f'[serving]\nmodels_dir = "{grid_models}"\naddress = "{grid_server}"\n')
    code, out, _ = ask(capsys, "status", "--city", str(tmp_path / "city.toml"))
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["MODEL", "VERSION", "STATE"] and ["SA103", "1", "AVAILABLE"] in rows
    assert len(rows) == 1 + len([path for path in grid_models.iterdir() if path.is_dir()])
    code, out, _ = ask(capsys, "status", "SA103", "nobody", "--server", grid_server)
    assert code == 2 and "nobody  -        NOT SERVED" in out


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["predict", "SA103", "--observation", "1,2"], 2, "--observation has 2 numbers; SA103 takes 17"),
        (["predict", "SA103", "--observation", "x"], 2, "neither numbers with commas between"),
        (["predict", "SA103", "--observation", "none.npy"], 2, "neither numbers with commas between"),
        (["predict", "SA103", "--observation", "none.npy", "--server", "127.0.0.1:1"], 2, "No such file"),
        (["predict", "nobody", "--observation", "zeros"], 2, "Latest(nobody)"),
        (["predict", "SA103", "--observation", "zeros", "--version_label", "gold"], 2, "label: gold"),
        (["predict", "SA103"], 2, "--observation"),
        (["status", "--timeout_s", "0"], 2, "must lie between 0 and 3600"),
        (["status", "x", "--tls_key", "k"], 2, "belong together"),
        (["status", "x", "--tls_ca", "none.pem"], 2, "none.pem: cannot be read"),
        (["status", "x", "--server", "nonsense"], 2, "must be HOST:PORT"),
        (["status", "x", "--city", "none.toml"], 2, "no such file"),
        (["status", "x", "--server", "127.0.0.1:1", "--timeout_s", "2"], 1, "start one (python -m serving) or say --server"),
    ],
)
def test_what_is_wrong_is_one_line(argv, code, told, grid_server, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--server" not in argv and "--city" not in argv:
        argv = [*argv, "--server", grid_server]
    found, _, err = ask(capsys, *argv)
    assert found == code and told in err and len(err.strip().splitlines()) == 1, err
