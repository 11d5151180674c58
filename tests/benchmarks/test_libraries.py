"""The benchmark of other libraries fails if an example does."""

import sys

import pytest

from benchmarks import libraries, pytorch_venv


@pytest.mark.parametrize(
    ("named", "code", "last"), [(["good"], 0, "all trips are"), (["good", "bad"], 1, "failed: bad")]
)
def test_failed_example_is_named_and_exits_with_1(named, code, last, tmp_path, monkeypatch, capfd):
    for name, line in (("good", "import sys; print(sys.argv[1:])"), ("bad", "raise SystemExit(1)")):
        (tmp_path / name).write_text(line)
    monkeypatch.setattr(pytorch_venv, "create", lambda folder, packages: sys.executable)
    monkeypatch.setattr(libraries, "CASES", {name: (tmp_path / name, "--flag") for name in ("good", "bad")})
    monkeypatch.setattr(sys, "argv", ["libraries", "--steps", "7", "--libraries", *named])
    assert libraries.main() == code
    lines = capfd.readouterr().out.splitlines()
    assert lines[2].startswith("['--flag', '--out', ") and lines[2].endswith("'--steps', '7', '--seconds', '900']")
    assert lines[-1].startswith(last)
