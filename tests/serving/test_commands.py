"""The commands `python -m serving predict` and `status`."""

import io
import json
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from serving.__main__ import main
from tests.serving.fake_server import Fake


def run(capsys, *argv):
    """(exit code, stdout, stderr) of a command."""
    code = main(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_predict_prints_the_action_as_json(grid_server, capsys, tmp_path, monkeypatch):
    numbers = np.linspace(0, 1, 17, dtype=np.float32)
    np.save(tmp_path / "x.npy", numbers)
    (tmp_path / "x.json").write_text(json.dumps(numbers.tolist()))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(numbers.tolist())))
    actions = []
    for observation in (",".join(map(str, numbers.tolist())), str(tmp_path / "x.npy"), str(tmp_path / "x.json"), "-"):
        code, out, _ = run(capsys, "predict", "SA103", "--observation", observation, "--server", grid_server)
        assert code == 0
        actions.append(json.loads(out))
    assert all(action == actions[0] for action in actions) and len(actions[0]["action"]) == 1
    code, out, _ = run(capsys, "predict", "SA101", "--observation=zeros", "--server", grid_server, "--model_version=1")
    assert code == 0 and set(json.loads(out)) == {"action", "probabilities"}


def test_status_lists_named_models_or_those_of_models_dir(grid_server, grid_models, capsys, tmp_path):
    (tmp_path / "city.toml").write_text(f'[serving]\nmodels_dir = "{grid_models}"\naddress = "{grid_server}"\n')
    code, out, _ = run(capsys, "status", "--city", str(tmp_path / "city.toml"))
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["MODEL", "VERSION", "STATE"] and ["SA103", "1", "AVAILABLE"] in rows
    assert len(rows) == 1 + len([path for path in grid_models.iterdir() if path.is_dir()])
    code, out, error = run(capsys, "status", "SA103", "unknown", "--server", grid_server)
    assert code == 2 and "unknown  -        NOT SERVED" in out and "SA103    1        AVAILABLE" in out
    assert error == "error: unknown: not served; export it, or pass another --server\n"


def test_an_interrupt_ends_the_wait_for_an_answer_at_once(capsys, tmp_path):
    fake = Fake(str(tmp_path / "socket"))
    ended = threading.Event()
    fake.answer = lambda request, context: b"x" * ended.wait(10)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin_s = time.monotonic()
    arguments = ("predict", "SA103", "--observation=zeros", "--server", fake.address, "--timeout-s=60")
    assert run(capsys, *arguments) == (1, "", "error: interrupted\n")
    assert time.monotonic() - begin_s < 3
    ended.set()
    fake.stop()


