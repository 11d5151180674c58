"""`greenserve rollout --desired`: a file of numbers that is applied again and again."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

import rollout.__main__ as command
from city import config
from city.errors import InputError
from city.ledger import Line
from rollout import desired, model_files
from rollout.stages import RolloutRun
from tests.city.ledgers import BEGUN, after, line, model, time
from tests.error_lines import assert_refused
from tests.rollout.fake_street import Killed, World, plan
from tests.sample_city import write_city
from tests.serving.signed_versions import write_keys

JOB = "job"
ONE, BOTH = "SA101 = 4\n", "SA101 = 4\nSA104 = 4\n"
"""Files of numbers."""


@pytest.fixture
def city(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_city(tmp_path)
    return tmp_path


@pytest.fixture
def world(city, monkeypatch):
    """A street of the test in the place of the server and the controller."""
    made = World(city / "ledger.jsonl")

    @contextlib.contextmanager
    def opened(args, city, plan, ledger, record, **settings):
        made.signers = settings.get("signers")
        with command._lock(ledger, plan.tls):
            yield RolloutRun(plan, ledger, made.street, made.judges, made.lines.append, made.clock)

    def call(method, request):
        seen = made.street.see(request.tls).tls
        return SimpleNamespace(tls=[SimpleNamespace(tl=tl, version=seen[tl].version) for tl in request.tls])

    monkeypatch.setattr(command, "_opened", opened)
    monkeypatch.setattr(command, "_control", lambda *_: contextlib.nullcontext(SimpleNamespace(call=call)))
    monkeypatch.setattr(command, "Clock", lambda: made.clock)
    monkeypatch.setattr(model_files, "of_version", lambda models_dir, tl, number: model(number))
    return made


def drive(world, text, *flags, code=0, author=JOB):
    path = world.path.with_name("numbers.toml")
    path.write_text(text)
    argv = ["--desired", str(path), "--record", "rec", "--author", author, *map(str, flags)]
    assert command.main(argv, "greenserve rollout") == code
    return world.ledger


def driven(world):
    assert world.disagreement() == ""
    return {tl: state.stable.number for tl, state in world.ledger.state.tls.items()}


def test_the_signers_of_new_numbers_are_those_of_the_flag(world):
    drive(world, "SA101 = 4\n")
    assert world.signers is None
    keys = write_keys(world.path.parent)
    drive(world, "SA101 = 5\n", "--signed-by", keys.public)
    assert world.signers.source == keys.public and len(world.signers.keys) == 1


def test_a_run_without_anything_to_do_is_one_line_and_changes_nothing(world, capsys):
    before = drive(world, BOTH).path.read_bytes(), list(world.street.history)
    capsys.readouterr()
    assert (drive(world, BOTH).path.read_bytes(), world.street.history) == before
    assert capsys.readouterr().out == "promoted: SA101, SA104: driven by 4 already\n"


@pytest.mark.parametrize("is_again", [False, True])
def test_a_killed_run_is_continued_by_the_next_one(world, is_again):
    """Also one that has tried a refused number again: the second run needs no --again."""
    again = ()
    if is_again:
        world.judges.verdicts["canary"] = "worse"
        again = ("--again", drive(world, ONE, code=3).lines[-1].number)
    world.judges.verdicts["canary"], calls = "better", world.street.calls
    for call in (9, 12, 15):
        world.street.killed_at = calls + call
        with pytest.raises(Killed):
            drive(world, ONE, *again)
        again = ()
    world.street.killed_at = None
    ledger = drive(world, ONE)
    assert driven(world) == {"SA101": 4}
    assert [each.kind for each in ledger.lines].count("begin") == 1 + is_again, "the same rollout"


def test_another_number_in_the_middle_replaces_the_rollout(world):
    drive(world, "SA101 = 4\nSA104 = 4\n", "--until", "load")
    ledger = drive(world, "SA101 = 5\nSA104 = 4\n")
    assert driven(world) == {"SA101": 5, "SA104": 4}
    (end, *_) = [each for each in ledger.lines if each.kind == "end"]
    assert end.text == "replaced: another number is desired"
    assert [each.models["SA104"].number for each in ledger.lines if "SA104" in each.models][-1] == 4, "not refused"


def test_a_canary_of_a_tl_that_is_no_longer_listed_is_taken_back(world):
    world.judges.verdicts["canary"] = "not enough evidence"

    def dies(world):
        if world.is_in_canary:
            raise Killed

    world.meanwhile(dies)
    with pytest.raises(Killed):
        drive(world, "SA101 = 4\nSA104 = 3\n")
    world.meanwhile(lambda world: None)
    drive(world, "SA104 = 3\n")
    assert driven(world) == {"SA101": 3, "SA104": 3} and not world.ledger.state.rollouts


GOOD, WORSE, UNLOADED = ("better", False), ("worse", False), ("better", True)
"""The canary's verdict, and True if the server loads no new number."""
FAILED = (UNLOADED, ONE, 1, {"SA101": 3}, "failed: ")


