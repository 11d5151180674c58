"""`greenserve card`: facts of the files alone, about the model that is asked for, in text that cannot be misread."""

import json
import shutil

import pytest
from jinja2 import Environment

from city.ledger import Line, Model
from city.ledger_file import LedgerFile
from controller.ledger_check import model_of
from rollout import model_card
from rollout.model_card import main
from tests.city.ledgers import BEGIN
from tests.error_lines import assert_refused


@pytest.fixture
def version(grid_models, tmp_path):
    shutil.copytree(grid_models / "SA105", tmp_path / "models" / "SA105")
    return tmp_path / "models" / "SA105" / "1"


def interval(mean, low, high):
    return {"mean": mean, "low": low, "high": high}


def write_results(folder, model="models/SA105/1", **changes):
    """results.json of two arms on two TLs."""

    def arm(mean, difference):
        return {**interval(mean, mean - 1, mean + 1), "difference": difference}

    values = {"served:1": (10.0, interval(0.0, 0.0, 0.0)), "fixed": (30.25, interval(-20.25, -25.0, -15.5))}
    document = {
        "candidate": "served:1",
        "confidence": 0.95,
        "intervals": "Over days with varied demand.",
        "conditions": {
            "tls": ["SA104", "SA105"],
            "seeds": 20,
            "sumo": "1.28.0",
            "models": {"served:1": {"SA104": "models/SA104/1", "SA105": model}},
        },
        "arms": {name: {"delay_s": arm(*value)} for name, value in values.items()},
        "delay_by_tl": {name: {"SA105": arm(*value), "SA104": arm(1.0, value[1])} for name, value in values.items()},
        **changes,
    }
    (folder / "results.json").write_text(json.dumps(document))
    return folder / "results.json"


def write_ledger(folder, *models):
    """A ledger of SA105, whose models were adopted one after another, an hour apart."""
    ledger = LedgerFile(folder / "ledger.jsonl")
    for k, model in enumerate(models):
        ledger.append(Line(0, "", "adopt", "ann|<b>", {"SA105": model}), BEGIN.replace(hour=8 + k))
    return ledger.path


def card(*arguments, code=0):
    assert main([*map(str, arguments)], "greenserve card") == code


def test_a_card_says_what_the_model_is_and_where_it_comes_from(version, capsys):
    card(version)
    text = capsys.readouterr().out
    manifest = json.loads((version / "assets.extra" / "export.json").read_text())
    contract = json.loads((version / "assets.extra" / "policy.json").read_text())
    for fact in (
        "# Signal policy SA105/1\n",
        f"| Signals | {', '.join(contract['signal_ids'])} |",
        f"| SHA-256 of all files | {model_of(version).sha256} |",
        "| Signature | none |",
        "| Output | action, categorical, 4 choices |",
        *(f"| {file['name']} | {file['bytes']} | {file['sha256']} |" for file in manifest["source"]["files"]),
        f"{manifest['parity']['observations']} observations, largest difference",
        "This card has no evaluation.",
        "No ledger was given.",
    ):
        assert fact in text, fact
    assert text.startswith("---\nlibrary_name: greenserve\n") and "unknown" not in text
    (version / "model.sig").write_text("x")
    card(version)
    assert "| Signature | model.sig; greenserve verify says whose |" in capsys.readouterr().out


ONE = {"served:1": {"delay_s": {**interval(9.0, None, None), "difference": interval(0.0, None, None)}}}
OTHER = Model(4, "4" * 64)


@pytest.mark.parametrize(
    ("results", "models", "facts"),
    [
        (
            {},
            None,
            (
                "| fixed | 30.2 (29.2 to 31.2) | -20.2 (-25.0 to -15.5) | 30.2 (29.2 to 31.2) | -20.2",
                "20 paired simulations with SUMO 1.28.0.",
                "95% intervals. Over days",
                "No ledger was given.",
            ),
        ),
        ({"arms": ONE}, None, ("| served:1 | 9.0 (no interval) | +0.0 (no interval) |",)),
        (None, ["own"], (r"| 2026-11-24T08:00:00.000Z | now | ann\|\<b\> | adopted |", "This card has no evaluation.")),
        (None, ["own", OTHER], ("| 2026-11-24T08:00:00.000Z | 2026-11-24T09:00:00.000Z |",)),
        (None, [OTHER], ("It has not driven the TL.",)),
    ],
)
def test_a_card_has_the_figures_of_an_evaluation_and_the_times_of_a_ledger(
    version, tmp_path, capsys, results, models, facts
):
    own = Model(1, model_of(version).sha256)
    flags = [] if results is None else ["--evaluation", write_results(tmp_path, **results)]
    if models is not None:
        flags += ["--ledger", write_ledger(tmp_path, *(own if model == "own" else model for model in models))]
    card(version, *flags)
    text = capsys.readouterr().out
    assert all(fact in text for fact in facts), text
    assert ("This card has no evaluation" in text) == (results is None) and ("now" in text) == (models == ["own"])


