"""Stages of a rollout on a street of the test: the way to the street, ways back, bad days, a process killed anywhere."""

from datetime import timedelta

import pytest

from city.errors import InputError, ProgramFailed
from city.ledger import Line, drives_by_tl
from city.ledger_file import time_text
from rollout.following import CONFIRM_S
from rollout.open_rollout import LEASE_S
from rollout.stages import SERVER_DOWN_S
from rollout.street import PIN_LEASE_S
from tests.city.ledgers import BEGIN, model
from tests.rollout.fake_street import TLS, FakeJudges, Killed, World, ns, plan


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def kinds(world, tl="SA101"):
    return [line.stage or line.kind for line in world.ledger.lines if tl in line.models]


def test_tls_are_promoted_one_after_another(path):
    world = World(path)
    assert world.run().outcome == "promoted" and world.disagreement() == ""
    assert [numbers for _, numbers in world.street.history] == [
        {"SA101": 3, "SA104": 3}, {"SA101": 4, "SA104": 3}, {"SA101": 4, "SA104": 4},
    ]  # fmt: skip
    assert kinds(world) == [
        "adopt", "begin", "evaluate", "load", "shadow", "canary", "drives", "canary", "promote", "promote",
    ]  # fmt: skip
    assert world.street.pins == {} and world.street.served["SA101"].labels == {"stable": 4}
    assert world.street.served["SA101"].numbers == (3, 4), "controllers may still ask for 3 by its number"
    evidence = {name for line in world.ledger.lines for name in line.evidence}
    assert evidence == {"evaluate.json", "shadow.json", "canary.json"}


def test_a_group_is_in_canary_together(path):
    world = World(path)
    assert world.run(is_together=True).outcome == "promoted"
    assert [numbers for _, numbers in world.street.history][1:] != [] and world.disagreement() == ""
    canary = [line for line in world.ledger.lines if line.kind == "canary"]
    assert [set(line.models) for line in canary] == [set(TLS)]


def test_rerunning_a_rollout_that_is_done_changes_nothing(path):
    world = World(path)
    world.run()
    lines, history = world.ledger.lines, list(world.street.history)
    assert world.run().sentence == "SA101, SA104: driven by 4 already"
    assert world.ledger.lines == lines and world.street.history == history


@pytest.mark.parametrize("value", ["worse", "not enough evidence"])
def test_a_model_that_is_refused_at_the_gate_never_reaches_street_or_server(path, value):
    world = World(path, FakeJudges(evaluate=value))
    served = dict(world.street.served)
    assert world.run().outcome == value
    assert world.street.history == [] and world.street.served == served and world.street.pins == {}
    assert "shadow" not in world.judges.calls and not world.ledger.state.rollouts


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_a_worse_model_is_rolled_back_by_itself(path, stage):
    world = World(path, FakeJudges(**{stage: "worse"}))
    assert world.run(skipped=frozenset({"evaluate"})).outcome == "worse"
    assert world.disagreement() == "" and world.street.number("SA101") == 3 and world.street.pins == {}
    assert world.street.served["SA101"].numbers == (3,), "the new number is unloaded"
    assert all(numbers["SA104"] == 3 for _, numbers in world.street.history), "the second TL was never in canary"
    assert "evaluate" not in world.judges.calls


def test_too_little_evidence_never_promotes_and_ends_with_its_bound(path):
    for stage, name in (("shadow", "a"), ("canary", "b")):
        world = World(path.with_name(name), FakeJudges(**{stage: "not enough evidence"}))
        result = world.run(max_wait_s=300.0)
        assert result.outcome == "not enough evidence" and "after 300 s" in result.sentence
        assert 300 < world.clock.seconds < 400 and world.disagreement() == "" and world.street.number("SA101") == 3
        assert not [line for line in world.ledger.lines if line.kind == "promote"]


