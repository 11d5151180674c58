"""The policy for any street on RESCO's streets: results of other flags, or of another policy, are not printed again."""

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import resco

needs_streets = pytest.mark.skipif(
    importlib.util.find_spec("sumo_rl") is None, reason="sumo-rl, whose wheel has the streets, is not installed"
)


@pytest.fixture
def evaluated(monkeypatch):
    """(folder, arms) of each evaluation; of it, the delays are 20, 21, ... s, the pretrained policy's 3 s less."""
    evaluations: list[tuple[Path, tuple[str, ...]]] = []

    def evaluate(folder, name, arms, args):
        evaluations.append((folder / name, tuple(arms)))
        (folder / name).mkdir(parents=True)
        simulations = [
            {"arm": arm, "seed": seed, "delay_s": 20.0 + k + seed - 3 * (arm == "pretrained"), "duration_s": 40.0}
            for k, arm in enumerate(arms)
            for seed in range(args.seeds)
        ]
        (folder / name / "results.json").write_text(json.dumps({"simulations": simulations}))

    monkeypatch.setattr(resco, "_prepare", lambda *args: None)
    monkeypatch.setattr(resco, "_evaluate", evaluate)
    return evaluations


@needs_streets
@pytest.mark.parametrize("flags", [["--all-red", "default"], ["--vary-demand"], ["--seeds", "3"]])
def test_results_of_other_flags_are_not_used_again(flags, evaluated, tmp_path, capsys):
    command = ["--street", "cologne1", "--out", str(tmp_path)]
    for own in ([], [], flags, flags):
        assert resco.main([*command, *own]) == 0
    assert len(evaluated) == len(set(evaluated)) == 4
    assert capsys.readouterr().out.count("| cologne1 |") == 4


@needs_streets
def test_another_policy_is_simulated_and_the_baselines_are_not_again(evaluated, tmp_path, monkeypatch):
    command = ["--street", "cologne1", "--out", str(tmp_path)]
    assert resco.main(command) == 0
    (tmp_path / "other.policy").write_bytes(b"other")
    monkeypatch.setattr(resco.pretrained, "policy", lambda: tmp_path / "other.policy")
    assert resco.main(command) == 0
    assert [arms for _, arms in evaluated] == [("pretrained",), resco.BASELINES, ("pretrained",)]
    assert len({folder for folder, _ in evaluated}) == 3


@needs_streets
def test_a_row_has_the_mean_the_worst_seed_and_the_difference_to_the_best_baseline(evaluated, tmp_path, capsys):
    assert resco.main(["--street", "grid4x4", "--seeds", "3", "--out", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| grid4x4 | 18.0 | 19.0 | 40.0 | 21.0 | 22.0 | 23.0 | 24.0 | -3.0 (-3.0 to -3.0) |  | 52.3 |")


@needs_streets
def test_one_seed_has_no_interval(evaluated, tmp_path, capsys):
    assert resco.main(["--street", "cologne1", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert " | -3.0 | 56.5 | " in capsys.readouterr().out


def test_a_wrong_street_ends_with_exit_code_2_and_no_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        resco.main(["--street", "nowhere"])
    assert ended.value.code == 2 and "invalid choice: 'nowhere'" in capsys.readouterr().err
