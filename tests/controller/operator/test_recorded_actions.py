"""Operators' commands in the record."""

from dataclasses import replace
from types import SimpleNamespace

from controller.events import OperatorAction
from controller.recording.messages import Encoder
from controller.sumo.connection import TrackedLanes
from protos import record_pb2
from tests.controller.decision_events import event


def test_actions_are_part_of_the_steps_message():
    lanes = TrackedLanes()
    lanes.track({}, [], {})
    encoder = Encoder(SimpleNamespace(contracts=(), tracked_lanes=lambda: lanes))
    actions = (
        OperatorAction("acknowledge", "GreenserveTLInFallback", "", "ann"),
        OperatorAction("pin", "SA101", "3", "bob"),
    )
    step, _ = encoder.encode(replace(event(10), actions=actions))
    read = record_pb2.Step.FromString(step.SerializeToString())
    assert [(a.action, a.target, a.value, a.author) for a in read.actions] == [tuple(action) for action in actions]