def test_a_controller_that_asks_for_the_newest_version_stays_with_the_old_one(path):
    world = World(path, FakeJudges(polls=3), follows_label=False)
    assert world.run(until="shadow").outcome == "until"
    assert {tuple(numbers.values()) for _, numbers in world.street.history} == {(3, 3)}, "also while 4 is loaded"
    assert world.run().outcome == "promoted" and world.disagreement() == ""


def test_a_fleets_member_stays_pinned_until_the_fleet_is_built_anew(path):
    world = World(path, fleet={"SA101": 3})
    assert world.run().outcome == "promoted" and world.disagreement() == ""
    assert world.street.pins == {"SA101": 4} and any("build it anew" in line for line in world.lines)
    world.street.fleet = {"SA101": 4}
    world.run()
    assert world.street.pins == {} and world.disagreement() == ""


def test_a_rollout_goes_on_after_until(path):
    world = World(path)
    assert world.run(until="evaluate").outcome == "until" and world.street.served["SA101"].numbers == (3,)
    assert world.run(until="canary").outcome == "until" and world.street.pins == {"SA101": 4, "SA104": 4}
    assert world.run().outcome == "promoted"
    assert world.judges.calls.count("evaluate") == 1 and world.disagreement() == ""


@pytest.mark.parametrize(
    ("judges", "follows_label"),
    [
        (lambda: FakeJudges(polls=2), False),
        (lambda: FakeJudges(canary="worse"), True),
        (lambda: FakeJudges(shadow="not enough evidence"), True),
    ],
    ids=["better", "worse", "undecided"],
)
def test_street_and_ledger_agree_after_a_kill_at_any_call(path, judges, follows_label):
    expected = World(path.with_name("whole"), judges(), follows_label=follows_label)
    outcome = expected.run().outcome
    for k in range(1, expected.street.calls + 1):
        world = World(path.with_name(f"{k}"), judges(), follows_label=follows_label)
        world.street.killed_at = k
        with pytest.raises(Killed):
            world.run()
        assert world.run().outcome == outcome, k
        assert world.disagreement() == "", k
        assert world.street.pins == {} and not world.ledger.state.rollouts
        assert world.street.served == expected.street.served, k


def test_street_and_ledger_agree_after_a_kill_at_any_line(path, monkeypatch):
    """Before the line is written, and after it."""
    whole = World(path.with_name("whole"))
    whole.run()
    count = len(whole.ledger.lines)
    for k in range(count):
        for is_written in (False, True):
            world = World(path.with_name(f"{k}{is_written}"))
            process = world.process(plan())
            append = process._own.ledger.append

            def dies(line, at, append=append, process=process, k=k, is_written=is_written):
                if len(process._own.ledger.lines) == k:
                    if is_written:
                        append(line, at)
                    raise Killed
                return append(line, at)

            monkeypatch.setattr(process._own.ledger, "append", dies)
            with pytest.raises(Killed):
                process.run()
            assert world.run().outcome == "promoted" and world.disagreement() == "", (k, is_written)
            assert [numbers for _, numbers in world.street.history] == [numbers for _, numbers in whole.street.history]


def test_the_ledger_says_what_drove_each_tl_at_every_second(path):
    """Twice rolled back outside of its hours."""
    world = World(path, FakeJudges(polls=40))
    changes = {"hours": (0.0, 200.0), "poll_s": 1.0}
    world.run(**changes)
    drives = drives_by_tl(world.ledger.lines)
    for tl in TLS:
        known = [(drive.begin, drive.model.number) for drive in drives[tl]]
        for (at, numbers), following in zip(world.street.history, [*world.street.history[1:], None], strict=True):
            end = following[0] if following else world.clock.now()
            # the street changes first, and is confirmed within a look
            for moment in (at + timedelta(seconds=2), end):
                if at + timedelta(seconds=2) < end:
                    newest = [
                        number for begin, number in known if begin <= time_text(moment - timedelta(seconds=0.001))
                    ][-1]
                    assert newest == numbers[tl], (tl, moment)


