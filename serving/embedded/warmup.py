"""Replaying a model's warm-up records, as tensorflow/serving's saved_model_warmup_util.cc.

The first run of a signature costs 7 to 22 ms, so it is made before the version serves.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from serving.embedded.inference_impl import classify, multi_inference, regress
from serving.embedded.predict_impl import predict
from serving.embedded.session import LoadError, Session
from serving.embedded.status import StatusError

_RECORDS = Path("assets.extra") / "tf_serving_warmup_requests"
_RUN: dict[str, Any] = {
    "predict_log": predict, "classify_log": classify, "regress_log": regress, "multi_inference_log": multi_inference,
}  # fmt: skip
MAX_RECORDS = 1000
"""As tensorflow/serving: more is an error."""


def warm_up(path: Path, session: Session) -> None:
    """Answer a version's warm-up records. Raises LoadError where one cannot be."""
    file = path / _RECORDS
    if not file.is_file():
        return
    only = _Only(session)
    try:
        for number, data in enumerate(_records(file.read_bytes())):
            if number >= MAX_RECORDS:
                raise LoadError(f"more than {MAX_RECORDS} warm-up records")
            record = pb.PredictionLog.FromString(data)
            kind = record.WhichOneof("log_type")
            if kind is None and record.ByteSize():
                raise LoadError(f"warm-up record {number} is of a kind that is not known")
            if kind is None:
                continue
            request = getattr(record, kind).request
            if hasattr(request, "model_spec"):
                # which model is no question here, and a record need not say it
                request.model_spec.SetInParent()
            _RUN[kind](only, request)
    except (DecodeError, StatusError, OSError, struct.error) as error:
        raise LoadError(f"its warm-up records cannot be answered: {str(error).splitlines()[0]}") from error


class _Only:
    """In place of a model manager: this session, whatever version is asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, spec: Any) -> tuple[int, Session]:
        return 0, self._session


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum (4).

    Checksums are not verified: a record that is not whole does not parse.
    """
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + size]
        if len(record) < size:
            raise LoadError("the file of warm-up records ends in the middle of one")
        yield record
        at += 16 + size
