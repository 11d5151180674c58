from protos import logging_config_pb2 as _logging_config_pb2
from protos import predict_pb2 as _predict_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogMetadata(_message.Message):
    __slots__ = ("model_spec", "sampling_config", "saved_model_tags", "timestamp_secs")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SAVED_MODEL_TAGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_SECS_FIELD_NUMBER: _ClassVar[int]
    model_spec: _predict_pb2.ModelSpec
    sampling_config: _logging_config_pb2.SamplingConfig
    saved_model_tags: _containers.RepeatedScalarFieldContainer[str]
    timestamp_secs: int
    def __init__(self, model_spec: _Optional[_Union[_predict_pb2.ModelSpec, _Mapping]] = ..., sampling_config: _Optional[_Union[_logging_config_pb2.SamplingConfig, _Mapping]] = ..., saved_model_tags: _Optional[_Iterable[str]] = ..., timestamp_secs: _Optional[int] = ...) -> None: ...

class PredictLog(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _predict_pb2.PredictRequest
    response: _predict_pb2.PredictResponse
    def __init__(self, request: _Optional[_Union[_predict_pb2.PredictRequest, _Mapping]] = ..., response: _Optional[_Union[_predict_pb2.PredictResponse, _Mapping]] = ...) -> None: ...

class PredictionLog(_message.Message):
    __slots__ = ("log_metadata", "predict_log")
    LOG_METADATA_FIELD_NUMBER: _ClassVar[int]
    PREDICT_LOG_FIELD_NUMBER: _ClassVar[int]
    log_metadata: LogMetadata
    predict_log: PredictLog
    def __init__(self, log_metadata: _Optional[_Union[LogMetadata, _Mapping]] = ..., predict_log: _Optional[_Union[PredictLog, _Mapping]] = ...) -> None: ...
