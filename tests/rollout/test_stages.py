"""Stages of a rollout on a street of the test: the way to the street, ways back, bad days, a process killed anywhere."""

import itertools
import math
from datetime import timedelta

import pytest

from city.errors import InputError, ProgramFailed
from city.ledger import Line, drives_by_tl
from city.ledger_file import time_text
from rollout.following import CONFIRM_S
from rollout.open_rollout import LEASE_S
from rollout.stages import SERVER_DOWN_S
from rollout.street import PIN_LEASE_S
from serving.tf_serving.config_files import Versions
from tests.city.ledgers import BEGIN, model, time
from tests.rollout.fake_street import TLS, FakeJudges, Killed, World, ns, plan

ONE = ("SA101",)
UNDECIDED = "not enough evidence"
CANARY_AT_ONCE = frozenset({"evaluate", "shadow"})
BOB_SETS_IT = {"SA101": "bob"}


@pytest.fixture
def make(tmp_path):
    """Makes a world whose judges answer this."""
    numbers = itertools.count()
    return lambda street={}, **judges: World(tmp_path / f"{next(numbers)}.jsonl", FakeJudges(**judges), **street)


@pytest.fixture
def world(make):
    return make()


def lines(world, *kinds):
    return [line for line in world.ledger.lines if line.kind in kinds]


def driven(world, tl="SA101"):
    return [drive.model.number for drive in drives_by_tl(world.ledger.lines)[tl]]


def numbers(world):
    return [by_tl for _, by_tl in world.street.history]


def note(world, kind):
    """A line of another author, once."""
    if not lines(world, kind):
        (rollout,) = world.ledger.state.rollouts
        text = "aborted: by bob" if kind == "abort" else ""
        world.ledger.append(Line(0, "", kind, "bob", rollout=rollout, text=text), world.clock.now())


def test_tls_are_promoted_one_after_another(world):
    world.ends("promoted")
    assert numbers(world) == [{"SA101": 3, "SA104": 3}, {"SA101": 4, "SA104": 3}, {"SA101": 4, "SA104": 4}]
    assert [line.stage or line.kind for line in world.ledger.lines if "SA101" in line.models] == [
        "adopt", "begin", "evaluate", "load", "shadow", "canary", "drives", "canary", "promote", "promote",
    ]  # fmt: skip
    assert world.street.pins == {} and world.street.served["SA101"].labels == {"stable": 4}
    assert world.street.served["SA101"].numbers == (3, 4), "controllers may still ask for 3 by its number"
    evidence = {name for line in world.ledger.lines for name in line.evidence}
    assert evidence == {"evaluate.json", "shadow.json", "canary.json"}
    before, history = world.ledger.lines, list(world.street.history)
    assert world.ends("promoted") == "SA101, SA104: driven by 4 already"
    assert world.ledger.lines == before and world.street.history == history, "nothing is done twice"


def test_a_group_is_in_canary_together(world):
    world.ends("promoted", is_together=True)
    assert [set(line.models) for line in lines(world, "canary")] == [set(TLS)]


@pytest.mark.parametrize("value", ["worse", UNDECIDED])
def test_a_model_that_is_refused_at_the_gate_never_reaches_street_or_server(make, value):
    world = make(evaluate=value)
    served = dict(world.street.served)
    assert world.run().outcome == value
    assert world.street.history == [] and world.street.served == served and world.street.pins == {}
    assert "shadow" not in world.judges.calls and not world.ledger.state.rollouts


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_a_worse_model_is_rolled_back_by_itself(make, stage):
    world = make(**{stage: "worse"})
    world.ends("worse", skipped=frozenset({"evaluate"}))
    assert world.street.number("SA101") == 3 and world.street.pins == {}
    assert world.street.served["SA101"].numbers == (3,), "the new number is unloaded"
    assert all(each["SA104"] == 3 for each in numbers(world)), "the second TL was never in canary"
    assert "evaluate" not in world.judges.calls


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_too_little_evidence_never_promotes_and_ends_with_its_bound(make, stage):
    world = make(**{stage: UNDECIDED})
    assert "after 300 s" in world.ends(UNDECIDED, max_wait_s=300.0)
    assert 300 < world.clock.seconds < 400 and world.street.number("SA101") == 3 and not lines(world, "promote")


def test_a_controller_that_asks_for_the_newest_version_stays_with_the_old_one(make):
    world = make({"follows_label": False}, polls=3)
    assert world.run(until="shadow").outcome == "until"
    assert {tuple(each.values()) for each in numbers(world)} == {(3, 3)}, "also while 4 is loaded"
    world.ends("promoted")


