from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTlsRequest(_message.Message):
    __slots__ = ("tls",)
    TLS_FIELD_NUMBER: _ClassVar[int]
    tls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tls: _Optional[_Iterable[str]] = ...) -> None: ...

class ControllerState(_message.Message):
    __slots__ = ("run", "tls", "commands", "rollouts")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    tls: _containers.RepeatedCompositeFieldContainer[TlState]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    rollouts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., tls: _Optional[_Iterable[_Union[TlState, _Mapping]]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., rollouts: _Optional[_Iterable[str]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("second", "is_paused", "speed", "step_until_s", "lateness_s", "late_steps", "lost_s", "policy", "sumo")
    SECOND_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    STEP_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    LATENESS_S_FIELD_NUMBER: _ClassVar[int]
    LATE_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SUMO_FIELD_NUMBER: _ClassVar[int]
    second: float
    is_paused: bool
    speed: float
    step_until_s: float
    lateness_s: float
    late_steps: int
    lost_s: float
    policy: str
    sumo: str
    def __init__(self, second: _Optional[float] = ..., is_paused: _Optional[bool] = ..., speed: _Optional[float] = ..., step_until_s: _Optional[float] = ..., lateness_s: _Optional[float] = ..., late_steps: _Optional[int] = ..., lost_s: _Optional[float] = ..., policy: _Optional[str] = ..., sumo: _Optional[str] = ...) -> None: ...

class TlState(_message.Message):
    __slots__ = ("tl", "mode", "since_s", "set_by", "until_s", "model", "version", "pinned_version", "pinned_by", "signals", "shown", "reason", "decided_s", "shown_names", "set_reason", "pinned_for_s")
    TL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_BY_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_S_FIELD_NUMBER: _ClassVar[int]
    SHOWN_NAMES_FIELD_NUMBER: _ClassVar[int]
    SET_REASON_FIELD_NUMBER: _ClassVar[int]
    PINNED_FOR_S_FIELD_NUMBER: _ClassVar[int]
    tl: str
    mode: str
    since_s: float
    set_by: str
    until_s: float
    model: str
    version: int
    pinned_version: int
    pinned_by: str
    signals: _containers.RepeatedScalarFieldContainer[str]
    shown: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    decided_s: float
    shown_names: _containers.RepeatedScalarFieldContainer[str]
    set_reason: str
    pinned_for_s: float
    def __init__(self, tl: _Optional[str] = ..., mode: _Optional[str] = ..., since_s: _Optional[float] = ..., set_by: _Optional[str] = ..., until_s: _Optional[float] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., pinned_version: _Optional[int] = ..., pinned_by: _Optional[str] = ..., signals: _Optional[_Iterable[str]] = ..., shown: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., decided_s: _Optional[float] = ..., shown_names: _Optional[_Iterable[str]] = ..., set_reason: _Optional[str] = ..., pinned_for_s: _Optional[float] = ...) -> None: ...

class TlStates(_message.Message):
    __slots__ = ("run", "tls")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    tls: _containers.RepeatedCompositeFieldContainer[TlState]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., tls: _Optional[_Iterable[_Union[TlState, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("number", "at_s", "action", "target", "value", "author", "reason", "unix_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    action: str
    target: str
    value: str
    author: str
    reason: str
    unix_s: float
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., action: _Optional[str] = ..., target: _Optional[str] = ..., value: _Optional[str] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., unix_s: _Optional[float] = ...) -> None: ...

class WatchDecisionsRequest(_message.Message):
    __slots__ = ("min_interval_s",)
    MIN_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    min_interval_s: float
    def __init__(self, min_interval_s: _Optional[float] = ...) -> None: ...

class Decisions(_message.Message):
    __slots__ = ("sequence", "run", "decisions", "commands", "active_alarms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ALARMS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    run: Run
    decisions: _containers.RepeatedCompositeFieldContainer[TlDecision]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    active_alarms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence: _Optional[int] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[TlDecision, _Mapping]]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., active_alarms: _Optional[_Iterable[str]] = ...) -> None: ...

class TlDecision(_message.Message):
    __slots__ = ("tl", "at_s", "mode", "model", "version", "action", "failure")
    TL_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    tl: str
    at_s: float
    mode: str
    model: str
    version: int
    action: _containers.RepeatedScalarFieldContainer[float]
    failure: str
    def __init__(self, tl: _Optional[str] = ..., at_s: _Optional[float] = ..., mode: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., action: _Optional[_Iterable[float]] = ..., failure: _Optional[str] = ...) -> None: ...

class SetModeRequest(_message.Message):
    __slots__ = ("tls", "mode", "author", "for_seconds", "reason")
    TLS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    FOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tls: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    author: str
    for_seconds: float
    reason: str
    def __init__(self, tls: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ..., author: _Optional[str] = ..., for_seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class PinModelRequest(_message.Message):
    __slots__ = ("tl", "version", "author", "for_seconds", "then_version")
    TL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    FOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    THEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    tl: str
    version: str
    author: str
    for_seconds: float
    then_version: str
    def __init__(self, tl: _Optional[str] = ..., version: _Optional[str] = ..., author: _Optional[str] = ..., for_seconds: _Optional[float] = ..., then_version: _Optional[str] = ...) -> None: ...

class ReloadContractsRequest(_message.Message):
    __slots__ = ("author",)
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    author: str
    def __init__(self, author: _Optional[str] = ...) -> None: ...

class ReloadContractsResponse(_message.Message):
    __slots__ = ("run", "compared", "changed", "failed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    run: Run
    compared: int
    changed: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., compared: _Optional[int] = ..., changed: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[str]] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("author",)
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    author: str
    def __init__(self, author: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("author",)
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    author: str
    def __init__(self, author: _Optional[str] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("until_s", "author")
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    until_s: float
    author: str
    def __init__(self, until_s: _Optional[float] = ..., author: _Optional[str] = ...) -> None: ...

class SetSpeedRequest(_message.Message):
    __slots__ = ("factor", "author")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    factor: float
    author: str
    def __init__(self, factor: _Optional[float] = ..., author: _Optional[str] = ...) -> None: ...

class ListAlarmsRequest(_message.Message):
    __slots__ = ("with_ended",)
    WITH_ENDED_FIELD_NUMBER: _ClassVar[int]
    with_ended: bool
    def __init__(self, with_ended: _Optional[bool] = ...) -> None: ...

class Alarms(_message.Message):
    __slots__ = ("run", "alarms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    alarms: _containers.RepeatedCompositeFieldContainer[Alarm]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., alarms: _Optional[_Iterable[_Union[Alarm, _Mapping]]] = ...) -> None: ...

class Alarm(_message.Message):
    __slots__ = ("id", "name", "severity", "since_s", "since_unix_s", "last_s", "count", "subjects", "subject_count", "text", "runbook", "is_active", "ended_s", "acknowledged_by", "acknowledged_s", "remedy", "instructions", "consequence_of")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    LAST_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RUNBOOK_FIELD_NUMBER: _ClassVar[int]
    IS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_S_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    CONSEQUENCE_OF_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    severity: str
    since_s: float
    since_unix_s: float
    last_s: float
    count: int
    subjects: _containers.RepeatedScalarFieldContainer[str]
    subject_count: int
    text: str
    runbook: str
    is_active: bool
    ended_s: float
    acknowledged_by: str
    acknowledged_s: float
    remedy: str
    instructions: str
    consequence_of: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., severity: _Optional[str] = ..., since_s: _Optional[float] = ..., since_unix_s: _Optional[float] = ..., last_s: _Optional[float] = ..., count: _Optional[int] = ..., subjects: _Optional[_Iterable[str]] = ..., subject_count: _Optional[int] = ..., text: _Optional[str] = ..., runbook: _Optional[str] = ..., is_active: _Optional[bool] = ..., ended_s: _Optional[float] = ..., acknowledged_by: _Optional[str] = ..., acknowledged_s: _Optional[float] = ..., remedy: _Optional[str] = ..., instructions: _Optional[str] = ..., consequence_of: _Optional[str] = ...) -> None: ...

class AcknowledgeAlarmRequest(_message.Message):
    __slots__ = ("id", "author")
    ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    author: str
    def __init__(self, id: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class ListCommandsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Commands(_message.Message):
    __slots__ = ("run", "commands")
    RUN_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...
