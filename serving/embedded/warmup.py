"""Run a model's warm-up records, as in tensorflow/serving's saved_model_warmup_util.cc.

The first run of a signature takes 7 to 22 ms, so it happens before the version serves.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from city.errors import first_line
from protos import prediction_log_pb2 as pb
from serving.embedded.models.servable import LoadError, Servable
from serving.embedded.rpc.predict import run_request
from serving.embedded.status import StatusError

_RECORDS = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000
"""Maximum number of records in a file, as in tensorflow/serving."""


def warm_up(path: Path, servable: Servable) -> None:
    """Run a version's warm-up records of Predict, skip those of other RPCs. Raises LoadError if one fails."""
    file = path / _RECORDS
    if not file.is_file():
        return
    try:
        for number, data in enumerate(_records(file.read_bytes())):
            if number >= MAX_RECORDS:
                raise LoadError(f"{file}: more than {MAX_RECORDS} warm-up records; remove some")
            record = pb.PredictionLog.FromString(data)
            if record.HasField("predict_log"):
                run_request(servable, record.predict_log.request)
    except (DecodeError, StatusError, OSError, struct.error) as error:
        raise LoadError(f"a warm-up record failed: {first_line(error)}") from error


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