def test_a_canary_drives_in_its_hours_alone(path):
    world = World(path, FakeJudges(polls=30))
    seen = []
    world.clock.on_sleep = lambda: seen.append((world.clock.seconds % 86400, world.street.number("SA101")))
    world.run(hours=(3600.0, 3700.0), max_wait_s=1e6, tls=("SA101",), poll_s=10.0)
    in_canary = [second for second, number in seen if number == 4]
    promoted_s = next(line for line in world.ledger.lines if line.kind == "promote").at
    assert in_canary and min(in_canary) >= 3600
    assert max(s for s, n in seen if n == 4 and time_text(BEGIN + timedelta(seconds=s)) <= promoted_s) <= 3715
    assert kinds(world).count("rollback") >= 1 and world.disagreement() == ""
    times = world.judges.times["SA101"]
    assert len(times) >= 2 and all(end > begin for begin, end in times)


def test_canary_figures_begin_with_the_canary(path):
    world = World(path)
    world.clock.seconds = 1000.0
    world.run(tls=("SA101",))
    ((begin, end),) = world.judges.times["SA101"]
    assert begin >= ns(1000) and end > ns(10**8)


def test_an_operator_who_fixes_the_tl_makes_the_rollout_wait(path):
    world = World(path, FakeJudges(polls=2))
    world.street.mode = {"SA101": "bob"}

    def later():
        if world.clock.seconds > 200:
            world.street.mode = {}

    world.clock.on_sleep = later
    assert world.run(tls=("SA101",)).outcome == "promoted"
    assert "waits: SA101 is set to fixed by bob" in world.lines and world.clock.seconds > 200


def test_a_rollback_waits_for_an_operator_who_has_fixed_the_tl(path):
    world = World(path, FakeJudges(polls=5, canary="worse"))

    def fixes():
        is_in_canary = any(line.kind == "canary" for line in world.ledger.lines) and world.street.number("SA101") == 4
        if is_in_canary and world.street.answered.get("SA101") == 4:
            world.street.mode = {"SA101": "bob"}
        if world.clock.seconds > 3 * CONFIRM_S:
            world.street.mode = {}

    world.clock.on_sleep = fixes
    assert world.run(tls=("SA101",)).outcome == "worse" and world.disagreement() == ""
    assert "waits: SA101 is set to fixed by bob" in world.lines and world.clock.seconds > 3 * CONFIRM_S