DAMAGED = {
    "empty.npy": b"",
    "archive.npy": b"PK\x03\x04",
    "deep.json": b"[" * 100_000,
    "huge.json": b"[1%s]" % (b"0" * 400),
}


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["predict", "SA103", "--observation", "1,2"], 2, "--observation has 2 values; SA103 takes 17"),
        (["predict", "SA103", "--observation", "x"], 2, "could not convert string to float: 'x'"),
        (
            ["predict", "SA103", "--observation", "1;0;1"],
            2,
            "could not convert string to float: '1;0;1'",
        ),
        (["predict", "SA103", "--observation", "1,,1"], 2, "pass numbers separated by commas"),
        (["predict", "SA103", "--observation", "none.npy"], 2, "pass numbers separated by commas"),
        *((["predict", "SA103", "--observation", name], 2, "not a list of numbers") for name in DAMAGED),
        (["predict", "SA103", "--observation", "none.npy", "--server", "127.0.0.1:1"], 2, "No such file"),
        (["predict", "unknown", "--observation", "zeros"], 2, "Latest(unknown)"),
        (["predict", "SA103", "--observation", ",".join(["nan"] * 17)], 2, "values that are not finite"),
        (["predict", "SA103", "--observation=zeros", "--model_version=1", "--version_label=x"], 2, "pass one of them"),
        (["status", "SA103", "--tls_ca", __file__], 2, "is not PEM"),
        (
            ["predict", "SA103", "--observation", "zeros", "--version_label", "gold"],
            2,
            "Unrecognized servable version label: gold",
        ),
        (["predict", "SA103", "--observation", "zeros", "--version_label", "gold"], 2, "error: SA103 at 127.0.0.1:"),
        (["predict", "SA103"], 2, "--observation"),
        (["status", "--timeout_s", "0"], 2, "--timeout_s: 0 must lie between 0.001 and 3600"),
        (["predict", "SA103", "--obs", "zeros"], 2, "the following arguments are required: --observation"),
        (["predict", "SA103", "--observation=zeros", "--model_v=1"], 2, "unrecognized arguments: --model_v=1"),
        (["status", "x", "--time", "1"], 2, "unrecognized arguments: --time 1"),
        (["status", "x", "--tls_key", "k"], 2, "belong together"),
        (["status", "x", "--tls_ca", "none.pem"], 2, "none.pem: cannot be read"),
        (["status", "x", "--server", "nonsense"], 2, "must be HOST:PORT"),
        (["status", "x", "--city", "none.toml"], 2, "no such file"),
        (
            ["status", "x", "--server", "127.0.0.1:1", "--timeout_s", "2"],
            1,
            "start one (greenserve serve) or pass --server",
        ),
    ],
)
def test_wrong_input_gives_one_error_line(argv, code, message, grid_server, capsys, tmp_path, in_tmp_path):
    for name, content in DAMAGED.items():
        (tmp_path / name).write_bytes(content)
    if "--server" not in argv and "--city" not in argv:
        argv = [*argv, "--server", grid_server]
    exit_code, _, err = run(capsys, *argv)
    assert exit_code == code and message in err and len(err.strip().splitlines()) == 1, err


@pytest.mark.parametrize("argv", [("predict", "SA103", "--observation=zeros"), ("status", "SA103")])
def test_a_deadline_is_not_reported_as_a_missing_server(argv, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, _, error = run(capsys, *argv, "--server", address, "--timeout-s", "0.2")
    assert code == 1 and error.startswith(f"error: {address}: no answer within 0.2 s; pass a longer --timeout-s")


def test_status_without_names_asks_the_given_server_about_the_models_of_city_toml(
    grid_server, capsys, tmp_path, in_tmp_path
):
    for _ in range(2):
        code, out, err = run(capsys, "status", "--server", grid_server)
        assert (code, out) == (2, "") and len(err.splitlines()) == 1
        assert "models is missing or has no models" in err and err.endswith("names: status MODEL [MODEL ...]\n")
        (tmp_path / "models").mkdir(exist_ok=True)
    for name in ("SA103", "SA999", ".draft"):
        (tmp_path / "policies" / name).mkdir(parents=True)
    (tmp_path / "city.toml").write_text('[serving]\nmodels_dir = "policies"\naddress = "127.0.0.1:1"\n')
    code, out, _ = run(capsys, "status", "--server", grid_server)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert (code, rows) == (0, [["SA103", "1", "AVAILABLE"], ["SA999", "-", "NOT", "SERVED"]])


def test_server_of_a_model_is_that_of_its_district(grid_server, grid_models, capsys, tmp_path, in_tmp_path):
    tls = "".join(f"[tl.{tl}]\nsignals = ['{tl}']\ndialect = 'sumo-rl'\n" for tl in ("SA101", "SA103", "SA104"))
    districts = (
        f"[serving.districts.north]\naddress = '{grid_server}'\ntls = ['SA101', 'SA103']\n"
        "[serving.districts.south]\naddress = '127.0.0.1:1'\ntls = ['SA104']\n"
    )
    (tmp_path / "city.toml").write_text(f"[serving]\nmodels_dir = '{grid_models}'\n{districts}{tls}")
    assert run(capsys, "predict", "SA103", "--observation", "zeros")[0] == 0
    code, out, _ = run(capsys, "status", "SA101", "SA103")
    assert code == 0 and out.count("AVAILABLE") == 2
    code, _, error = run(capsys, "status", "SA104")
    assert code == 1 and "no model server answers at 127.0.0.1:1" in error
    code, _, error = run(capsys, "predict", "SA999", "--observation", "zeros")
    assert code == 2 and "SA999 is not in any district" in error