def test_a_fleets_member_stays_pinned_without_an_end_until_the_fleet_is_built_anew(make):
    world = make({"fleet": {"SA101": 3}})
    world.ends("promoted")
    assert world.street.pins == {"SA101": 4} and any("build it anew" in line for line in world.lines)
    assert world.street.leases == {}
    world.street.fleet = {"SA101": 4}
    world.ends("promoted")
    assert world.street.pins == {}


def test_a_rollout_goes_on_after_until(world):
    assert world.run(until="evaluate").outcome == "until" and world.street.served["SA101"].numbers == (3,)
    assert world.run(until="canary").outcome == "until" and world.street.pins == {"SA101": 4, "SA104": 4}
    world.ends("promoted")
    assert world.judges.calls.count("evaluate") == 1


@pytest.mark.parametrize(
    ("judges", "follows_label"),
    [({"polls": 2}, False), ({"canary": "worse"}, True), ({"shadow": UNDECIDED}, True)],
    ids=["better", "worse", "undecided"],
)
def test_street_and_ledger_agree_after_a_kill_at_any_call(make, judges, follows_label):
    street = {"follows_label": follows_label}
    whole = make(street, **judges)
    outcome = whole.run(max_wait_s=30.0).outcome
    for k in range(1, whole.street.calls + 1):
        world = make(street, **judges)
        world.street.killed_at = k
        with pytest.raises(Killed):
            world.run(max_wait_s=30.0)
        world.ends(outcome, max_wait_s=30.0)
        assert world.street.pins == {} and not world.ledger.state.rollouts, k
        assert world.street.served == whole.street.served, k


def test_street_and_ledger_agree_after_a_kill_at_any_line(make, world, monkeypatch):
    """Before the line is written, and after it."""
    world.run()
    for k, is_written in itertools.product(range(len(world.ledger.lines)), (False, True)):
        killed = make()
        process = killed.process(plan())
        append = process._own.ledger.append

        def dies(line, at, append=append, process=process, k=k, is_written=is_written):
            is_last = len(process._own.ledger.lines) == k
            written = append(line, at) if is_written or not is_last else None
            if is_last:
                raise Killed
            return written

        monkeypatch.setattr(process._own.ledger, "append", dies)
        with pytest.raises(Killed):
            process.run()
        killed.ends("promoted")
        assert numbers(killed) == numbers(world), (k, is_written)


def test_the_ledger_says_what_drove_each_tl_at_every_second(make):
    """Twice rolled back outside of its hours."""
    world = make(polls=40)
    world.run(hours=(0.0, 200.0), poll_s=1.0)
    drives = drives_by_tl(world.ledger.lines)
    ends = [at for at, _ in world.street.history[1:]] + [world.clock.now()]
    for (at, by_tl), end in zip(world.street.history, ends, strict=True):
        # the street changes first, and is confirmed within a look
        for moment in (at + timedelta(seconds=2), end) if at + timedelta(seconds=2) < end else ():
            before = time_text(moment - timedelta(seconds=0.001))
            newest = {tl: [each.model.number for each in drives[tl] if each.begin <= before][-1] for tl in TLS}
            assert newest == by_tl, moment


def test_a_canary_drives_in_its_hours_alone(make):
    world = make(polls=12)
    seen = []
    world.meanwhile(lambda world: seen.append((world.clock.seconds % 86400, world.street.number("SA101"))))
    world.ends("promoted", hours=(3600.0, 4100.0), max_wait_s=1e6, tls=ONE, poll_s=50.0)
    in_canary = [second for second, number in seen if number == 4]
    promoted = lines(world, "promote")[0].at
    assert in_canary and min(in_canary) >= 3600
    assert max(second for second in in_canary if time(second) <= promoted) <= 4165
    times = world.judges.times["SA101"]
    assert lines(world, "rollback") and len(times) >= 2 and all(end > begin for begin, end in times)


def test_canary_figures_begin_with_the_canary(world):
    world.clock.seconds = 1000.0
    world.run(tls=ONE)
    ((begin, end),) = world.judges.times["SA101"]
    assert begin >= ns(1000) and end > ns(10**8)


