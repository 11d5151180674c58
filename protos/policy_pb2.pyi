from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyContract(_message.Message):
    __slots__ = ("tl", "signal_ids", "signals", "observation", "action", "timing", "origin", "missing", "members")
    TL_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_IDS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    tl: str
    signal_ids: _containers.RepeatedScalarFieldContainer[str]
    signals: _containers.RepeatedCompositeFieldContainer[Signal]
    observation: Observation
    action: Action
    timing: Timing
    origin: Origin
    missing: _containers.RepeatedScalarFieldContainer[str]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, tl: _Optional[str] = ..., signal_ids: _Optional[_Iterable[str]] = ..., signals: _Optional[_Iterable[_Union[Signal, _Mapping]]] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., missing: _Optional[_Iterable[str]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("tl", "version", "observation_begin", "observation_size", "action_begin", "action_size", "contract", "score_begin", "score_size")
    TL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_BEGIN_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACTION_BEGIN_FIELD_NUMBER: _ClassVar[int]
    ACTION_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    SCORE_BEGIN_FIELD_NUMBER: _ClassVar[int]
    SCORE_SIZE_FIELD_NUMBER: _ClassVar[int]
    tl: str
    version: int
    observation_begin: int
    observation_size: int
    action_begin: int
    action_size: int
    contract: PolicyContract
    score_begin: int
    score_size: int
    def __init__(self, tl: _Optional[str] = ..., version: _Optional[int] = ..., observation_begin: _Optional[int] = ..., observation_size: _Optional[int] = ..., action_begin: _Optional[int] = ..., action_size: _Optional[int] = ..., contract: _Optional[_Union[PolicyContract, _Mapping]] = ..., score_begin: _Optional[int] = ..., score_size: _Optional[int] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("id", "lane_ids", "program_id", "offset_s", "phases", "greens", "approaches", "change_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    LANE_IDS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    GREENS_FIELD_NUMBER: _ClassVar[int]
    APPROACHES_FIELD_NUMBER: _ClassVar[int]
    CHANGE_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    lane_ids: _containers.RepeatedScalarFieldContainer[str]
    program_id: str
    offset_s: int
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    greens: _containers.RepeatedScalarFieldContainer[str]
    approaches: _containers.RepeatedCompositeFieldContainer[Approach]
    change_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[str] = ..., lane_ids: _Optional[_Iterable[str]] = ..., program_id: _Optional[str] = ..., offset_s: _Optional[int] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., greens: _Optional[_Iterable[str]] = ..., approaches: _Optional[_Iterable[_Union[Approach, _Mapping]]] = ..., change_s: _Optional[_Iterable[float]] = ...) -> None: ...

class Approach(_message.Message):
    __slots__ = ("lane_id", "links", "upstream", "exits", "walking_areas")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    EXITS_FIELD_NUMBER: _ClassVar[int]
    WALKING_AREAS_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    links: _containers.RepeatedScalarFieldContainer[int]
    upstream: _containers.RepeatedCompositeFieldContainer[ReadLane]
    exits: _containers.RepeatedCompositeFieldContainer[ReadLane]
    walking_areas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane_id: _Optional[str] = ..., links: _Optional[_Iterable[int]] = ..., upstream: _Optional[_Iterable[_Union[ReadLane, _Mapping]]] = ..., exits: _Optional[_Iterable[_Union[ReadLane, _Mapping]]] = ..., walking_areas: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadLane(_message.Message):
    __slots__ = ("lane_id", "distance_m", "share", "length_m", "limit_mps")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_M_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_M_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MPS_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    distance_m: float
    share: float
    length_m: float
    limit_mps: float
    def __init__(self, lane_id: _Optional[str] = ..., distance_m: _Optional[float] = ..., share: _Optional[float] = ..., length_m: _Optional[float] = ..., limit_mps: _Optional[float] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("state", "duration_s", "min_s", "max_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    MIN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    state: str
    duration_s: float
    min_s: float
    max_s: float
    def __init__(self, state: _Optional[str] = ..., duration_s: _Optional[float] = ..., min_s: _Optional[float] = ..., max_s: _Optional[float] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("dialect", "state", "size", "features", "normalisation", "padded_size")
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    NORMALISATION_FIELD_NUMBER: _ClassVar[int]
    PADDED_SIZE_FIELD_NUMBER: _ClassVar[int]
    dialect: str
    state: str
    size: int
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    normalisation: str
    padded_size: int
    def __init__(self, dialect: _Optional[str] = ..., state: _Optional[str] = ..., size: _Optional[int] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., normalisation: _Optional[str] = ..., padded_size: _Optional[int] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("kind", "signal_id", "lane_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    signal_id: str
    lane_id: str
    def __init__(self, kind: _Optional[str] = ..., signal_id: _Optional[str] = ..., lane_id: _Optional[str] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("kind", "size", "choices", "actionp", "add_time_s", "offset_range", "scores", "padded_size")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    ACTIONP_FIELD_NUMBER: _ClassVar[int]
    ADD_TIME_S_FIELD_NUMBER: _ClassVar[int]
    OFFSET_RANGE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PADDED_SIZE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    size: int
    choices: _containers.RepeatedScalarFieldContainer[int]
    actionp: float
    add_time_s: int
    offset_range: int
    scores: str
    padded_size: int
    def __init__(self, kind: _Optional[str] = ..., size: _Optional[int] = ..., choices: _Optional[_Iterable[int]] = ..., actionp: _Optional[float] = ..., add_time_s: _Optional[int] = ..., offset_range: _Optional[int] = ..., scores: _Optional[str] = ..., padded_size: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("decision_interval_s", "control_cycle", "yellow_s", "all_red_s", "min_green_s", "max_green_s")
    DECISION_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CONTROL_CYCLE_FIELD_NUMBER: _ClassVar[int]
    YELLOW_S_FIELD_NUMBER: _ClassVar[int]
    ALL_RED_S_FIELD_NUMBER: _ClassVar[int]
    MIN_GREEN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_GREEN_S_FIELD_NUMBER: _ClassVar[int]
    decision_interval_s: float
    control_cycle: int
    yellow_s: float
    all_red_s: float
    min_green_s: float
    max_green_s: float
    def __init__(self, decision_interval_s: _Optional[float] = ..., control_cycle: _Optional[int] = ..., yellow_s: _Optional[float] = ..., all_red_s: _Optional[float] = ..., min_green_s: _Optional[float] = ..., max_green_s: _Optional[float] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("source_format", "file_name", "sha256", "model_number", "exporter_version", "tensorflow_version", "exported_at", "change_s")
    SOURCE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MODEL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPORTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_S_FIELD_NUMBER: _ClassVar[int]
    source_format: str
    file_name: str
    sha256: str
    model_number: int
    exporter_version: str
    tensorflow_version: str
    exported_at: str
    change_s: float
    def __init__(self, source_format: _Optional[str] = ..., file_name: _Optional[str] = ..., sha256: _Optional[str] = ..., model_number: _Optional[int] = ..., exporter_version: _Optional[str] = ..., tensorflow_version: _Optional[str] = ..., exported_at: _Optional[str] = ..., change_s: _Optional[float] = ...) -> None: ...