def test_limits_that_the_files_show_are_told(version, capsys):
    for name, change in (("policy", {"missing": ["lanes"]}), ("export", {"only_action": "green 2 of A1"})):
        file = version / "assets.extra" / f"{name}.json"
        content = json.loads(file.read_text())
        (content if name == "policy" else content["parity"]).update(change)
        file.write_text(json.dumps(content))
    card(version)
    text = capsys.readouterr().out
    assert "Its contract is incomplete (lanes): the controller refuses it." in text
    assert "In the parity check it chose one action alone: green 2 of A1." in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "models/SA105/2"}, "its candidate served:1 is not SA105/1"),
        ({"model": "models/SA104/1"}, "its candidate served:1 is not SA105/1"),
        ({"candidate": "fixed"}, "its candidate fixed is not SA105/1"),
        ({"arms": []}, "is not results.json of this version"),
        ({"conditions": None}, "is not results.json of this version"),
    ],
)
def test_an_evaluation_of_another_model_is_refused(version, tmp_path, capsys, change, message):
    card(version, "--evaluation", write_results(tmp_path, **change), code=2)
    assert_refused(capsys, f"results.json: {message}")


def test_html_page_has_the_same_facts_and_no_markup_of_theirs(version, tmp_path):
    own = Model(1, model_of(version).sha256)
    arguments = ["--ledger", write_ledger(tmp_path, own), "--evaluation", write_results(tmp_path)]
    card(version, *arguments, "--out", tmp_path / "card.html")
    page = (tmp_path / "card.html").read_text()
    assert "<td>ann|&lt;b&gt;</td>" in page and "<b>" not in page and own.sha256 in page
    titles = [f"<h2>{title}</h2>" for title in ("Model Details", "Uses", "Bias, Risks, and Limitations", "Evaluation")]
    assert all(title in page for title in titles)


def test_markdown_shows_every_character_as_it_is():
    assert model_card._as_markdown("a|b <i> *x* [y](z) `c`\n# d_e\\") == (
        r"a\|b \<i\> \*x\* \[y\](z) \`c\` # d\_e" + "\\\\"
    )
    environment = Environment(finalize=model_card._as_markdown)
    assert environment.from_string("| {{ x }} |").render(x="|") == r"| \| |"


def test_wrong_input_is_one_line_and_nothing_is_written(version, tmp_path, capsys, grid_models):
    damaged = tmp_path / "damaged" / "SA105" / "1"
    shutil.copytree(version, damaged)
    (damaged / "assets.extra" / "export.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 9999)
    other, fleet = write_ledger(tmp_path, Model(1, "1" * 64)), tmp_path / "fleet" / "SA105" / "1"
    shutil.copytree(version, fleet)
    policy = fleet / "assets.extra" / "policy.json"
    policy.write_text(json.dumps(json.loads(policy.read_text()) | {"members": [{"tl": "SA101"}]}))
    for arguments, message in (
        ([version.parent], "is not a version's folder"),
        ([version.with_name("2")], "no such model"),
        ([damaged], "its export.json cannot be read"),
        ([version, "--out", tmp_path / "card.pdf"], "must end in .md or .html"),
        ([version, "--out", tmp_path / "none" / "card.md"], "there is no folder"),
        ([version, "--evaluation", tmp_path / "none.json"], "none.json: cannot be read"),
        ([version, "--evaluation", tmp_path / "deep.json"], "deep.json: is not results.json"),
        ([version, "--ledger", other], "SA105/1 has other files in the ledger (111111111111, here "),
        ([version, "--ledger", tmp_path / "none.jsonl"], "there is no ledger"),
        ([fleet], "is a fleet; make the cards of its TLs' models"),
    ):
        card(*arguments, code=2)
        assert_refused(capsys, message)
    assert not [*tmp_path.rglob("card.*")]
