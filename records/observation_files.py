"""Recorded observations as files: warm-up records of TensorFlow Serving, and arrays for the exporter's parity check."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from city import names, whole_files
from city.errors import InputError
from protos import policy_pb2 as pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as prediction_log_pb
from records.record_reader import RecordedStep
from serving import tf_record
from serving.contract import ACTION, CATEGORICAL, DEFAULT_SIGNATURE, INPUT
from serving.tensors import to_proto
from signals.observation import Observation

WARM_UP_FILE = "tf_serving_warmup_requests"
MAX_WARM_UP_RECORDS = 1000
"""Records that TensorFlow Serving accepts in a file."""
MAX_OBSERVATIONS = 10_000
"""Observations of a TL in a file for the parity check."""
REMEDY = "pass another folder"


class _Spread:
    """At most `limit` items of a stream, spread evenly over it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self._seen = 0
        self.kept: list[Observation] = []

    def add(self, item: Observation) -> None:
        if self._seen % self._stride == 0:
            if len(self.kept) == self._limit:
                del self.kept[1::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self.kept.append(item)
        self._seen += 1


def _observations_of(
    steps: Iterable[RecordedStep], contracts: Sequence[pb.PolicyContract], limit: int
) -> dict[str, list[Observation]]:
    """By TL with any, at most `limit` observations of the steps, spread evenly over the time; float32 [O]."""
    spread = {contract.tl: _Spread(limit) for contract in contracts}
    for step in steps:
        for tl, each in step.tls.items():
            if tl in spread and each.HasField("decision"):
                spread[tl].add(np.array(each.decision.observation, np.float32))
    return {tl: each.kept for tl, each in spread.items() if each.kept}


def write_warm_up(folder: Path, contracts: Sequence[pb.PolicyContract], steps: Iterable[RecordedStep]) -> int:
    """Write `folder`/TL/tf_serving_warmup_requests for each TL with observations; returns the number of files.

    Raises InputError if it cannot.
    """
    by_tl = _observations_of(steps, contracts, MAX_WARM_UP_RECORDS)
    for contract in contracts:
        if contract.tl in by_tl:
            with _whole_file(_path(folder, contract.tl) / WARM_UP_FILE) as file:
                for k, observation in enumerate(by_tl[contract.tl]):
                    # for all outputs, and for the action alone if there are more, as controllers do
                    only_action = contract.action.kind == CATEGORICAL and k % 2 == 1
                    request = wire.PredictRequest(
                        model_spec=wire.ModelSpec(name=contract.tl, signature_name=DEFAULT_SIGNATURE),
                        output_filter=(ACTION,) if only_action else (),
                    )
                    to_proto(observation[np.newaxis], request.inputs[INPUT])
                    log = prediction_log_pb.PredictionLog(predict_log=prediction_log_pb.PredictLog(request=request))
                    tf_record.write(file, log.SerializeToString(deterministic=True))
    return len(by_tl)


def write_arrays(folder: Path, contracts: Sequence[pb.PolicyContract], steps: Iterable[RecordedStep]) -> int:
    """Write `folder`/TL.npy, float32 [n, O], for each TL with observations; returns the number of files.

    Raises InputError if it cannot.
    """
    by_tl = _observations_of(steps, contracts, MAX_OBSERVATIONS)
    for tl, observations in by_tl.items():
        if len({observation.size for observation in observations}) > 1:
            raise InputError(f"{tl}: its recorded observations have different sizes; copy the record again")
        path = _path(folder, tl)
        with _whole_file(path.with_name(f"{path.name}.npy")) as file:
            np.save(file, np.stack(observations))
    return len(by_tl)


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    with whole_files.replacing(path, REMEDY) as draft:
        draft.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file


def _path(folder: Path, tl: str) -> Path:
    """A path named after a TL. Raises InputError for a name that greenserve does not give, which may lead out of the
    folder."""
    if names.canonical(tl) != tl:
        raise InputError(f"the record names a TL {tl!r}, which is not a TL's name; copy the record again")
    return folder / tl