@pytest.mark.parametrize(
    "steps",
    [
        [(GOOD, "SA101 = 4\nSA_104 = 5\n", 0, {"SA101": 4, "SA104": 5},
          "promoted: SA101: driven by 4\npromoted: SA104: driven by 5\n")],
        [(GOOD, "SA101 = 3\n", 0, {"SA101": 3}, "SA101 is driven by 3")],
        [(WORSE, ONE, 3, {"SA101": 3}, "worse"), (GOOD, BOTH, 3, {"SA101": 3, "SA104": 4}, "promoted: SA104")],
        [(WORSE, ONE, 3, {"SA101": 3}, "worse"), (UNLOADED, BOTH, 1, {"SA101": 3, "SA104": 3}, "failed: ")],
        # failures are counted anew since the promotion
        [FAILED, FAILED, (GOOD, ONE, 0, {"SA101": 4}, ""), (GOOD, "SA101 = 3\n", 0, {"SA101": 3}, "back on 3"),
         FAILED, FAILED, FAILED, (GOOD, ONE, 3, {"SA101": 3}, "refused: SA101 to 4: failed: 4 could not be loaded (job, ")],
        [(GOOD, ONE, 0, {"SA101": 4}, ""), (GOOD, "SA101 = 3\n", 0, {"SA101": 3}, "SA101: back on 3"),
         (GOOD, ONE, 0, {"SA101": 4}, ""), (GOOD, "SA101 = 2\n", 2, {"SA101": 4}, "")],
    ],
    ids=["own numbers", "driven already", "one is refused", "failed work counts more", "failures", "a way back"],
)  # fmt: skip
def test_files_that_are_applied_one_after_another(world, capsys, steps):
    for (world.judges.verdicts["canary"], world.street.refuses_to_load), text, code, numbers, part in steps:
        drive(world, text, code=code)
        printed = capsys.readouterr()
        assert driven(world) == numbers and part in printed.out and not world.ledger.state.rollouts
        assert code != 2 or "SA101 never had 2 as its stable number" in printed.err


@pytest.mark.parametrize("stage", ["evaluate", "shadow", "canary"])
def test_a_refused_number_is_tried_again_only_after_its_line_is_named(world, capsys, stage):
    world.judges.verdicts[stage] = "worse"
    first = drive(world, "SA101 = 4\n", code=3)
    number = first.lines[-1].number
    world.judges.verdicts[stage] = "better"
    capsys.readouterr()
    again = drive(world, "SA101 = 4\n", "--again", number - 1, code=3)
    assert len(again.lines) == len(first.lines) and driven(world) == {"SA101": 3}
    assert f"refused: SA101 to 4: worse: {stage}: " in (out := capsys.readouterr().out)
    assert f"once more with --again {number}\n" in out
    world.street.refuses_to_load = True
    for _ in range(desired.MAX_FAILURES - 1):  # counted anew
        drive(world, "SA101 = 4\n", "--again", number, code=1)
    world.street.refuses_to_load = False
    drive(world, "SA101 = 4\n", "--again", number)
    assert driven(world) == {"SA101": 4}
    drive(world, "SA101 = 3\n")
    drive(world, "SA101 = 4\n")
    assert driven(world) == {"SA101": 4}, "its promotion has ended the refusal"


def test_a_refused_number_that_an_operator_rolled_out_is_done(world):
    world.judges.verdicts["canary"] = "worse"
    drive(world, "SA101 = 4\n", code=3)
    world.judges.verdicts["canary"] = "better"
    world.run(tls=("SA101",))
    drive(world, "SA101 = 4\n")
    assert driven(world) == {"SA101": 4}


