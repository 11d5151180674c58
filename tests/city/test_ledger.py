"""The rules of the ledger, each from both sides, and properties of random ledgers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.ledger import STAGES, Ledger, Model, RuleBroken, decode, drives_by_tl, encode
from tests.city.ledgers import (
    ADOPTED,
    BEGUN,
    ENDED,
    IN_CANARY,
    JUDGED,
    PROMOTED,
    SHADOWED,
    TL,
    after,
    line,
    model,
    stage,
    time,
)

ROLLBACK = line("rollback", tls=TL, number=3)
TAKEN_BACK = replace(ROLLBACK, rollout="")
SECOND = line("begin", 121, TL, number=5, rollout="r2", author="bob")
TAKEN = (*BEGUN, line("lease", 121, author="bob"))
ABORTED = (*BEGUN, line("abort", 20, author="bob", text="aborted: by bob"))
SKIPPED = (*BEGUN, stage("evaluate", verdict="skipped"))
BACK = (*IN_CANARY, ROLLBACK, line("drives", tls=TL, number=3), line("end"))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        # malformed lines
        ((*BEGUN, line("destroy")), "kind 'destroy' is unknown"),
        ((line("adopt", tls=TL, number=0),), "0 is not a model number"),
        ((line("adopt", tls=TL, number=1 << 63),), "is not a model number"),
        ((replace(line("adopt"), models={"SA101": Model(3, "ABC")}),), "is not a SHA-256"),
        ((*BEGUN, stage("guess")), "stage 'guess' is unknown"),
        ((*BEGUN, stage("evaluate", verdict="fine")), "verdict 'fine' is unknown"),
        # numbers rise, and never have other files
        *(
            ((*ADOPTED, line(kind, tls=TL, number=number)), "does not rise above 3")
            for kind in ("begin", "adopt")
            for number in (2, 3)
        ),
        (
            (*BEGUN, line("abort"), line("end"), replace(SECOND, models={"SA101": Model(4, "f" * 64)})),
            "SA101/4 has other files",
        ),
        # TLs of the ledger, each in one rollout until it is abandoned
        ((*ADOPTED, line("begin")), "needs a TL"),
        ((*ADOPTED, line("begin", tls=("SA999",))), "SA999 is not in the ledger; adopt"),
        ((*ADOPTED, line("drives", tls=("SA999",), rollout="")), "SA999 is not in the ledger"),
        ((*ADOPTED, line("rollback", tls=("SA999",), rollout="")), "SA999 is not in the ledger"),
        ((*BEGUN, line("adopt", tls=TL, number=5)), "is in rollout r1"),
        (
            (*BEGUN, line("begin", 60, ("SA104", "SA101"), number=5, rollout="r2", author="bob")),
            "SA101 is in rollout r1 to 4, whose lease is that of ann until 2026-11-24T08:02",
        ),
        ((*SHADOWED, replace(SECOND, at=time(120))), "is in rollout r1"),  # the lease ends at 120 s
        ((*IN_CANARY, SECOND), "SA101 is in canary of rollout r1"),
        ((*IN_CANARY, ROLLBACK, SECOND), "SA101 is in canary of rollout r1"),  # the old model does not drive it yet
        # the lease
        ((*ADOPTED, line("begin", 5, TL, until=time(5))), "the lease must end after"),
        ((*BEGUN, line("lease", 5, until=time(5))), "the lease must end after"),
        ((*BEGUN, stage("evaluate", author="bob")), "ann until"),
        ((*BEGUN, stage("evaluate", at_s=121)), "extend it first"),
        ((*BEGUN, line("lease", 120, author="bob")), "ann until"),
        ((*TAKEN, stage("evaluate", at_s=130)), "bob until"),
        # stages, in their order and once
        *(
            ((*BEGUN, *map(stage, STAGES[:k]), stage(other)), "is not its next stage")
            for k, name in enumerate(STAGES[:3])
            for other in STAGES
            if other != name
        ),
        ((*SKIPPED, stage("load", verdict="skipped")), "cannot be skipped"),
        ((*IN_CANARY, stage("canary", verdict="skipped")), "cannot be skipped"),
        # canary and promotion
        ((*BEGUN, stage("evaluate"), stage("load"), line("canary", tls=TL)), "has not passed shadow"),
        ((*SHADOWED, line("canary", tls=TL, number=5)), "is not the rollout's target"),
        ((*SHADOWED, line("canary", tls=("SA104",))), "is not in rollout r1"),
        ((*SHADOWED, line("canary", tls=TL), stage("canary")), "is not driven by its canary"),
        ((*IN_CANARY, line("promote", tls=TL)), "has not passed canary"),
        ((*JUDGED, ROLLBACK, line("promote", tls=TL)), "is not driven by its canary"),
        ((*JUDGED, stage("promote", verdict="done")), "is not promoted"),
        ((*SHADOWED, line("drives", tls=TL)), "is not wanted"),
        ((*SHADOWED, line("drives", tls=TL, number=3, rollout="")), "SA101 is in rollout r1"),
        ((*SHADOWED, line("pause", author="bob"), line("canary", tls=TL)), "is paused"),
        ((*SHADOWED, line("abort", author="bob"), line("canary", tls=TL)), "was aborted"),
        ((*SHADOWED, line("abort"), line("resume")), "was aborted"),
        # the end, and ways back
        ((*IN_CANARY, line("end")), "still in canary"),
        ((*IN_CANARY, ROLLBACK, line("end")), "not yet driven by 3"),
        ((*BACK, line("resume")), "there is no open rollout"),
        ((*BACK, line("begin", tls=TL)), "must be a new one"),
        ((*SHADOWED, ROLLBACK), "SA101 is not in canary"),
        ((*PROMOTED, TAKEN_BACK), "is in rollout r1"),
        ((*ENDED, replace(TAKEN_BACK, models={"SA101": model(2)})), "was never stable"),
        (
            (*ENDED, TAKEN_BACK, line("drives", tls=TL, number=3, rollout=""), line("rollback", tls=TL, rollout="")),
            "is not lower than 3",
        ),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused(lines, reason):
    state = after(*lines[:-1])
    with pytest.raises(RuleBroken) as error:
        after(lines[-1], ledger=state)
    assert reason in str(error.value)


def test_a_model_goes_through_the_stages_and_becomes_stable():
    state = after(*ENDED)
    assert state.tls["SA101"].stable == state.tls["SA101"].drives == model(4) and not state.rollouts
    assert state.tls["SA104"].stable == model(3)


def test_canary_wants_the_new_model_and_only_drives_says_that_it_answers():
    state = after(*SHADOWED, line("canary", 5, TL)).tls["SA101"]
    assert (state.wanted, state.drives) == (model(4), model(3))
    state = after(*SHADOWED, line("canary", 5, TL), line("drives", 9, TL)).tls["SA101"]
    assert (state.drives, state.since, state.stable) == (model(4), time(9), model(3))


def test_lines_are_chained():
    state = after(*ADOPTED)
    good = state.followed_by(line("begin", tls=TL))
    for change, reason in (
        ({"number": 2}, "lines are missing"),
        ({"before": "0" * 64}, "does not follow the line before"),
        ({"head": "0" * 64}, "its head is not"),
        ({"at": time(-1)}, "is before"),
        ({"at": "yesterday"}, "must be like"),
        ({"author": ""}, "no author"),
    ):
        with pytest.raises(RuleBroken, match=reason):
            state.after(replace(good, **change))
    assert state.after(good).count == 2


def test_head_binds_number_and_files_of_every_tl():
    heads = {after(*ADOPTED).head, after(line("adopt", tls=TL, number=3)).head}
    other = Model(3, "f" * 64)
    heads.add(after(replace(line("adopt"), models={"SA101": model(3), "SA104": other})).head)
    assert len(heads) == 3
    assert after(*BEGUN).head == after(*ADOPTED).head, "a rollout that has changed nothing"


def test_what_the_rules_permit():
    assert after(*ADOPTED, line("adopt", tls=TL, number=4)).tls["SA101"].drives == model(4), "outside of a rollout"
    assert after(*BEGUN, line("begin", 60, ("SA104",), number=5, rollout="r2")).rollouts.keys() == {"r1", "r2"}
    assert after(*SHADOWED, SECOND).rollouts.keys() == {"r2"}, "the first one is abandoned"
    assert after(*ABORTED, line("lease", 21, author="bob")).rollouts["r1"].owner == "bob", "he ends it"
    assert after(*TAKEN).rollouts["r1"].owner == "bob"
    assert after(*BEGUN, line("lease", 200), stage("evaluate", at_s=300)).rollouts["r1"].passed == {"SA101": 1}
    for verdict in ("not enough evidence", "worse"):
        assert after(*BEGUN, stage("evaluate", verdict=verdict)).rollouts["r1"].passed == {"SA101": 0}
    loaded = (*SKIPPED, stage("load"), stage("shadow", verdict="skipped"))
    assert after(*loaded, line("canary", tls=TL)).tls["SA101"].canary == model(4)
    assert after(*SHADOWED, line("pause"), line("resume", author="bob"), line("canary", tls=TL)).tls["SA101"].canary
    for kind in ("pause", "abort"):
        assert after(*IN_CANARY, line(kind, author="bob"), ROLLBACK).tls["SA101"].wanted == model(3)
    assert not after(*BACK).rollouts
    state = after(*ENDED, TAKEN_BACK).tls["SA101"]
    assert (state.wanted, state.drives) == (model(3), model(4))


def test_drives_are_the_times_of_models():
    state, lines = Ledger(), []
    for k, each in enumerate((*IN_CANARY, line("rollback", tls=TL, number=3), line("drives", tls=TL, number=3))):
        each = state.followed_by(replace(each, at=time(k), until=time(500) if each.until else ""))
        state = state.after(each)
        lines.append(each)
    assert [(drive.model.number, drive.begin) for drive in drives_by_tl(lines)["SA101"]] == [
        (3, time(0)), (4, time(6)), (3, time(8)),
    ]  # fmt: skip


def test_a_line_is_read_as_it_was_written_and_no_other_form_of_it():
    for each in ENDED:
        written = replace(each, text='Café "x"\n', evidence={"results.json": "0" * 64})
        assert decode(encode(written)) == written
        spaced = encode(written).replace(b",", b", ")
        with pytest.raises(RuleBroken, match="changed by hand"):
            decode(spaced)
    for data in (b"", b"{}", b"[]", b"null", b'{"number":1}', b"[" * 100_000, encode(ENDED[0]).replace(b"3,", b"3.0,")):
        with pytest.raises(RuleBroken, match="changed by hand"):
            decode(data)


OPERATIONS = st.tuples(
    st.sampled_from(
        ["begin", "lease", "stage", "canary", "drives", "promote", "rollback", "pause", "resume", "abort", "end"]
    ),
    st.sampled_from([("SA101",), ("SA104",), ("SA101", "SA104")]),
    st.integers(2, 6),
    st.sampled_from(["r1", "r2", ""]),
    st.sampled_from(["ann", "bob"]),
    st.integers(0, 60),
    st.sampled_from(STAGES),
    st.sampled_from(["better", "done", "worse"]),
)


def random_ledger(operations):
    """The lines of the operations that the rules permit, and the states before and after each."""
    state, at_s, steps = after(*ADOPTED), 0, []
    # a random walk would seldom pass a stage: what is wanted next is tried after each operation
    for kind, tls, number, rollout, author, seconds, name, verdict in operations:
        at_s += seconds
        judged = {"stage": name, "verdict": verdict} if kind == "stage" else {}
        tries = [line(kind, at_s, tls, number, author, rollout, **judged)]
        for each in state.rollouts.values():
            own = {"at_s": at_s, "author": each.owner, "rollout": each.id}
            due = {tl: STAGES[k] for tl, k in each.passed.items() if k < len(STAGES)}
            tries += [stage(due[tl], (tl,), number=each.targets[tl].number, **own) for tl in due]
        for each in tries:
            try:
                written = state.followed_by(each)
                following = state.after(written)
            except RuleBroken:
                continue
            steps.append((state, written, following))
            state = following
    return steps


@given(st.lists(OPERATIONS, min_size=5, max_size=40))
def test_no_line_lowers_a_number_but_a_rollback_and_no_tl_has_two_rollouts(operations):
    for before, written, following in random_ledger(operations):
        for tl, state in following.tls.items():
            if state.wanted.number < before.tls[tl].wanted.number:
                assert written.kind == "rollback"
            assert sum(tl in rollout.targets for rollout in following.rollouts.values()) <= 1
            assert state.canary is None or state.canary.number > state.stable.number
            if state.stable != before.tls[tl].stable and written.kind != "rollback":
                assert state.drives == state.stable, "no model becomes stable that has not driven the TL"


@given(st.lists(OPERATIONS, min_size=3, max_size=20), st.data())
def test_a_changed_byte_of_any_line_but_the_last_is_found(operations, data):
    steps = random_ledger(operations)
    lines = [encode(ledger_line) for _, ledger_line, _ in steps]
    if len(lines) < 2:
        return
    k = data.draw(st.integers(0, len(lines) - 2))
    at = data.draw(st.integers(0, len(lines[k]) - 1))
    changed = lines[k][:at] + bytes([lines[k][at] ^ data.draw(st.integers(1, 255))]) + lines[k][at + 1 :]
    state = steps[0][0]
    with pytest.raises(RuleBroken):
        for each in (*lines[:k], changed, *lines[k + 1 :]):
            state = state.after(decode(each))