@pytest.mark.parametrize(
    ("part", "attribute", "value", "begin_s", "end_s", "period_s", "line"),
    [
        ("street", "server_down", True, 50, 95, 120, "waits: the model server does not answer"),
        ("street", "controller_down", True, 50, 400, math.inf, "waits: the controller does not answer"),
        ("street", "mode", BOB_SETS_IT, 0, 200, math.inf, "waits: SA101 is set to fixed by bob"),
        ("clock", "jump_s", -86400.0, 30, math.inf, math.inf, ""),
        ("clock", "jump_s", 86400.0, 30, math.inf, math.inf, ""),
    ],
)
def test_a_bad_day_is_waited_for(make, part, attribute, value, begin_s, end_s, period_s, line):
    """The server is restarted, again and again, the controller too, an operator fixes the TL, the clock jumps."""
    assert SERVER_DOWN_S == 60
    world = make(polls=20)
    day = getattr(world, part)
    good = getattr(day, attribute)

    def happens(world):
        is_bad = begin_s <= world.clock.seconds % period_s < end_s
        setattr(day, attribute, value if is_bad else good)

    world.meanwhile(happens)
    world.clock.on_sleep()
    world.ends("promoted", tls=ONE, skipped=CANARY_AT_ONCE)
    assert (not line or line in world.lines) and (world.clock.seconds > end_s or end_s == math.inf)
    assert world.ledger.state.tls["SA101"].stable == model(4)
    world.ends("promoted", tls=ONE, skipped=CANARY_AT_ONCE, number=5)


def test_a_rollback_waits_for_an_operator_who_has_fixed_the_tl(make):
    world = make(polls=5, canary="worse")

    def fixes(world):
        if lines(world, "canary") and world.street.number("SA101") == world.street.answered.get("SA101") == 4:
            world.street.mode = BOB_SETS_IT
        if world.clock.seconds > 3 * CONFIRM_S:
            world.street.mode = {}

    world.meanwhile(fixes)
    world.ends("worse", tls=ONE)
    assert "waits: SA101 is set to fixed by bob" in world.lines and world.clock.seconds > 3 * CONFIRM_S


def test_a_canary_does_not_leave_its_hours_while_an_operator_has_the_tl(make):
    world = make(canary=UNDECIDED)
    world.meanwhile(lambda world: setattr(world.street, "mode", BOB_SETS_IT if 100 < world.clock.seconds < 400 else {}))
    world.run(tls=ONE, hours=(0.0, 200.0))
    assert lines(world, "rollback")[0].at >= time(400)


@pytest.mark.parametrize(
    ("method", "stage", "error"),
    [("evaluate", "evaluate", ProgramFailed("SUMO has ended"))]
    + [("keep", stage, InputError("No space left on device")) for stage in ("evaluate", "shadow", "canary")],
)
def test_work_that_fails_passes_no_stage_and_does_not_end_the_rollout(world, monkeypatch, method, stage, error):
    original = getattr(world.judges, method)

    def fails(*arguments):
        if method == "evaluate" or arguments[0] == stage:
            raise error
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(world.judges, method, fails)
        with pytest.raises(type(error), match=str(error)):
            world.run()
    assert stage not in {line.stage for line in world.ledger.lines}
    world.ends("promoted")


def test_an_operator_who_pins_another_number_ends_the_rollout(make):
    world = make(canary=UNDECIDED)

    def pins(world):
        if world.is_in_canary:
            world.street.pins, world.street.pinned_by = {"SA101": 3}, BOB_SETS_IT

    world.meanwhile(pins)
    assert "bob has pinned SA101 to 3" in world.ends("aborted", tls=ONE)
    assert world.street.pins == {"SA101": 3}, "the operator's pin stays"


def test_a_street_that_is_not_as_the_ledger_says_is_refused(world):
    world.street.pins, world.street.pinned_by = {"SA101": 3}, BOB_SETS_IT
    with pytest.raises(InputError, match="SA101 is pinned to 3 by bob; take that back first"):
        world.run()
    world.street.pins = {}
    world.run()
    world.street.served["SA101"] = Versions((6,), {"stable": 6})
    with pytest.raises(InputError, match="SA101 is driven by 6, and the ledger says 4"):
        world.run(number=7)


def test_a_pin_that_the_controller_has_lost_is_set_again(make):
    world = make(polls=5)
    lost = []

    def loses(world):
        if world.is_in_canary and not lost:
            lost.append(world.street.pins)
            world.street.pins = {}

    world.meanwhile(loses)
    world.ends("promoted", tls=ONE)
    assert lost


@pytest.mark.parametrize("is_other_tls", [False, True])
def test_an_alarm_in_canary_rolls_back_and_an_older_one_does_not(make, is_other_tls):
    """One that began with another TL counts once it names this one."""
    earlier_s = (BEGIN - timedelta(seconds=10)).timestamp()
    world = make(polls=3)
    world.street.alarms = [("GreenserveOverrides", earlier_s)]
    world.ends("promoted", tls=ONE)

    def alarms(world):
        if world.is_in_canary and world.clock.seconds > 20:
            since_s = earlier_s if is_other_tls else world.clock.now().timestamp()
            world.street.alarms = [("GreenserveGreenKept", since_s)]

    world = make(polls=50)
    world.meanwhile(alarms)
    assert "GreenserveGreenKept" in world.ends("worse", tls=ONE)


