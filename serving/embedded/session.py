"""A loaded SavedModel: the only file of the server that imports TensorFlow.

Loaded as TensorFlow Serving loads it: a TF1-style session, tag `serve`. Graphs
of actors are small, so an operation runs in its caller's thread: handing it to
a pool would cost more than the operation.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from protos import predict_pb2 as wire
from serving.embedded.status import StatusError, invalid_argument
from serving.tensors import to_array

tf.get_logger().setLevel("ERROR")
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class LoadError(Exception):
    """A version folder that cannot be loaded; the text says why."""


class Session:
    """One version of a model, ready to run. Safe to use from many threads."""

    def __init__(self, path: Path, warm_up: bool = True) -> None:
        """Load, and replay the warm-up records. Raises LoadError."""
        options = config_pb2.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
        try:
            with self._session.graph.as_default():
                loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            self.signatures = wire.SignatureDefMap()
            for name, definition in loaded.signature_def.items():
                # our message is a subset of TensorFlow's: same bytes, unknown fields are kept
                self.signatures.signature_def[name].MergeFromString(definition.SerializeToString())
            self._callables: dict[tuple[str, ...], Any] = {}
            if warm_up:
                self._warm_up(path)
        except Exception as error:
            self._session.close()
            raise LoadError((str(error).splitlines() or [type(error).__name__])[0]) from error

    def run(self, signature: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """The named outputs of a signature for arrays by input key, in order.

        Raises StatusError with TensorFlow's own code and words.
        """
        key = (signature, *outputs)
        run = self._callables.get(key)
        if run is None:
            run = self._callables[key] = self._callable(signature, outputs)
        definition = self.signatures.signature_def[signature]
        try:
            return list(run(*(inputs[name] for name in sorted(definition.inputs))))
        except tf.errors.OpError as error:
            raise StatusError(_CODES[error.error_code], error.message) from None
        except (ValueError, TypeError) as error:
            raise invalid_argument(str(error)) from None

    def _callable(self, signature: str, outputs: Sequence[str]) -> Any:
        definition = self.signatures.signature_def[signature]
        options = config_pb2.CallableOptions()
        options.feed.extend(definition.inputs[name].name for name in sorted(definition.inputs))
        options.fetch.extend(definition.outputs[name].name for name in outputs)
        # a quarter of the cost of Session.run, which looks every name up again
        return self._session._make_callable_from_options(options)

    def _warm_up(self, path: Path) -> None:
        records = path / "assets.extra" / "tf_serving_warmup_requests"
        if not records.is_file():
            return
        for record in tf.compat.v1.io.tf_record_iterator(str(records)):
            request = wire.PredictionLog.FromString(record).predict_log.request
            name = request.model_spec.signature_name or "serving_default"
            if name not in self.signatures.signature_def:
                raise ValueError(f"a warm-up record asks for signature {name!r}, which the model does not have")
            arrays = {key: np.asarray(to_array(tensor)) for key, tensor in request.inputs.items()}
            self.run(name, arrays, sorted(self.signatures.signature_def[name].outputs))
