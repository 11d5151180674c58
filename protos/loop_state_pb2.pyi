from protos import record_pb2 as _record_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoopState(_message.Message):
    __slots__ = ("next_number", "now_s", "is_releasing", "released_at_s", "tls", "monitors")
    class ReleasedAtSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    IS_RELEASING_FIELD_NUMBER: _ClassVar[int]
    RELEASED_AT_S_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    MONITORS_FIELD_NUMBER: _ClassVar[int]
    next_number: int
    now_s: float
    is_releasing: bool
    released_at_s: _containers.ScalarMap[str, float]
    tls: _containers.RepeatedCompositeFieldContainer[TlState]
    monitors: _containers.RepeatedCompositeFieldContainer[MonitorState]
    def __init__(self, next_number: _Optional[int] = ..., now_s: _Optional[float] = ..., is_releasing: _Optional[bool] = ..., released_at_s: _Optional[_Mapping[str, float]] = ..., tls: _Optional[_Iterable[_Union[TlState, _Mapping]]] = ..., monitors: _Optional[_Iterable[_Union[MonitorState, _Mapping]]] = ...) -> None: ...

class TlState(_message.Message):
    __slots__ = ("mode", "mode_since_s", "good_answers", "by_operator", "next_decision_s", "due_s", "source", "requested", "is_on_fallback_plan", "enter_plan_by_s", "observer", "sequencer", "max_pressure", "driver", "signals")
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        POLICY: _ClassVar[TlState.Source]
        MAX_PRESSURE: _ClassVar[TlState.Source]
        DRIVER: _ClassVar[TlState.Source]
    POLICY: TlState.Source
    MAX_PRESSURE: TlState.Source
    DRIVER: TlState.Source
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_SINCE_S_FIELD_NUMBER: _ClassVar[int]
    GOOD_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    BY_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    NEXT_DECISION_S_FIELD_NUMBER: _ClassVar[int]
    DUE_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    IS_ON_FALLBACK_PLAN_FIELD_NUMBER: _ClassVar[int]
    ENTER_PLAN_BY_S_FIELD_NUMBER: _ClassVar[int]
    OBSERVER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCER_FIELD_NUMBER: _ClassVar[int]
    MAX_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    mode: _record_pb2.TlStep.ControlMode
    mode_since_s: float
    good_answers: int
    by_operator: bool
    next_decision_s: float
    due_s: float
    source: TlState.Source
    requested: _containers.RepeatedScalarFieldContainer[str]
    is_on_fallback_plan: bool
    enter_plan_by_s: float
    observer: ObserverState
    sequencer: SequencerState
    max_pressure: ScoredGreensState
    driver: ScoredGreensState
    signals: _containers.RepeatedCompositeFieldContainer[SignalState]
    def __init__(self, mode: _Optional[_Union[_record_pb2.TlStep.ControlMode, str]] = ..., mode_since_s: _Optional[float] = ..., good_answers: _Optional[int] = ..., by_operator: _Optional[bool] = ..., next_decision_s: _Optional[float] = ..., due_s: _Optional[float] = ..., source: _Optional[_Union[TlState.Source, str]] = ..., requested: _Optional[_Iterable[str]] = ..., is_on_fallback_plan: _Optional[bool] = ..., enter_plan_by_s: _Optional[float] = ..., observer: _Optional[_Union[ObserverState, _Mapping]] = ..., sequencer: _Optional[_Union[SequencerState, _Mapping]] = ..., max_pressure: _Optional[_Union[ScoredGreensState, _Mapping]] = ..., driver: _Optional[_Union[ScoredGreensState, _Mapping]] = ..., signals: _Optional[_Iterable[_Union[SignalState, _Mapping]]] = ...) -> None: ...

class ObserverState(_message.Message):
    __slots__ = ("outflow_before",)
    OUTFLOW_BEFORE_FIELD_NUMBER: _ClassVar[int]
    outflow_before: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, outflow_before: _Optional[_Iterable[float]] = ...) -> None: ...

class SequencerState(_message.Message):
    __slots__ = ("green_phases", "keep_change", "plans")
    GREEN_PHASES_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHANGE_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    green_phases: GreenPhasesState
    keep_change: KeepChangeState
    plans: PlansState
    def __init__(self, green_phases: _Optional[_Union[GreenPhasesState, _Mapping]] = ..., keep_change: _Optional[_Union[KeepChangeState, _Mapping]] = ..., plans: _Optional[_Union[PlansState, _Mapping]] = ...) -> None: ...

class GreenPhasesState(_message.Message):
    __slots__ = ("begin_s", "green", "yellow", "yellow_end_s", "green_from_s", "awaits_green_until_s", "change_allowed_s", "left_s", "shown_s")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    GREEN_FIELD_NUMBER: _ClassVar[int]
    YELLOW_FIELD_NUMBER: _ClassVar[int]
    YELLOW_END_S_FIELD_NUMBER: _ClassVar[int]
    GREEN_FROM_S_FIELD_NUMBER: _ClassVar[int]
    AWAITS_GREEN_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ALLOWED_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    SHOWN_S_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    green: int
    yellow: str
    yellow_end_s: float
    green_from_s: float
    awaits_green_until_s: float
    change_allowed_s: float
    left_s: _containers.RepeatedScalarFieldContainer[float]
    shown_s: float
    def __init__(self, begin_s: _Optional[float] = ..., green: _Optional[int] = ..., yellow: _Optional[str] = ..., yellow_end_s: _Optional[float] = ..., green_from_s: _Optional[float] = ..., awaits_green_until_s: _Optional[float] = ..., change_allowed_s: _Optional[float] = ..., left_s: _Optional[_Iterable[float]] = ..., shown_s: _Optional[float] = ...) -> None: ...