def test_a_canary_that_never_answers_is_judged(make):
    """A canary that is asked and gives no answer drives the TL into its fallback: it is in the ledger, and worse."""
    world = make(polls=3, canary="worse")
    world.street.silent_versions = {4}
    assert world.run(tls=ONE).outcome == "worse"
    assert driven(world) == [3, 4, 3]


def test_a_bad_old_model_does_not_block_its_successor(world):
    """The old one has stopped to answer."""
    world.run(until="evaluate")
    world.street.silent_versions = {3}
    assert world.run().outcome == "promoted"


def test_a_canary_that_crashes_the_server_is_rolled_back_and_its_restart_finds_the_old_number_alone(make):
    world = make(canary=UNDECIDED)

    def crashes(world):
        world.street.server_down |= world.is_in_canary

    world.meanwhile(crashes)
    with pytest.raises(ProgramFailed, match="has not been seen to follow"):
        world.run(tls=ONE, max_wait_s=1e6)
    assert SERVER_DOWN_S < world.clock.seconds < SERVER_DOWN_S + CONFIRM_S + 60
    assert world.street.served["SA101"].numbers == (3,) and world.street.pins == {}
    world.meanwhile(lambda world: None)
    world.street.server_down, world.judges.verdicts["canary"] = False, "better"
    sentence = world.ends(UNDECIDED, tls=ONE)
    assert sentence == "the model server has not answered for 60 s in canary", "the reason to end it stays"


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("refuses_to_load", True, "could not be loaded"),
        ("refuses_pins_to", 4, "SA101 cannot be pinned to 4"),  # it has another contract
    ],
)
def test_a_server_or_controller_that_refuses_the_number_ends_the_rollout(world, attribute, value, reason):
    setattr(world.street, attribute, value)
    assert reason in world.ends("failed") and world.street.pins == {}


@pytest.mark.parametrize("until", ["evaluate", "shadow", "canary"])
@pytest.mark.parametrize(
    ("attribute", "reason"),
    [("changed_files", "the files of SA101/4 have changed"), ("unsigned", "is not signed")],
)
def test_files_that_change_or_lack_their_signature_end_an_open_rollout(world, until, attribute, reason):
    world.run(until=until)
    setattr(world.judges, attribute, True)
    assert reason in world.run().sentence and not world.ledger.state.rollouts
    assert {each["SA101"] for each in numbers(world)} <= ({3, 4} if until == "canary" else {3})
    assert world.street.number("SA101") == 3 and "promote" not in {line.kind for line in world.ledger.lines}
    assert until != "evaluate" or "load" not in {line.stage for line in world.ledger.lines}, "never loaded"


def test_a_number_without_its_signature_begins_nothing(world):
    world.judges.unsigned = True
    with pytest.raises(InputError, match="models/SA101/4: is not signed"):
        world.run()
    assert not world.ledger.state.rollouts and world.judges.calls == [] and world.street.calls == 0


def test_a_promoted_number_is_taken_back_also_after_a_kill(make, world):
    world.run()
    calls = world.street.calls
    world.process(plan(number=3)).take_back()
    assert world.disagreement() == "" and world.street.number("SA101") == 3 and driven(world) == [3, 4, 3]
    for k in range(1, world.street.calls - calls + 1):
        killed = make()
        killed.run()
        killed.street.killed_at = killed.street.calls + k
        with pytest.raises(Killed):
            killed.process(plan(number=3)).take_back()
        killed.run(number=3)
        assert killed.disagreement() == "" and killed.street.number("SA104") == 3, k


def test_only_a_number_that_was_stable_is_taken_back(world):
    world.run()
    for number, is_changed, message in (
        (4, False, "SA101 has 4 as its stable number already"),
        (2, False, "SA101 never had 2 as its stable number; earlier ones: 3"),
        (3, True, "the files of SA101/3 are not those that were stable"),
    ):
        world.judges.changed_files = is_changed
        with pytest.raises(InputError, match=message):
            world.process(plan(number=number)).take_back()
    assert world.street.number("SA101") == 4


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_a_paused_rollout_waits_without_a_bound(make, stage):
    world = make(polls=2)
    world.run(until="shadow", tls=ONE)

    def pauses(world):
        if world.is_in_canary or stage == "shadow":
            note(world, "pause")
        if world.clock.seconds > 2000:
            note(world, "resume")

    world.meanwhile(pauses)
    pauses(world)
    assert world.run(max_wait_s=600.0 if stage == "canary" else 1e6, tls=ONE).outcome == "promoted"
    assert "waits: paused (greenserve rollout resume)" in world.lines and world.clock.seconds > 2000
    assert (lines(world, "canary")[0].at > time(2000)) == (stage == "shadow")


