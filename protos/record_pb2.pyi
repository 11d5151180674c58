from protos import policy_pb2 as _policy_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class City(_message.Message):
    __slots__ = ("greenserve_version", "run", "file_number", "begin_unix_ns", "begin_s", "sumo_step_s", "has_traffic", "driver", "safety", "controller", "contracts", "signals", "lanes", "network_begin_s", "network_files", "phases", "detectors")
    GREENSERVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FILE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    SUMO_STEP_S_FIELD_NUMBER: _ClassVar[int]
    HAS_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    CONTRACTS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FILES_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    DETECTORS_FIELD_NUMBER: _ClassVar[int]
    greenserve_version: str
    run: str
    file_number: int
    begin_unix_ns: int
    begin_s: float
    sumo_step_s: float
    has_traffic: bool
    driver: str
    safety: str
    controller: str
    contracts: _containers.RepeatedCompositeFieldContainer[_policy_pb2.PolicyContract]
    signals: _containers.RepeatedCompositeFieldContainer[RunningSignal]
    lanes: _containers.RepeatedScalarFieldContainer[str]
    network_begin_s: float
    network_files: _containers.RepeatedScalarFieldContainer[str]
    phases: str
    detectors: _containers.RepeatedCompositeFieldContainer[Detector]
    def __init__(self, greenserve_version: _Optional[str] = ..., run: _Optional[str] = ..., file_number: _Optional[int] = ..., begin_unix_ns: _Optional[int] = ..., begin_s: _Optional[float] = ..., sumo_step_s: _Optional[float] = ..., has_traffic: _Optional[bool] = ..., driver: _Optional[str] = ..., safety: _Optional[str] = ..., controller: _Optional[str] = ..., contracts: _Optional[_Iterable[_Union[_policy_pb2.PolicyContract, _Mapping]]] = ..., signals: _Optional[_Iterable[_Union[RunningSignal, _Mapping]]] = ..., lanes: _Optional[_Iterable[str]] = ..., network_begin_s: _Optional[float] = ..., network_files: _Optional[_Iterable[str]] = ..., phases: _Optional[str] = ..., detectors: _Optional[_Iterable[_Union[Detector, _Mapping]]] = ...) -> None: ...

class Detector(_message.Message):
    __slots__ = ("id", "signal", "function", "stop_lane")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    STOP_LANE_FIELD_NUMBER: _ClassVar[int]
    id: str
    signal: str
    function: str
    stop_lane: str
    def __init__(self, id: _Optional[str] = ..., signal: _Optional[str] = ..., function: _Optional[str] = ..., stop_lane: _Optional[str] = ...) -> None: ...