def test_a_number_that_an_operator_took_back_is_not_tried_again(world, capsys):
    drive(world, "SA101 = 4\n")
    world.process(plan(tls=("SA101",), number=3)).take_back()
    ledger = drive(world, "SA101 = 4\n", code=3)
    assert driven(world) == {"SA101": 3}
    assert "refused: SA101 to 4: taken back by an operator (ann, " in capsys.readouterr().out
    (taken,) = [each for each in ledger.lines if each.kind == "rollback"]
    drive(world, "SA101 = 4\n", "--again", taken.number - 1, code=3)
    drive(world, "SA101 = 4\n", "--again", taken.number)
    assert driven(world) == {"SA101": 4}


def test_a_rollout_of_another_author_is_waited_for(world, capsys):
    world.run(tls=("SA101",), until="load")
    drive(world, "SA101 = 5\n", code=2)
    assert_refused(capsys, "of ann takes SA101 to 4, another number than the desired one")
    world.clock.seconds += 700
    drive(world, "SA101 = 5\n")
    assert driven(world) == {"SA101": 5}


@pytest.mark.parametrize("author", ["ann", JOB], ids=["of another author", "of a process that runs"])
def test_a_rollout_of_other_tls_is_left_alone(world, author):
    world.run(tls=("SA104",), until="load", author=author)
    with command._lock(world.ledger, ("SA104",) if author == JOB else ("SA105",)):
        drive(world, "SA101 = 4\n")
    (rollout,) = world.ledger.state.rollouts.values()
    assert rollout.targets.keys() == {"SA104"} and not rollout.is_aborted


def test_a_file_without_numbers_and_a_ledger_without_a_folder_are_one_line(world, capsys):
    drive(world, "# none yet\n")
    assert capsys.readouterr().out.endswith("numbers.toml: no number is desired\n")
    assert command.main(["--desired", "none.toml", "--record", "rec"], "greenserve rollout") == 2
    assert_refused(capsys, "--desired none.toml: cannot be read", "lines such as SA101 = 4")
    drive(world, "SA101 = 4\n", "--ledger", "gone/ledger.jsonl", code=2)
    assert_refused(capsys, "gone: no such folder; mount the ledger's volume there, or pass another --ledger")


def test_two_runs_of_one_ledger_do_not_drive_at_the_same_time(world, capsys):
    world.clock.on_sleep = lambda: drive(world, "SA104 = 4\n", code=2)
    world.judges.polls = 2
    drive(world, "SA101 = 4\n")
    assert "error: another process rolls out the desired numbers; wait for its end\n" in capsys.readouterr().err


def test_one_line_can_name_all_tls(city):
    path = city / "numbers.toml"
    path.write_text("all = 4\n")
    numbers = desired.read(path, config.load(city / "city.toml"))
    assert len(numbers) == 8 and set(numbers.values()) == {4}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("SA101: 4", ("cannot be read as TOML", "write lines such as SA101 = 4")),
        ("SA101 = '4'", ("SA101 = '4' must be a model number",)),
        ("SA101 = 0", ("SA101 = 0 must be a model number",)),
        ("SA101 = true", ("SA101 = True must be a model number",)),
        (f"SA101 = {1 << 63}", ("must be a model number",)),
        ("SA101 = 4\nSA_101 = 5", ("SA101 stands there twice",)),
        ("all = 4\nSA101 = 5", ("SA101 stands there twice",)),
        ("SA999 = 4", ("SA999 is not one of the TLs",)),
        ("A0 = 4", ("A0 is a signal, which belongs to TL SA101",)),
    ],
)
def test_a_wrong_line_of_the_file_is_one_line(city, text, parts):
    path = city / "numbers.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        desired.read(path, config.load(city / "city.toml"))
    assert all(part in str(caught.value) for part in (str(path), *parts))


@pytest.mark.parametrize(
    "flags",
    [(), ("SA101",), ("--to", "4"), ("SA101", "--to", "4", "--desired", "f"), ("SA101", "--desired", "f"),
     ("--to", "4", "--desired", "f"), ("SA101", "--to", "4", "--again", "3")],
)  # fmt: skip
def test_flags_name_either_one_number_or_a_file(city, capsys, flags):
    assert command.main([*flags, "--record", "rec"], "greenserve rollout") == 2
    assert_refused(capsys, "pass TLs and --to N, or --desired FILE")