@pytest.mark.parametrize(("kind", "canary", "outcome"), [("pause", "worse", "worse"), ("abort", UNDECIDED, "aborted")])
def test_a_rollout_that_is_paused_or_aborted_in_canary_rolls_back(make, kind, canary, outcome):
    world = make(polls=4, canary=canary)
    world.meanwhile(lambda world: world.is_in_canary and note(world, kind))
    world.ends(outcome)
    assert world.street.pins == {} and lines(world, kind)


def test_an_abort_ends_a_rollout_whose_process_is_gone(world):
    world.run(until="canary")
    note(world, "abort")
    process = world.process(plan(author="bob"))
    world.clock.seconds += LEASE_S + 1
    assert process.abort(next(iter(process._own.ledger.state.rollouts.values()))).outcome == "aborted"
    assert world.disagreement() == "" and world.street.number("SA101") == 3 and world.street.pins == {}


def test_a_second_rollout_is_refused_by_name_until_the_first_has_ended(world):
    world.run(until="shadow")
    with pytest.raises(InputError, match=r"SA101 is in rollout \w{8} to 4, whose lease is that of ann"):
        world.run(number=5, author="bob", tls=ONE)
    with pytest.raises(InputError, match="whose lease is that of ann"):
        world.run(author="bob")
    world.clock.seconds += LEASE_S + 1
    world.ends("promoted", number=5, author="bob")


def test_an_owner_who_is_replaced_stops(make):
    world = make(shadow=UNDECIDED)

    def replaced(world):
        world.meanwhile(lambda world: None)
        world.clock.seconds += LEASE_S + 1
        world.judges.verdicts["shadow"] = "better"
        world.run(author="bob", until="shadow")

    world.meanwhile(replaced)
    with pytest.raises(InputError, match="whose lease is that of bob"):
        world.run(max_wait_s=1e6)


def test_the_lease_is_extended_while_the_rollout_waits(make):
    world = make(canary=UNDECIDED)
    world.run(max_wait_s=4 * LEASE_S, tls=ONE)
    assert 6 <= len(lines(world, "lease")) <= 12


def test_a_canary_that_nobody_watches_ends_by_itself_and_begins_anew(make):
    world = make(canary=UNDECIDED)

    def dies(world):
        if world.clock.seconds > 100:
            raise Killed

    world.meanwhile(dies)
    with pytest.raises(Killed):
        world.run(tls=ONE)
    assert world.street.number("SA101") == 4
    world.end_of_pin()
    world.meanwhile(lambda world: None)
    world.judges.verdicts["canary"] = "better"
    world.ends("promoted", tls=ONE)
    noted = lines(world, "canary", "rollback")
    assert [line.kind for line in noted] == ["canary", "rollback", "canary"]
    assert noted[1].text == "the controller has gone back to it by itself"
    assert driven(world) == [3, 4, 3, 4]


def test_a_canary_that_is_watched_is_renewed(make):
    world = make(canary=UNDECIDED)
    seen = []

    def looks(world):
        world.street.end_leases()
        seen.append(world.street.number("SA101"))

    world.meanwhile(looks)
    world.run(tls=ONE, max_wait_s=3 * PIN_LEASE_S)
    in_canary = "".join(map(str, seen)).strip("3")
    assert set(in_canary) == {"4"} and len(in_canary) > 2 * PIN_LEASE_S / 10
    assert len(lines(world, "rollback")) == 1, "its own, at the end"


def test_a_canary_that_is_passed_is_promoted_although_its_pin_has_ended(world):
    assert world.run(tls=ONE, until="canary").outcome == "until"
    world.end_of_pin()
    world.ends("promoted", tls=ONE)


def test_a_controller_that_has_ended_for_good_leaves_a_server_of_the_old_number(make):
    world = make(canary=UNDECIDED)
    world.meanwhile(lambda world: setattr(world.street, "controller_down", world.clock.seconds > 50))
    with pytest.raises(ProgramFailed, match="has not been seen to follow the ledger for 300 s"):
        world.run(tls=ONE)
    assert world.street.served["SA101"].numbers == (3,)
    world.meanwhile(lambda world: None)
    world.street.controller_down = False
    world.ends(UNDECIDED, tls=ONE)