def test_a_canary_does_not_leave_its_hours_while_an_operator_has_the_tl(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def fixes():
        world.street.mode = {"SA101": "bob"} if 100 < world.clock.seconds < 400 else {}

    world.clock.on_sleep = fixes
    world.run(tls=("SA101",), hours=(0.0, 200.0))
    assert next(line.at for line in world.ledger.lines if line.kind == "rollback") >= time_text(
        BEGIN + timedelta(seconds=400)
    )


def test_simulations_that_fail_end_the_process_and_not_the_rollout(path, monkeypatch):
    def fails(*_):
        raise ProgramFailed("SUMO has ended")

    world = World(path)
    with monkeypatch.context() as patch:
        patch.setattr(world.judges, "evaluate", fails)
        with pytest.raises(ProgramFailed, match="SUMO has ended"):
            world.run()
    assert world.run().outcome == "promoted"


def test_an_operator_who_pins_another_number_ends_the_rollout(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def pins():
        if world.street.pins.get("SA101") == 4:
            world.street.pins, world.street.pinned_by = {"SA101": 3}, {"SA101": "bob"}

    world.clock.on_sleep = pins
    result = world.run(tls=("SA101",))
    assert result.outcome == "aborted" and "bob has pinned SA101 to 3" in result.sentence
    assert world.street.pins == {"SA101": 3}, "the operator's pin stays"


def test_a_tl_that_an_operator_has_pinned_is_refused_at_the_begin(path):
    world = World(path)
    world.street.pins, world.street.pinned_by = {"SA101": 3}, {"SA101": "bob"}
    with pytest.raises(InputError, match="SA101 is pinned to 3 by bob; take that back first"):
        world.run()


def test_a_pin_that_the_controller_has_lost_is_set_again(path):
    world = World(path, FakeJudges(polls=5))
    lost = []

    def loses():
        if world.street.pins.get("SA101") == 4 and not lost:
            lost.append(world.street.pins)
            world.street.pins = {}

    world.clock.on_sleep = loses
    assert world.run(tls=("SA101",)).outcome == "promoted" and lost


def test_an_alarm_in_canary_rolls_back_and_an_older_one_does_not(path):
    world = World(path, FakeJudges(polls=3))
    world.street.alarms = [("GreenserveOverrides", (BEGIN - timedelta(seconds=10)).timestamp())]

    def alarms():
        if world.street.pins.get("SA101") == 4 and world.clock.seconds > 20:
            world.street.alarms.append(("GreenserveGreenKept", world.clock.now().timestamp()))

    assert World.run(world, tls=("SA101",)).outcome == "promoted"
    world = World(path.with_name("b"), FakeJudges(polls=50))
    world.clock.on_sleep = alarms
    result = world.run(tls=("SA101",))
    assert result.outcome == "worse" and "GreenserveGreenKept" in result.sentence


def test_an_alarm_that_began_with_another_tl_counts_once_it_names_this_one(path):
    world = World(path, FakeJudges(polls=50))

    def alarms():
        if world.street.pins.get("SA101") == 4 and world.clock.seconds > 20:
            world.street.alarms = [("GreenserveGreenKept", (BEGIN - timedelta(seconds=10)).timestamp())]

    world.clock.on_sleep = alarms
    assert world.run(tls=("SA101",)).outcome == "worse"


def test_a_canary_that_never_answers_is_judged(path):
    """A canary that is asked and gives no answer drives the TL into its fallback: it is in the ledger, and worse."""
    world = World(path, FakeJudges(polls=3, canary="worse"))
    world.street.silent_versions = {4}
    assert world.run(tls=("SA101",)).outcome == "worse"
    assert [drive.model.number for drive in drives_by_tl(world.ledger.lines)["SA101"]] == [3, 4, 3]


def test_a_bad_old_model_does_not_block_its_successor(path):
    """The old one has stopped to answer."""
    world = World(path)
    world.run(until="evaluate")
    world.street.silent_versions = {3}
    assert world.run().outcome == "promoted"


def test_a_canary_that_crashes_the_server_is_rolled_back_and_its_restart_finds_the_old_number_alone(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def crashes():
        world.street.server_down = world.street.pins.get("SA101") == 4 or world.street.server_down

    world.clock.on_sleep = crashes
    with pytest.raises(ProgramFailed, match="has not been seen to follow"):
        world.run(tls=("SA101",), max_wait_s=1e6)
    assert SERVER_DOWN_S < world.clock.seconds < SERVER_DOWN_S + CONFIRM_S + 60
    assert world.street.served["SA101"].numbers == (3,) and world.street.pins == {}
    world.clock.on_sleep = lambda: None
    world.street.server_down = False
    world.judges.verdicts["canary"] = "better"
    result = world.run(tls=("SA101",))
    assert (result.outcome, world.disagreement()) == ("not enough evidence", ""), "the reason to end it stays"
    assert result.sentence == "the model server has not answered for 60 s in canary"


def test_a_server_that_is_restarted_in_canary_does_not_end_it(path):
    world = World(path, FakeJudges(polls=10))

    def restarts():
        world.street.server_down = 50 <= world.clock.seconds < 50 + SERVER_DOWN_S - 15

    world.clock.on_sleep = restarts
    assert world.run(tls=("SA101",)).outcome == "promoted" and world.disagreement() == ""


def test_a_model_that_cannot_be_loaded_ends_the_rollout(path):
    world = World(path)
    world.street.refuses_to_load = True
    result = world.run()
    assert result.outcome == "failed" and "could not be loaded" in result.sentence
    assert world.disagreement() == "" and world.street.pins == {}


def test_a_controller_that_refuses_the_pin_ends_the_rollout(path):
    """The new number has another contract."""
    world = World(path)
    world.street.refuses_pins_to = 4
    result = world.run()
    assert result.outcome == "failed" and "SA101 cannot be pinned to 4" in result.sentence
    assert world.disagreement() == "" and world.street.pins == {}


def test_files_that_change_under_the_same_number_end_the_rollout(path):
    world = World(path)
    world.run(until="shadow")
    world.judges.changed_files = True
    result = world.run()
    assert result.outcome == "failed" and "the files of SA101/4 have changed" in result.sentence
    assert {numbers["SA101"] for _, numbers in world.street.history} == {3} and not world.ledger.state.rollouts
    world = World(path.with_name("b"))
    world.run(until="evaluate")
    world.judges.changed_files, served = True, dict(world.street.served)
    assert world.run().outcome == "failed" and world.street.served == served, "never loaded"


def test_a_number_without_its_signature_begins_nothing(path):
    world = World(path)
    world.judges.unsigned = True
    with pytest.raises(InputError, match="models/SA101/4: is not signed"):
        world.run()
    assert not world.ledger.state.rollouts and world.judges.calls == [] and world.street.calls == 0


def test_an_open_rollout_whose_number_is_not_signed_loads_nothing(path):
    world = World(path)
    world.run(until="evaluate")
    world.judges.unsigned, served = True, dict(world.street.served)
    result = world.run()
    assert result.outcome == "failed" and "is not signed" in result.sentence and world.street.served == served


def test_a_promoted_number_is_taken_back_also_after_a_kill(path):
    whole = World(path)
    whole.run()
    calls = whole.street.calls
    whole.process(plan(number=3)).take_back()
    assert whole.disagreement() == "" and whole.street.number("SA101") == 3
    assert [drive.model.number for drive in drives_by_tl(whole.ledger.lines)["SA101"]] == [3, 4, 3]
    for k in range(1, whole.street.calls - calls + 1):
        world = World(path.with_name(f"{k}"))
        world.run()
        world.street.killed_at = world.street.calls + k
        with pytest.raises(Killed):
            world.process(plan(number=3)).take_back()
        world.run(number=3)
        assert world.disagreement() == "" and world.street.number("SA104") == 3, k


def test_only_a_number_that_was_stable_is_taken_back(path):
    world = World(path)
    world.run()
    with pytest.raises(InputError, match="SA101 has 4 as its stable number already"):
        world.process(plan(number=4)).take_back()
    with pytest.raises(InputError, match="SA101 never had 2 as its stable number; earlier ones: 3"):
        world.process(plan(number=2)).take_back()
    world.judges.changed_files = True
    with pytest.raises(InputError, match="the files of SA101/3 are not those that were stable"):
        world.process(plan(number=3)).take_back()
    assert world.street.number("SA101") == 4


def test_a_paused_rollout_waits_and_still_rolls_back(path):
    world = World(path)
    world.run(until="shadow")
    (rollout,) = world.ledger.state.rollouts
    note(world, "pause")

    def resumes():
        if world.clock.seconds > 400 and world.ledger.state.rollouts[rollout].is_paused:
            note(world, "resume")

    world.clock.on_sleep = resumes
    assert world.run().outcome == "promoted"
    assert "waits: paused (greenserve rollout resume)" in world.lines
    assert next(line.at for line in world.ledger.lines if line.kind == "canary") > time_text(
        BEGIN + timedelta(seconds=400)
    )
    world = World(path.with_name("b"), FakeJudges(polls=4, canary="worse"))
    world.clock.on_sleep = lambda: world.street.pins.get("SA101") == 4 and not paused(world) and note(world, "pause")
    assert world.run().outcome == "worse"


def test_a_pause_before_the_promotion_has_no_bound(path):
    world = World(path, FakeJudges(polls=2))

    def step():
        if world.street.pins.get("SA101") == 4 and not paused(world):
            note(world, "pause")
        if world.clock.seconds > 2000 and paused(world) and world.ledger.lines[-1].kind != "resume":
            note(world, "resume")

    world.clock.on_sleep = step
    assert world.run(tls=("SA101",), max_wait_s=600.0).outcome == "promoted" and world.clock.seconds > 2000


def paused(world):
    return any(line.kind == "pause" for line in world.ledger.lines)


def note(world, kind):
    ledger = world.ledger
    (rollout,) = ledger.state.rollouts
    text = "aborted: by bob" if kind == "abort" else ""
    ledger.append(Line(0, "", kind, "bob", rollout=rollout, text=text), world.clock.now())


def test_an_abort_rolls_back(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def aborts():
        if world.street.pins.get("SA101") == 4 and not any(line.kind == "abort" for line in world.ledger.lines):
            note(world, "abort")

    world.clock.on_sleep = aborts
    result = world.run()
    assert result.outcome == "aborted" and world.disagreement() == "" and world.street.pins == {}


def test_an_abort_ends_a_rollout_whose_process_is_gone(path):
    world = World(path)
    world.run(until="canary")
    note(world, "abort")
    process = world.process(plan(author="bob"))
    world.clock.seconds += LEASE_S + 1
    assert process.abort(next(iter(process._own.ledger.state.rollouts.values()))).outcome == "aborted"
    assert world.disagreement() == "" and world.street.number("SA101") == 3 and world.street.pins == {}


def test_a_second_rollout_is_refused_by_name_until_the_first_has_ended(path):
    world = World(path)
    world.run(until="shadow")
    with pytest.raises(InputError, match=r"SA101 is in rollout \w{8} to 4, whose lease is that of ann"):
        world.run(number=5, author="bob", tls=("SA101",))
    with pytest.raises(InputError, match="whose lease is that of ann"):
        world.run(author="bob")
    world.clock.seconds += LEASE_S + 1
    assert world.run(number=5, author="bob").outcome == "promoted" and world.disagreement() == ""


def test_an_owner_who_is_replaced_stops(path):
    world = World(path, FakeJudges(shadow="not enough evidence"))

    def replaced():
        world.clock.on_sleep = lambda: None
        world.clock.seconds += LEASE_S + 1
        world.judges.verdicts["shadow"] = "better"
        world.run(author="bob", until="shadow")

    world.clock.on_sleep = replaced
    with pytest.raises(InputError, match="whose lease is that of bob"):
        world.run(max_wait_s=1e6)


def test_a_street_that_is_not_as_the_ledger_says_is_refused(path):
    world = World(path)
    world.run()
    world.street.served["SA101"] = type(world.street.served["SA101"])((6,), {"stable": 6})
    with pytest.raises(InputError, match="SA101 is driven by 6, and the ledger says 4"):
        world.run(number=7)


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_changes_no_verdict(path, jump_s):
    world = World(path, FakeJudges(polls=10))

    def jumps():
        world.clock.jump_s = jump_s if world.clock.seconds > 30 else 0.0

    world.clock.on_sleep = jumps
    assert world.run(tls=("SA101",)).outcome == "promoted" and world.disagreement() == ""
    assert world.ledger.state.tls["SA101"].stable == model(4)


def test_the_lease_is_extended_while_the_rollout_waits(path):
    world = World(path, FakeJudges(canary="not enough evidence"))
    world.run(max_wait_s=4 * LEASE_S, tls=("SA101",))
    leases = [line for line in world.ledger.lines if line.kind == "lease"]
    assert 6 <= len(leases) <= 12


def test_a_canary_that_nobody_watches_ends_by_itself_and_begins_anew(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def dies():
        if world.clock.seconds > 100:
            raise Killed

    world.clock.on_sleep = dies
    with pytest.raises(Killed):
        world.run(tls=("SA101",))
    assert world.street.number("SA101") == 4
    world.clock.seconds += PIN_LEASE_S
    world.street.end_leases()
    assert world.street.number("SA101") == 3
    world.clock.on_sleep, world.judges.verdicts["canary"] = lambda: None, "better"
    assert world.run(tls=("SA101",)).outcome == "promoted" and world.disagreement() == ""
    lines = [line for line in world.ledger.lines if line.kind in ("canary", "rollback")]
    assert [line.kind for line in lines] == ["canary", "rollback", "canary"]
    assert lines[1].text == "the controller has gone back to it by itself"
    assert [drive.model.number for drive in drives_by_tl(world.ledger.lines)["SA101"]] == [3, 4, 3, 4]


def test_a_canary_that_is_watched_is_renewed(path):
    world = World(path, FakeJudges(canary="not enough evidence"))
    numbers = []

    def looks():
        world.street.end_leases()
        numbers.append(world.street.number("SA101"))

    world.clock.on_sleep = looks
    world.run(tls=("SA101",), max_wait_s=3 * PIN_LEASE_S)
    in_canary = "".join(map(str, numbers)).strip("3")
    assert set(in_canary) == {"4"} and len(in_canary) > 2 * PIN_LEASE_S / 10
    renewed = [line for line in world.ledger.lines if line.kind == "rollback"]
    assert len(renewed) == 1, "its own, at the end"


def test_a_promoted_number_needs_nobody_who_watches_it(path):
    world = World(path, fleet={"SA101": 3})
    world.run()
    assert world.street.pins == {"SA101": 4} and world.street.leases == {}


def test_a_canary_that_is_passed_is_promoted_although_its_pin_has_ended(path):
    world = World(path)
    assert world.run(tls=("SA101",), until="canary").outcome == "until"
    world.clock.seconds += PIN_LEASE_S
    world.street.end_leases()
    assert world.street.number("SA101") == 3
    assert world.run(tls=("SA101",)).outcome == "promoted" and world.disagreement() == ""


def test_a_controller_that_ends_in_canary_is_waited_for(path):
    world = World(path, FakeJudges(polls=20))

    def ends():
        world.street.controller_down = 50 < world.clock.seconds < 400

    world.clock.on_sleep = ends
    assert world.run(tls=("SA101",)).outcome == "promoted" and world.disagreement() == ""
    assert "waits: the controller does not answer" in world.lines and world.clock.seconds > 400


def test_a_controller_that_has_ended_for_good_leaves_a_server_of_the_old_number(path):
    world = World(path, FakeJudges(canary="not enough evidence"))

    def ends():
        world.street.controller_down = world.clock.seconds > 50

    world.clock.on_sleep = ends
    with pytest.raises(ProgramFailed, match="has not been seen to follow the ledger for 300 s"):
        world.run(tls=("SA101",))
    assert world.street.served["SA101"].numbers == (3,)
    world.clock.on_sleep = lambda: None
    world.street.controller_down = False
    assert world.run(tls=("SA101",)).outcome == "not enough evidence" and world.disagreement() == ""


@pytest.mark.parametrize("stage", ["evaluate", "shadow", "canary"])
def test_a_full_volume_passes_no_stage(path, monkeypatch, stage):
    world = World(path)
    keep = world.judges.keep

    def full(name, *arguments):
        if name == stage:
            raise InputError("results.json: cannot be written: No space left on device; make room there")
        return keep(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(world.judges, "keep", full)
        with pytest.raises(InputError, match="No space left"):
            world.run()
    assert stage not in {line.stage for line in world.ledger.lines}
    assert world.run().outcome == "promoted" and world.disagreement() == ""
