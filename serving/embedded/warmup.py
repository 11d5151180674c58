"""Run a model's warm-up records, as in tensorflow/serving's saved_model_warmup_util.cc.

The first run of a signature takes 7 to 22 ms, so it happens before the version serves.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from city.errors import first_line
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as pb
from serving.embedded.models.servable import LoadError, Servable
from serving.embedded.rpc.predict import predict
from serving.embedded.status import StatusError

_RECORDS = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000
"""Maximum number of records in a file, as in tensorflow/serving."""


def warm_up(path: Path, servable: Servable) -> None:
    """Run a version's warm-up records of Predict, skip those of other RPCs. Raises LoadError if one fails."""
    file = path / _RECORDS
    if not file.is_file():
        return
    models = _OneServable(servable)
    try:
        for number, data in enumerate(_records(file.read_bytes())):
            if number >= MAX_RECORDS:
                raise LoadError(f"{file}: more than {MAX_RECORDS} warm-up records; remove some")
            record = pb.PredictionLog.FromString(data)
            if record.HasField("predict_log"):
                request = record.predict_log.request
                request.model_spec.SetInParent()  # a record may omit the model
                predict(models, lambda model, seconds: None, request)
    except (DecodeError, StatusError, OSError, struct.error) as error:
        raise LoadError(f"a warm-up record failed: {first_line(error)}") from error


class _OneServable:
    """Stand-in for the model manager: finds this servable for every model spec."""

    def __init__(self, servable: Servable) -> None:
        self._servable = servable

    def find(self, spec: wire.ModelSpec) -> tuple[int, Servable]:
        return 0, self._servable


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum (4).

    Checksums are not verified: a truncated record does not parse.
    """
    offset = 0
    while offset < len(data):
        (size,) = struct.unpack_from("<Q", data, offset)
        record = data[offset + 12 : offset + 12 + size]
        if len(record) < size:
            raise LoadError("the file of warm-up records is truncated; export the model again")
        yield record
        offset += 16 + size
