"""Sentences about a TL's decision step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.recording.sentences import sentence
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from signals.movement_names import MovementGroup, MovementNames
from tests.records.recorded_city import SILENT_TL, STREET_TL

T = record.TlStep


def contract(kind="categorical", lanes=("n", "e"), signals=("A0",), **observation):
    features = [pb.Feature(kind="phase")] * 2 + [pb.Feature(kind="min_green")]
    features += [pb.Feature(kind="queue", lane_id=lane) for lane in lanes]
    return pb.PolicyContract(
        tl="SA101",
        signal_ids=signals,
        signals=[pb.Signal(id=signal, greens=["Gr", "rG"], phases=[pb.Phase(state="Gr")]) for signal in signals],
        observation=pb.Observation(features=features, **observation),
        action=pb.Action(kind=kind, size=2, actionp=0.2),
    )


def step(mode=T.POLICY, states=(), **decision):
    values = {
        "observation": [1, 0, 1, 0.25, 0],
        "phases": [0],
        "min_green_passed": True,
        "model": "SA101",
        "version": 7,
    }
    return T(at_s=29405, mode=mode, decision=record.Decision(**{**values, **decision}), states=states)


def states(*permitted, at_s=29405, requested=None, **more):
    return record.States(
        at_s=at_s, requested=permitted if requested is None else requested, permitted=permitted, **more
    )


SEEN = "08:10:05 SA101: current green 0 (Gr); saw queues on 25% of n; "


@pytest.mark.parametrize(
    ("tl_step", "text"),
    [
        (step(action=[0]), "kept green 0 by SA101 version 7"),
        (
            step(action=[1], scores=[0.1, 0.9]),
            "chose green 1 (rG) by SA101 version 7: probability 0.9 is the highest of 2, next best green 0 with 0.1",
        ),
        (
            step(action=[1], states=[states("yr"), states("rG", at_s=29409)]),
            "chose green 1 (rG) by SA101 version 7; the safety rules permitted yellow after green 0, green 1 at 08:10:09",
        ),
        (
            step(T.HOLD, error="DeadlineExceeded", failure="DeadlineExceeded: 500 ms"),
            "got no answer (DeadlineExceeded: 500 ms); control mode policy -> hold",
        ),
        (
            step(T.FALLBACK, mode_before=T.FALLBACK, failure="the answer is not finite"),
            "got an invalid answer by SA101 version 7 (the answer is not finite); control mode fallback",
        ),
        (
            step(T.RECOVERING, mode_before=T.FALLBACK, action=[1]),
            "would have chosen green 1 (rG) by SA101 version 7; not followed in this control mode; "
            "control mode fallback -> recovering",
        ),
        (
            step(
                action=[1],
                states=[
                    states(
                        "Gr",
                        requested=["yr"],
                        overrides=[record.Override(signal="A0", reason=T.MIN_GREEN, requested="yr")],
                    )
                ],
            ),
            "chose green 1 (rG) by SA101 version 7; the safety rules permitted green 0; not yellow after green 0: a green has not reached its min green "
            "(min_green)",
        ),
        (
            step(
                action=[0], states=[states("Gr", requested=[], commands=[record.Command(signal="A0", program="day")])]
            ),
            "kept green 0 by SA101 version 7; A0 handed to its program day",
        ),
    ],
)
def test_sentence_says_what_was_chosen_and_permitted_and_why_not(tl_step, text):
    assert sentence(contract(), tl_step) == SEEN + text


def test_choice_before_the_min_green_has_passed_is_ignored():
    text = sentence(contract(), step(action=[1], min_green_passed=False))
    assert "current green 0 (Gr), min green not passed; saw " in text
    assert text.endswith("by SA101 version 7; ignored until its min green has passed")


def test_lanes_with_the_longest_queues_are_named():
    many = contract(lanes=[f"l{k}" for k in range(7)])
    text = sentence(many, step(observation=[1, 0, 1, *(k / 10 for k in range(7))], action=[0]))
    assert "saw queues on 60% of l6, 50% of l5, 40% of l4, 30% of l3 and 2 more; " in text
    assert "saw no queues; " in sentence(contract(), step(observation=[1, 0, 1, 0, 0], action=[0]))
    of_density = contract()
    for feature in of_density.observation.features[3:]:
        feature.kind = "density"
    assert "saw vehicles on 25% of n; " in sentence(of_density, step(action=[0]))


def test_values_of_q_networks_are_not_called_probabilities():
    of_values = contract()
    of_values.action.scores = "q_values"
    text = sentence(of_values, step(action=[1], scores=[-4, -3]))
    assert "chose green 1 (rG) by SA101 version 7: value -3 is the highest of 2, next best green 0 with -4" in text


def test_a_choice_below_another_score_is_not_called_the_highest():
    text = sentence(contract(), step(action=[1], scores=[0.7, 0.3]))
    assert "chose green 1 (rG) by SA101 version 7: probability 0.3 below green 0 with 0.7" in text


def test_greens_and_states_are_named_by_their_movements():
    groups = (
        MovementGroup("northbound through", "northbound", "through", 0.0, (0,), ("n",)),
        MovementGroup("eastbound left", "eastbound", "left", 90.0, (1,)),
    )
    override = record.Override(signal="A0", reason=T.MIN_GREEN, requested="yr")
    of_second = states("Gr", requested=["yr"], overrides=[override])
    text = sentence(contract(), step(action=[1], states=[of_second]), "", {"A0": MovementNames(groups)})
    assert text == (
        "08:10:05 SA101: current green 0 (northbound through); saw queues on 25% of northbound through; chose green 1 "
        "(eastbound left) by SA101 version 7; the safety rules permitted green 0; not yellow after green 0: a green has not reached its "
        "min green (min_green)"
    )


def test_keep_or_change_is_said_by_signal():
    group = contract(kind="kc", signals=("A0", "A1"))
    text = sentence(group, step(action=[0.7, -0.1], phases=[0, 0], states=[states("Gr", "rG")]))
    assert "SA101: current phase 0 (Gr) of A0, phase 0 (Gr) of A1; saw " in text
    assert "chose change A0 (0.7 >= 0.2), keep A1 (-0.1 < 0.2) by" in text
    assert text.endswith("; the safety rules permitted A0 Gr, A1 rG")


def test_plan_actions_are_said_by_their_kind():
    assert "chose gro 0.5, -0.25 by" in sentence(contract(kind="gro"), step(action=[0.5, -0.25]))


def test_driver_in_the_place_of_the_policies_is_named():
    text = sentence(contract(), step(error="MissingAnswer", model=""), "max-pressure")
    assert text == "08:10:05 SA101: saw queues on 25% of n; max-pressure decided"


def test_features_of_a_dialect_of_the_users_own_are_named_by_their_kind():
    own = contract()
    for feature in own.observation.features[3:]:
        feature.kind = "radar"
    assert "features radar of n 0.25; " in sentence(own, step(action=[0]))


def test_sentences_of_a_run_are_lines_of_text(recorded_city):
    contracts = {each.tl: each for each in recorded_city.start.contracts}
    texts = {
        tl: [sentence(contracts[tl], tl_steps[tl]) for _, tl_steps, _ in recorded_city.steps if tl in tl_steps]
        for tl in contracts
    }
    assert any(" vehicles " in text and " halting, longest wait " in text for text in texts[STREET_TL])
    assert any("density relative to the fullest lane" in text for text in texts["SA103"])
    assert any("volume per density relative to the fullest lane" in text for text in texts["SA107"])
    assert any("control mode policy -> hold" in text for text in texts[SILENT_TL])
    assert all(text.isprintable() and len(text) < 1500 for each in texts.values() for text in each)


FLOATS = st.floats(width=32)
DECISIONS = st.builds(
    record.Decision,
    mode_before=st.integers(0, 9),
    observation=st.lists(FLOATS, max_size=6),
    phases=st.lists(st.integers(-3, 3), max_size=3),
    action=st.lists(st.floats(), max_size=3),
    scores=st.lists(FLOATS, max_size=3),
    model=st.text(max_size=5),
    version=st.integers(-(1 << 63), (1 << 63) - 1),
    error=st.text(max_size=5),
    failure=st.text(max_size=5),
)
STATES = st.builds(
    record.States,
    at_s=st.floats(),
    requested=st.lists(st.text(max_size=3), max_size=3),
    permitted=st.lists(st.text(max_size=3), max_size=3),
    commands=st.lists(st.builds(record.Command, signal=st.text(max_size=3), program=st.text(max_size=3)), max_size=2),
    overrides=st.lists(st.builds(record.Override, signal=st.text(max_size=3), reason=st.integers(0, 99)), max_size=2),
)


@given(
    kind=st.sampled_from(["categorical", "kc", "gr", ""]),
    tl_step=st.builds(
        T, at_s=st.floats(), mode=st.integers(0, 9), decision=DECISIONS, states=st.lists(STATES, max_size=3)
    ),
)
def test_any_message_makes_a_line_of_text(kind, tl_step):
    text = sentence(contract(kind=kind), tl_step)
    assert text.isprintable() and "saw " in text