class RunningSignal(_message.Message):
    __slots__ = ("id", "shown", "fallback_program", "programs", "movements", "state_names")
    class StateNamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    MOVEMENTS_FIELD_NUMBER: _ClassVar[int]
    STATE_NAMES_FIELD_NUMBER: _ClassVar[int]
    id: str
    shown: str
    fallback_program: str
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    movements: _containers.RepeatedCompositeFieldContainer[MovementGroup]
    state_names: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., shown: _Optional[str] = ..., fallback_program: _Optional[str] = ..., programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., movements: _Optional[_Iterable[_Union[MovementGroup, _Mapping]]] = ..., state_names: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MovementGroup(_message.Message):
    __slots__ = ("name", "approach", "kind", "heading_deg", "links", "lanes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADING_DEG_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    name: str
    approach: str
    kind: str
    heading_deg: float
    links: _containers.RepeatedScalarFieldContainer[int]
    lanes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., approach: _Optional[str] = ..., kind: _Optional[str] = ..., heading_deg: _Optional[float] = ..., links: _Optional[_Iterable[int]] = ..., lanes: _Optional[_Iterable[str]] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("id", "type", "offset_s", "phases")
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: str
    offset_s: int
    phases: _containers.RepeatedCompositeFieldContainer[_policy_pb2.Phase]
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., offset_s: _Optional[int] = ..., phases: _Optional[_Iterable[_Union[_policy_pb2.Phase, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "at_s", "due", "readings", "shown", "alarms", "rejections", "frozen", "times", "commands", "actions", "detectors")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DETECTORS_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    due: _containers.RepeatedScalarFieldContainer[int]
    readings: Readings
    shown: _containers.RepeatedCompositeFieldContainer[Shown]
    alarms: _containers.RepeatedCompositeFieldContainer[Alarm]
    rejections: _containers.RepeatedCompositeFieldContainer[Rejection]
    frozen: _containers.RepeatedScalarFieldContainer[str]
    times: Times
    commands: _containers.RepeatedCompositeFieldContainer[OperatorCommand]
    actions: _containers.RepeatedCompositeFieldContainer[OperatorAction]
    detectors: DetectorChanges
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., due: _Optional[_Iterable[int]] = ..., readings: _Optional[_Union[Readings, _Mapping]] = ..., shown: _Optional[_Iterable[_Union[Shown, _Mapping]]] = ..., alarms: _Optional[_Iterable[_Union[Alarm, _Mapping]]] = ..., rejections: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ..., frozen: _Optional[_Iterable[str]] = ..., times: _Optional[_Union[Times, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[OperatorCommand, _Mapping]]] = ..., actions: _Optional[_Iterable[_Union[OperatorAction, _Mapping]]] = ..., detectors: _Optional[_Union[DetectorChanges, _Mapping]] = ...) -> None: ...

class DetectorChanges(_message.Message):
    __slots__ = ("detector", "time_s", "is_entry")
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    IS_ENTRY_FIELD_NUMBER: _ClassVar[int]
    detector: _containers.RepeatedScalarFieldContainer[int]
    time_s: _containers.RepeatedScalarFieldContainer[float]
    is_entry: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, detector: _Optional[_Iterable[int]] = ..., time_s: _Optional[_Iterable[float]] = ..., is_entry: _Optional[_Iterable[bool]] = ...) -> None: ...

class OperatorCommand(_message.Message):
    __slots__ = ("tl", "wanted", "author", "mode_before", "mode", "reason")
    TL_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    MODE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tl: str
    wanted: str
    author: str
    mode_before: TlStep.ControlMode
    mode: TlStep.ControlMode
    reason: str
    def __init__(self, tl: _Optional[str] = ..., wanted: _Optional[str] = ..., author: _Optional[str] = ..., mode_before: _Optional[_Union[TlStep.ControlMode, str]] = ..., mode: _Optional[_Union[TlStep.ControlMode, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class OperatorAction(_message.Message):
    __slots__ = ("action", "target", "value", "author")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    action: str
    target: str
    value: str
    author: str
    def __init__(self, action: _Optional[str] = ..., target: _Optional[str] = ..., value: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("vehicles", "halting", "mean_length_m", "outflow", "vehicle_lane", "position_m", "speed_mps", "waiting_s")
    VEHICLES_FIELD_NUMBER: _ClassVar[int]
    HALTING_FIELD_NUMBER: _ClassVar[int]
    MEAN_LENGTH_M_FIELD_NUMBER: _ClassVar[int]
    OUTFLOW_FIELD_NUMBER: _ClassVar[int]
    VEHICLE_LANE_FIELD_NUMBER: _ClassVar[int]
    POSITION_M_FIELD_NUMBER: _ClassVar[int]
    SPEED_MPS_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    vehicles: _containers.RepeatedScalarFieldContainer[int]
    halting: _containers.RepeatedScalarFieldContainer[int]
    mean_length_m: _containers.RepeatedScalarFieldContainer[float]
    outflow: _containers.RepeatedScalarFieldContainer[int]
    vehicle_lane: _containers.RepeatedScalarFieldContainer[int]
    position_m: _containers.RepeatedScalarFieldContainer[float]
    speed_mps: _containers.RepeatedScalarFieldContainer[float]
    waiting_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, vehicles: _Optional[_Iterable[int]] = ..., halting: _Optional[_Iterable[int]] = ..., mean_length_m: _Optional[_Iterable[float]] = ..., outflow: _Optional[_Iterable[int]] = ..., vehicle_lane: _Optional[_Iterable[int]] = ..., position_m: _Optional[_Iterable[float]] = ..., speed_mps: _Optional[_Iterable[float]] = ..., waiting_s: _Optional[_Iterable[float]] = ...) -> None: ...

class Shown(_message.Message):
    __slots__ = ("begin_s", "end_s", "states")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    end_s: float
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, begin_s: _Optional[float] = ..., end_s: _Optional[float] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class Alarm(_message.Message):
    __slots__ = ("signal", "rule", "at_s", "message")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    signal: str
    rule: str
    at_s: float
    message: str
    def __init__(self, signal: _Optional[str] = ..., rule: _Optional[str] = ..., at_s: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("signal", "reason")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    signal: str
    reason: str
    def __init__(self, signal: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Times(_message.Message):
    __slots__ = ("sumo_s", "observe_s", "inference_s", "apply_s")
    SUMO_S_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_S_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    APPLY_S_FIELD_NUMBER: _ClassVar[int]
    sumo_s: float
    observe_s: float
    inference_s: float
    apply_s: float
    def __init__(self, sumo_s: _Optional[float] = ..., observe_s: _Optional[float] = ..., inference_s: _Optional[float] = ..., apply_s: _Optional[float] = ...) -> None: ...

class TlStep(_message.Message):
    __slots__ = ("number", "at_s", "mode", "override", "decision", "states")
    class ControlMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        POLICY: _ClassVar[TlStep.ControlMode]
        HOLD: _ClassVar[TlStep.ControlMode]
        FALLBACK: _ClassVar[TlStep.ControlMode]
        RECOVERING: _ClassVar[TlStep.ControlMode]
        FIXED: _ClassVar[TlStep.ControlMode]
    POLICY: TlStep.ControlMode
    HOLD: TlStep.ControlMode
    FALLBACK: TlStep.ControlMode
    RECOVERING: TlStep.ControlMode
    FIXED: TlStep.ControlMode
    class OverrideReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[TlStep.OverrideReason]
        MALFORMED: _ClassVar[TlStep.OverrideReason]
        CONFLICT: _ClassVar[TlStep.OverrideReason]
        MIN_GREEN: _ClassVar[TlStep.OverrideReason]
        YELLOW: _ClassVar[TlStep.OverrideReason]
        CLEARANCE: _ClassVar[TlStep.OverrideReason]
        MAX_GREEN: _ClassVar[TlStep.OverrideReason]
        MAX_RED: _ClassVar[TlStep.OverrideReason]
    NONE: TlStep.OverrideReason
    MALFORMED: TlStep.OverrideReason
    CONFLICT: TlStep.OverrideReason
    MIN_GREEN: TlStep.OverrideReason
    YELLOW: TlStep.OverrideReason
    CLEARANCE: TlStep.OverrideReason
    MAX_GREEN: TlStep.OverrideReason
    MAX_RED: TlStep.OverrideReason
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    mode: TlStep.ControlMode
    override: TlStep.OverrideReason
    decision: Decision
    states: _containers.RepeatedCompositeFieldContainer[States]
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., mode: _Optional[_Union[TlStep.ControlMode, str]] = ..., override: _Optional[_Union[TlStep.OverrideReason, str]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., states: _Optional[_Iterable[_Union[States, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("mode_before", "observation", "phases", "min_green_passed", "green_s", "since_green_s", "action", "scores", "model", "version", "error", "error_text", "failure")
    MODE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    MIN_GREEN_PASSED_FIELD_NUMBER: _ClassVar[int]
    GREEN_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_GREEN_S_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    mode_before: TlStep.ControlMode
    observation: _containers.RepeatedScalarFieldContainer[float]
    phases: _containers.RepeatedScalarFieldContainer[int]
    min_green_passed: bool
    green_s: float
    since_green_s: _containers.RepeatedScalarFieldContainer[float]
    action: _containers.RepeatedScalarFieldContainer[float]
    scores: _containers.RepeatedScalarFieldContainer[float]
    model: str
    version: int
    error: str
    error_text: str
    failure: str
    def __init__(self, mode_before: _Optional[_Union[TlStep.ControlMode, str]] = ..., observation: _Optional[_Iterable[float]] = ..., phases: _Optional[_Iterable[int]] = ..., min_green_passed: _Optional[bool] = ..., green_s: _Optional[float] = ..., since_green_s: _Optional[_Iterable[float]] = ..., action: _Optional[_Iterable[float]] = ..., scores: _Optional[_Iterable[float]] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., error: _Optional[str] = ..., error_text: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class States(_message.Message):
    __slots__ = ("at_s", "requested", "permitted", "commands", "overrides")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    requested: _containers.RepeatedScalarFieldContainer[str]
    permitted: _containers.RepeatedScalarFieldContainer[str]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    def __init__(self, at_s: _Optional[float] = ..., requested: _Optional[_Iterable[str]] = ..., permitted: _Optional[_Iterable[str]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("signal", "state", "program", "phase", "remaining_s")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    signal: str
    state: str
    program: str
    phase: int
    remaining_s: float
    def __init__(self, signal: _Optional[str] = ..., state: _Optional[str] = ..., program: _Optional[str] = ..., phase: _Optional[int] = ..., remaining_s: _Optional[float] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("signal", "reason", "requested", "permitted")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_FIELD_NUMBER: _ClassVar[int]
    signal: str
    reason: TlStep.OverrideReason
    requested: str
    permitted: str
    def __init__(self, signal: _Optional[str] = ..., reason: _Optional[_Union[TlStep.OverrideReason, str]] = ..., requested: _Optional[str] = ..., permitted: _Optional[str] = ...) -> None: ...