class KeepChangeState(_message.Message):
    __slots__ = ("begin_s", "phases", "green_from_s")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    GREEN_FROM_S_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    phases: _containers.RepeatedScalarFieldContainer[int]
    green_from_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, begin_s: _Optional[float] = ..., phases: _Optional[_Iterable[int]] = ..., green_from_s: _Optional[_Iterable[float]] = ...) -> None: ...

class PlansState(_message.Message):
    __slots__ = ("due_s", "plans")
    class Plan(_message.Message):
        __slots__ = ("phase_by_second",)
        PHASE_BY_SECOND_FIELD_NUMBER: _ClassVar[int]
        phase_by_second: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, phase_by_second: _Optional[_Iterable[int]] = ...) -> None: ...
    DUE_S_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    due_s: float
    plans: _containers.RepeatedCompositeFieldContainer[PlansState.Plan]
    def __init__(self, due_s: _Optional[float] = ..., plans: _Optional[_Iterable[_Union[PlansState.Plan, _Mapping]]] = ...) -> None: ...

class ScoredGreensState(_message.Message):
    __slots__ = ("next_decision_s", "signals")
    class Signal(_message.Message):
        __slots__ = ("sequencer", "served_s", "tried", "halting")
        SEQUENCER_FIELD_NUMBER: _ClassVar[int]
        SERVED_S_FIELD_NUMBER: _ClassVar[int]
        TRIED_FIELD_NUMBER: _ClassVar[int]
        HALTING_FIELD_NUMBER: _ClassVar[int]
        sequencer: SequencerState
        served_s: _containers.RepeatedScalarFieldContainer[float]
        tried: _containers.RepeatedScalarFieldContainer[bool]
        halting: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, sequencer: _Optional[_Union[SequencerState, _Mapping]] = ..., served_s: _Optional[_Iterable[float]] = ..., tried: _Optional[_Iterable[bool]] = ..., halting: _Optional[_Iterable[float]] = ...) -> None: ...
    NEXT_DECISION_S_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    next_decision_s: float
    signals: _containers.RepeatedCompositeFieldContainer[ScoredGreensState.Signal]
    def __init__(self, next_decision_s: _Optional[float] = ..., signals: _Optional[_Iterable[_Union[ScoredGreensState.Signal, _Mapping]]] = ...) -> None: ...

class SignalState(_message.Message):
    __slots__ = ("shown", "since_s", "waiting_since_s", "bound_exceeded_at_s", "forced", "forced_reason", "reported_request", "reported", "is_sent", "is_release_sent", "is_release_confirmed", "unprotected_since_s")
    class UnprotectedSinceSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_S_FIELD_NUMBER: _ClassVar[int]
    BOUND_EXCEEDED_AT_S_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    FORCED_REASON_FIELD_NUMBER: _ClassVar[int]
    REPORTED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    IS_SENT_FIELD_NUMBER: _ClassVar[int]
    IS_RELEASE_SENT_FIELD_NUMBER: _ClassVar[int]
    IS_RELEASE_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_SINCE_S_FIELD_NUMBER: _ClassVar[int]
    shown: str
    since_s: _containers.RepeatedScalarFieldContainer[float]
    waiting_since_s: _containers.RepeatedScalarFieldContainer[float]
    bound_exceeded_at_s: float
    forced: str
    forced_reason: _record_pb2.TlStep.OverrideReason
    reported_request: str
    reported: _containers.RepeatedScalarFieldContainer[_record_pb2.TlStep.OverrideReason]
    is_sent: bool
    is_release_sent: bool
    is_release_confirmed: bool
    unprotected_since_s: _containers.ScalarMap[int, float]
    def __init__(self, shown: _Optional[str] = ..., since_s: _Optional[_Iterable[float]] = ..., waiting_since_s: _Optional[_Iterable[float]] = ..., bound_exceeded_at_s: _Optional[float] = ..., forced: _Optional[str] = ..., forced_reason: _Optional[_Union[_record_pb2.TlStep.OverrideReason, str]] = ..., reported_request: _Optional[str] = ..., reported: _Optional[_Iterable[_Union[_record_pb2.TlStep.OverrideReason, str]]] = ..., is_sent: _Optional[bool] = ..., is_release_sent: _Optional[bool] = ..., is_release_confirmed: _Optional[bool] = ..., unprotected_since_s: _Optional[_Mapping[int, float]] = ...) -> None: ...

class MonitorState(_message.Message):
    __slots__ = ("shown", "since_s", "monitored_from_s", "waited_s", "max_waited_s", "reported", "is_controlled", "unprotected_s")
    class UnprotectedSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    MONITORED_FROM_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITED_S_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    IS_CONTROLLED_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_S_FIELD_NUMBER: _ClassVar[int]
    shown: str
    since_s: _containers.RepeatedScalarFieldContainer[float]
    monitored_from_s: float
    waited_s: _containers.RepeatedScalarFieldContainer[float]
    max_waited_s: float
    reported: _containers.RepeatedScalarFieldContainer[int]
    is_controlled: bool
    unprotected_s: _containers.ScalarMap[int, float]
    def __init__(self, shown: _Optional[str] = ..., since_s: _Optional[_Iterable[float]] = ..., monitored_from_s: _Optional[float] = ..., waited_s: _Optional[_Iterable[float]] = ..., max_waited_s: _Optional[float] = ..., reported: _Optional[_Iterable[int]] = ..., is_controlled: _Optional[bool] = ..., unprotected_s: _Optional[_Mapping[int, float]] = ...) -> None: ...
