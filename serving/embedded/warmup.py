"""Replaying a model's warm-up records, as tensorflow/serving's saved_model_warmup_util.cc.

The first run of a signature costs 7 to 22 ms, so it happens before the version serves.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from protos import prediction_log_pb2 as pb
from serving.embedded.rpc.predict import run_predict
from serving.embedded.status import StatusError
from serving.embedded.tensorflow.session import LoadError, Session

_RECORDS = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000
"""As tensorflow/serving: more is an error."""


def warm_up(path: Path, session: Session) -> None:
    """Run a version's warm-up records; those of RPCs other than Predict are skipped. Raises LoadError if one fails."""
    file = path / _RECORDS
    if not file.is_file():
        return
    manager = _OneSession(session)
    try:
        for number, data in enumerate(_records(file.read_bytes())):
            if number >= MAX_RECORDS:
                raise LoadError(f"more than {MAX_RECORDS} warm-up records")
            record = pb.PredictionLog.FromString(data)
            if record.HasField("predict_log"):
                request = record.predict_log.request
                request.model_spec.SetInParent()  # a record may leave the model out: it is this one
                run_predict(manager, request)  # type: ignore[arg-type]
    except (DecodeError, StatusError, OSError, struct.error) as error:
        raise LoadError(f"its warm-up records cannot be answered: {str(error).splitlines()[0]}") from error


class _OneSession:
    """Stands for the model manager: this session, whatever version is requested."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, spec: Any) -> tuple[int, Session]:
        return 0, self._session


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum (4).

    Checksums are not verified: a truncated record does not parse.
    """
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + size]
        if len(record) < size:
            raise LoadError("the file of warm-up records is truncated")
        yield record
        at += 16 + size
