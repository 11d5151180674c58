"""The policy for any street on RESCO's streets: results of other flags are not printed again."""

import importlib.util

import pytest

from benchmarks import resco


@pytest.mark.skipif(importlib.util.find_spec("sumo_rl") is None, reason="sumo-rl, whose wheel has the streets, is not installed")
@pytest.mark.parametrize("flags", [["--all-red", "default"], ["--vary-demand"], ["--seeds", "3"]])
def test_results_of_other_flags_are_not_used_again(flags, tmp_path, monkeypatch, capsys):
    evaluated = []

    def evaluate(folder, *args):
        evaluated.append(folder)
        (folder / "results").mkdir(parents=True)
        (folder / "results" / "results.json").write_text("{}")

    monkeypatch.setattr(resco, "_prepare", lambda *args: None)
    monkeypatch.setattr(resco, "_evaluate", evaluate)
    monkeypatch.setattr(resco, "_row", lambda street, results: street)
    command = ["--street", "cologne1", "--out", str(tmp_path)]
    for own in ([], [], flags, flags):
        assert resco.main([*command, *own]) == 0
    assert len(evaluated) == len(set(evaluated)) == 2
    assert capsys.readouterr().out.count("cologne1") == 4


def test_a_wrong_street_ends_with_exit_code_2_and_no_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        resco.main(["--street", "nowhere"])
    assert ended.value.code == 2 and "invalid choice: 'nowhere'" in capsys.readouterr().err
