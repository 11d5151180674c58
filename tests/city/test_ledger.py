"""The rules of the ledger, each from both sides, and properties of random ledgers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.ledger import STAGES, Ledger, Line, Model, RuleBroken, decode, drives_by_tl, encode
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


def broken(*lines: Line) -> str:
    """Why the last of the lines breaks a rule, after which the ones before do not."""
    state = after(*lines[:-1])
    with pytest.raises(RuleBroken) as error:
        after(lines[-1], ledger=state)
    return str(error.value)


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


@pytest.mark.parametrize("number", [2, 3])
def test_numbers_rise(number):
    assert "does not rise above 3" in broken(*ADOPTED, line("begin", tls=TL, number=number))
    assert "does not rise above 3" in broken(*ADOPTED, line("adopt", tls=TL, number=number))


def test_a_higher_number_may_be_adopted_outside_of_a_rollout():
    assert after(*ADOPTED, line("adopt", tls=TL, number=4)).tls["SA101"].drives == model(4)
    assert "is in rollout r1" in broken(*BEGUN, line("adopt", tls=TL, number=5))


def test_a_number_never_has_other_files():
    changed = replace(line("begin"), models={"SA101": Model(4, "f" * 64)}, rollout="r2")
    reason = broken(*BEGUN, line("abort"), line("end"), changed)
    assert "SA101/4 has other files" in reason


def test_a_second_rollout_of_a_tl_is_refused_by_name():
    second = line("begin", 60, ("SA104", "SA101"), number=5, rollout="r2", author="bob")
    reason = broken(*BEGUN, second)
    assert "SA101 is in rollout r1 to 4" in reason and "ann until 2026-11-24T08:02" in reason
    assert after(*BEGUN, line("begin", 60, ("SA104",), number=5, rollout="r2")).rollouts.keys() == {"r1", "r2"}


def test_an_abandoned_rollout_is_replaced_unless_a_tl_is_in_canary():
    second = line("begin", 121, TL, number=5, rollout="r2", author="bob")
    assert after(*SHADOWED, second).rollouts.keys() == {"r2"}
    assert "is in rollout r1" in broken(*SHADOWED, replace(second, at=time(120))), "the lease ends at 120 s"
    assert "SA101 is in canary of rollout r1" in broken(*IN_CANARY, second)
    rolled_back = (*IN_CANARY, line("rollback", tls=TL, number=3))
    assert "SA101 is in canary of rollout r1" in broken(*rolled_back, second), "the old model does not drive it yet"


def test_only_the_owner_of_a_lease_writes_within_it():
    assert "ann until" in broken(*BEGUN, stage("evaluate", author="bob"))
    assert "extend it first" in broken(*BEGUN, stage("evaluate", at_s=121))
    assert "ann until" in broken(*BEGUN, line("lease", 120, author="bob"))
    aborted = (*BEGUN, line("abort", 20, author="bob", text="aborted: by bob"))
    assert after(*aborted, line("lease", 21, author="bob")).rollouts["r1"].owner == "bob", "he ends it"
    taken = (*BEGUN, line("lease", 121, author="bob"))
    assert after(*taken).rollouts["r1"].owner == "bob"
    assert "bob until" in broken(*taken, stage("evaluate", at_s=130))
    assert after(*BEGUN, line("lease", 200), stage("evaluate", at_s=300)).rollouts["r1"].passed == {"SA101": 1}


def test_stages_pass_in_their_order_once():
    for k, name in enumerate(STAGES[:3]):
        begun = (*BEGUN, *map(stage, STAGES[:k]))
        for other in STAGES:
            if other != name:
                assert "is not its next stage" in broken(*begun, stage(other))
    assert after(*BEGUN, stage("evaluate", verdict="not enough evidence")).rollouts["r1"].passed == {"SA101": 0}
    assert after(*BEGUN, stage("evaluate", verdict="worse")).rollouts["r1"].passed == {"SA101": 0}


def test_only_evaluation_and_shadow_may_be_skipped():
    evaluated = (*BEGUN, stage("evaluate", verdict="skipped"))
    assert "cannot be skipped" in broken(*evaluated, stage("load", verdict="skipped"))
    loaded = (*evaluated, stage("load"), stage("shadow", verdict="skipped"))
    assert after(*loaded, line("canary", tls=TL)).tls["SA101"].canary == model(4)
    assert "cannot be skipped" in broken(*IN_CANARY, stage("canary", verdict="skipped"))


def test_canary_and_promotion_need_the_stages_before():
    assert "has not passed shadow" in broken(*BEGUN, *(stage(name) for name in STAGES[:2]), line("canary", tls=TL))
    assert "has not passed canary" in broken(*IN_CANARY, line("promote", tls=TL))
    assert "is not the rollout's target" in broken(*SHADOWED, line("canary", tls=TL, number=5))
    assert "is not in rollout r1" in broken(*SHADOWED, line("canary", tls=("SA104",)))


def test_canary_passes_only_while_it_drives_the_tl():
    assert "is not driven by its canary" in broken(*SHADOWED, line("canary", tls=TL), stage("canary"))
    back = (*JUDGED, line("rollback", tls=TL, number=3))
    assert "is not driven by its canary" in broken(*back, line("promote", tls=TL))
    assert "is not promoted" in broken(*JUDGED, stage("promote", verdict="done"))


def test_drives_names_what_is_wanted():
    assert "is not wanted" in broken(*SHADOWED, line("drives", tls=TL))
    assert "SA101 is in rollout r1" in broken(*SHADOWED, line("drives", tls=TL, number=3, rollout=""))


@pytest.mark.parametrize("kind", ["pause", "abort"])
def test_no_canary_begins_in_a_paused_or_aborted_rollout_but_a_rollback_does(kind):
    assert ("is paused" if kind == "pause" else "was aborted") in broken(
        *SHADOWED, line(kind, author="bob"), line("canary", tls=TL)
    )
    state = after(*IN_CANARY, line(kind, author="bob"), line("rollback", tls=TL, number=3))
    assert state.tls["SA101"].wanted == model(3)


def test_a_paused_rollout_goes_on_after_resume_and_an_aborted_one_never():
    assert after(*SHADOWED, line("pause"), line("resume", author="bob"), line("canary", tls=TL)).tls["SA101"].canary
    assert "was aborted" in broken(*SHADOWED, line("abort"), line("resume"))


def test_a_rollout_ends_once_the_street_is_as_wanted():
    assert "still in canary" in broken(*IN_CANARY, line("end"))
    rolled_back = (*IN_CANARY, line("rollback", tls=TL, number=3))
    assert "not yet driven by 3" in broken(*rolled_back, line("end"))
    ended = (*rolled_back, line("drives", tls=TL, number=3), line("end"))
    assert not after(*ended).rollouts
    assert "there is no open rollout" in broken(*ended, line("resume"))
    assert "must be a new one" in broken(*ended, line("begin", tls=TL))


def test_a_stable_model_is_taken_back_by_a_rollback_line_alone():
    back = line("rollback", tls=TL, number=3, rollout="")
    state = after(*ENDED, back)
    assert state.tls["SA101"].wanted == model(3) and state.tls["SA101"].drives == model(4)
    assert "is in rollout r1" in broken(*PROMOTED, back)
    assert "was never stable" in broken(*ENDED, replace(back, models={"SA101": model(2)}))
    again = (*ENDED, back, line("drives", tls=TL, number=3, rollout=""))
    assert "is not lower than 3" in broken(*again, replace(back, models={"SA101": model(4)}))


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
        tries = [
            line(
                kind,
                at_s,
                tls,
                number,
                author,
                rollout,
                **({"stage": name, "verdict": verdict} if kind == "stage" else {}),
            )
        ]
        for each in state.rollouts.values():
            for tl in each.targets:
                k = each.passed[tl]
                if k < len(STAGES):
                    tries.append(
                        stage(
                            STAGES[k],
                            (tl,),
                            at_s=at_s,
                            author=each.owner,
                            rollout=each.id,
                            number=each.targets[tl].number,
                        )
                    )
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


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((*BEGUN, line("destroy")), "kind 'destroy' is unknown"),
        ((line("adopt", tls=TL, number=0),), "0 is not a model number"),
        ((line("adopt", tls=TL, number=1 << 63),), "is not a model number"),
        ((replace(line("adopt"), models={"SA101": Model(3, "ABC")}),), "is not a SHA-256"),
        ((*ADOPTED, line("begin", 5, TL, until=time(5))), "the lease must end after"),
        ((*BEGUN, line("lease", 5, until=time(5))), "the lease must end after"),
        ((*SHADOWED, line("rollback", tls=TL, number=3)), "SA101 is not in canary"),
        ((*ADOPTED, line("begin")), "needs a TL"),
        ((*ADOPTED, line("begin", tls=("SA999",))), "SA999 is not in the ledger; adopt"),
        ((*ADOPTED, line("drives", tls=("SA999",), rollout="")), "SA999 is not in the ledger"),
        ((*ADOPTED, line("rollback", tls=("SA999",), rollout="")), "SA999 is not in the ledger"),
        ((*BEGUN, stage("guess")), "stage 'guess' is unknown"),
        ((*BEGUN, stage("evaluate", verdict="fine")), "verdict 'fine' is unknown"),
    ],
)
def test_malformed_lines_are_refused(lines, reason):
    assert reason in broken(*lines)
