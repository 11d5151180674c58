"""The policy for any street on RESCO's streets: which simulations are run, and what is printed."""

import importlib.util

import pytest

from benchmarks import resco
from tests.error_lines import assert_refused

needs_streets = pytest.mark.skipif(
    importlib.util.find_spec("sumo_rl") is None, reason="sumo-rl, whose wheel has the streets, is not installed"
)


@pytest.fixture
def simulated(monkeypatch):
    """(arms, seeds) of each evaluation; of it, the delays are 20, 21, ... s, the pretrained policy's 3 s less."""
    evaluations: list[tuple[tuple[str, ...], int]] = []

    def simulate(source, arms, args):
        evaluations.append((tuple(arms), args.seeds))
        return [
            {"arm": arm, "seed": 101 + k, "delay_s": 20.0 + number + k - 3 * (arm == "pretrained"), "duration_s": 40.0}
            for number, arm in enumerate(arms)
            for k in range(args.seeds)
        ]

    monkeypatch.setattr(resco, "_simulate", simulate)
    return evaluations


@pytest.fixture
def command(tmp_path):
    return ["--results", str(tmp_path / "resco.csv"), "--out", str(tmp_path / "out")]


@needs_streets
@pytest.mark.parametrize(
    ("flags", "baselines"),
    [
        pytest.param(
            ["--all-red", "default"], ("max-pressure", "greedy"), id="SUMO's own control has no other all-red"
        ),
        (["--vary-demand"], resco.BASELINES),
        (["--seeds", "12"], resco.BASELINES),
        (["--street", "cologne3"], resco.BASELINES),
    ],
)
def test_simulations_with_a_row_in_the_results_are_not_run_again(flags, baselines, simulated, command, capsys):
    tables = []
    for own in ([], [], flags, flags, ["--seeds", "3"]):
        assert resco.main([*command, "--street", "cologne1", *own]) == 0
        tables.append(capsys.readouterr().out)
    assert [arms for arms, _ in simulated] == [("pretrained",), resco.BASELINES, ("pretrained",), baselines]
    assert tables[0] == tables[1] and tables[2] == tables[3] and "| cologne1 |" in tables[4]


@needs_streets
def test_another_policy_is_simulated_and_the_baselines_are_not_again(simulated, command, tmp_path, monkeypatch):
    assert resco.main([*command, "--street", "cologne1"]) == 0
    (tmp_path / "other.policy").write_bytes(b"other")
    monkeypatch.setattr(resco.pretrained, "policy", lambda: tmp_path / "other.policy")
    assert resco.main([*command, "--street", "cologne1"]) == 0
    assert [arms for arms, _ in simulated] == [("pretrained",), resco.BASELINES, ("pretrained",)]
    rows = (tmp_path / "resco.csv").read_text().splitlines()
    assert len(rows) == 1 + 10 * 5 and len({row.split(",")[4] for row in rows if ",pretrained," in row}) == 1, (
        "the new one's only"
    )


@needs_streets
@pytest.mark.parametrize(
    ("street", "seeds", "part"),
    [
        (
            "grid4x4",
            "3",
            "| grid4x4 | 18.0 | 19.0 | 40.0 | 21.0 | 22.0 | 23.0 | 24.0 | -3.0 (-3.0 to -3.0) |  | 52.3 |",
        ),
        pytest.param("cologne1", "1", " | -3.0 | 56.5 | ", id="one seed has no interval"),
    ],
)
def test_a_row_has_the_mean_the_worst_seed_and_the_difference_to_the_best_baseline(
    street, seeds, part, simulated, command, capsys
):
    assert resco.main([*command, "--street", street, "--seeds", seeds]) == 0
    assert part in capsys.readouterr().out.splitlines()[-1]


def test_a_wrong_street_ends_with_exit_code_2_and_no_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        resco.main(["--street", "nowhere"])
    assert ended.value.code == 2 and "invalid choice: 'nowhere'" in capsys.readouterr().err


@needs_streets
@pytest.mark.parametrize(
    "text", ["delay_s\n1\n", "all_red_s,demand,street,arm,policy,seed,delay_s,duration_s\n0,same,x\n", "\0"]
)
def test_another_file_as_results_is_one_line_and_is_kept(text, simulated, command, tmp_path, capsys):
    (tmp_path / "resco.csv").write_text(text)
    assert resco.main(command) == 2
    assert_refused(capsys, "resco.csv: is not a file of this benchmark")
    assert (tmp_path / "resco.csv").read_text() == text and not simulated