@pytest.mark.parametrize(
    ("numbers", "author", "at", "expected"),
    [
        ({"SA101": 4}, JOB, 0, []),
        ({"SA101": 5}, JOB, 120, None),  # the lease of another author counts up to its end
        ({"SA101": 5}, JOB, 121, ["r1"]),
        ({"SA101": 5}, "ann", 0, ["r1"]),
        ({"SA104": 5}, JOB, 0, []),
        ({}, "ann", 0, ["r1"]),
    ],
)
def test_rollouts_that_other_numbers_replace(numbers, author, at, expected):
    assert after(*BEGUN).rollouts["r1"].until == time(120)
    if expected is None:
        with pytest.raises(InputError, match="rollout r1 of ann takes SA101 to 4"):
            desired.replaced(after(*BEGUN), numbers, author, time(at))
    else:
        assert [each.id for each in desired.replaced(after(*BEGUN), numbers, author, time(at))] == expected


@pytest.mark.parametrize("outcome", ["worse", "not enough evidence", "aborted", "failed", "replaced", "promoted"])
def test_outcomes_that_refuse_a_number(outcome):
    lines = [*BEGUN, line("end", text=f"{outcome}: because")]
    (step,) = desired.steps(after(*BEGUN[:1]), lines, {"SA101": 4}, JOB, -1)
    assert (step.refused is not None) == (outcome in ("worse", "not enough evidence", "aborted"))


def test_numbers_that_were_taken_back_one_after_another_are_refused():
    lines: list[Line] = []
    for kind, number in (("adopt", 3), ("promote", 4), ("promote", 5), ("rollback", 4), ("rollback", 3)):
        taken = line(kind, tls=("SA101",), number=number, rollout="" if kind == "rollback" else "r1")
        lines.append(replace(taken, number=len(lines)))
    state = after(*BEGUN[:1])
    refused = {n: desired.steps(state, lines, {"SA101": n}, JOB, -1)[0].refused for n in (4, 5, 6)}
    assert (refused[4], refused[5], refused[6]) == (lines[4], lines[3], None)


@pytest.mark.parametrize("author", [JOB, "ann"])
def test_an_abort_takes_the_canaries_of_a_killed_process_back_at_once(author, world, capsys):
    world.run(until="canary", author=JOB)
    assert world.street.number("SA101") == 4
    assert command.main(["abort", "SA101", "--author", author], "greenserve rollout") == 0
    assert capsys.readouterr().out.endswith(f"aborted: by {author}\n")
    assert world.street.number("SA101") == 3 and not world.ledger.state.rollouts and world.disagreement() == ""


def test_an_abort_of_a_rollout_that_ends_meanwhile_is_one_line(world, capsys, monkeypatch):
    world.run(until="load", author=JOB)
    (rollout,) = world.ledger.state.rollouts.values()
    monkeypatch.setattr(command, "_rollout", lambda *_: rollout)
    assert command.main(["abort", "SA101", "--author", JOB], "greenserve rollout") == 0
    capsys.readouterr()
    assert command.main(["abort", "SA101", "--author", JOB], "greenserve rollout") == 2
    assert_refused(capsys, f"rollout {rollout.id} has been ended by another process")


def test_lines_that_the_ledger_does_not_have_allow_nothing_again(world, capsys):
    lines = len(drive(world, "SA101 = 4\n").lines)
    drive(world, "SA101 = 5\n", "--again", lines, code=2)
    assert_refused(capsys, f"--again {lines}: the ledger has {lines} lines")
    drive(world, "SA101 = 5\n", "--again", lines - 1)
    assert driven(world) == {"SA101": 5}


def test_a_ledger_that_is_named_and_missing_is_refused(world, capsys):
    for name in ("status", "pause SA101", "abort SA101"):
        assert command.main([*name.split(), "--ledger", "none.jsonl"], "greenserve rollout") == 2
        assert_refused(capsys, "none.jsonl: there is no ledger; pass another --ledger")
    assert command.main(["status"], "greenserve rollout") == 0
    assert capsys.readouterr().out == "no rollout is open\n"


def test_an_operator_aborts_a_rollout_whose_process_is_gone_or_asks_the_one_that_runs(world, capsys):
    drive(world, "SA101 = 4\n", "--until", "load")
    with command._lock(world.ledger, ("SA101",)):
        assert command.main(["abort", "SA101", "--author", "ann"], "greenserve rollout") == 0
        assert "its process takes the canaries back" in capsys.readouterr().out
        (rollout,) = world.ledger.state.rollouts.values()
        assert rollout.is_aborted
    assert command.main(["abort", "SA101", "--author", JOB], "greenserve rollout") == 0
    assert capsys.readouterr().out == "aborted: by ann\n" and not world.ledger.state.rollouts
    drive(world, "SA101 = 4\n", code=3)
    assert "refused: SA101 to 4: aborted: by ann" in capsys.readouterr().out
