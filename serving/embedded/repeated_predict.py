"""Predict requests that differ from an earlier one in their numbers only, answered without parsing them.

A controller asks the same model over and over. Its requests are a constant
prefix and the observation's bytes (serving/client.py builds them so), and a
float answer is a constant frame around the action's bytes. So once a request has
been answered the long way, later ones with the same prefix need one look-up,
one run and one join: no message, no array (`python -m benchmarks.unary_predict`
and `benchmarks.concurrent_callers` show what it is for).

Whatever is not exactly so takes the long way: several inputs, typed values,
outputs whose typed values are not their own bytes, an output of another shape.
"""

import weakref
from typing import Any, NamedTuple

from protos import predict_pb2 as wire
from serving.embedded.model_manager import ModelManager
from serving.embedded.pace import Pace
from serving.embedded.predict_impl import Outputs, response_parts, run_predict
from serving.embedded.status import Answer, StatusError
from serving.tensors import DT_STRING, is_packed

MAX_PLANS = 4096
MAX_PREFIX_BYTES = 1024
MAX_NUMBERS_BYTES = 1 << 20
"""Of one request: beyond it, copying costs more than the long way's parsing."""
MAX_KEPT_BYTES = 1 << 25
"""Of all plans' numbers: each plan keeps an input of its size for every thread."""
_FLIPPED = bytes(byte ^ 0xFF for byte in range(256))


class _Plan(NamedTuple):
    generation: int
    """Of the model manager, when the version was found."""
    session: "weakref.ref[Any]"
    """A plan must not keep a version that is no longer served."""
    model: str
    version: int
    size: int
    """Bytes of the input's numbers. The same prefix may stand before fewer: in a request that is cut off, or goes on."""
    run: Any
    """Input bytes -> output bytes, or None where an output has another shape."""
    frame: tuple[bytes, ...]
    """The answer's bytes before, between and after the outputs'."""
    pace: Pace


class RepeatedPredict:
    """Predict, by the short way where there is one. Safe to use from many threads."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self._plans: dict[bytes, _Plan] = {}
        self._kept_bytes = 0
        self._tails: dict[int, tuple[int, ...]] = {}
        """Bytes of a whole request -> bytes of its numbers, in the requests seen."""

    def __call__(self, data: bytes) -> Answer:
        """A serialized PredictRequest to a serialized PredictResponse. Raises StatusError, DecodeError."""
        plan = self._plan(data)
        session = plan.session() if plan is not None else None
        if plan is not None and session is not None:
            try:
                values = plan.run(data[-plan.size :])
            except StatusError as error:
                error.model = plan.model
                raise
            finally:
                del session
            if values is not None:
                return Answer(plan.version, _framed(plan.frame, values), plan.model)
        return self._long_way(data)

    def pace(self, data: bytes) -> Pace | None:
        """How quick the like of this request has been; None: nothing like it was answered the short way."""
        plan = self._plan(data)
        return None if plan is None else plan.pace

    def _plan(self, data: bytes) -> _Plan | None:
        for size in self._tails.get(len(data), ()):
            plan = self._plans.get(data[:-size])
            if plan is not None and plan.size == size and plan.generation == self._manager.generation:
                return plan
        return None

    def _long_way(self, data: bytes) -> Answer:
        request = wire.PredictRequest.FromString(data)
        # before the version is looked up: a change in between makes the plan old at once
        generation = self._manager.generation
        try:
            found = run_predict(self._manager, request)
        except StatusError as error:
            error.model = request.model_spec.name
            raise
        parts = response_parts(request.model_spec.name, found)
        self._learn(data, request, found, parts, generation)
        return Answer(found.version, b"".join(parts), request.model_spec.name)

    def _learn(self, data: bytes, request: wire.PredictRequest, found: Outputs, parts: list[bytes], generation: int) -> None:
        bind = getattr(found.session, "bind", None)
        # inputs that the request leaves out have defaults, which a bound run does not feed
        if bind is None or len(found.session.signatures[found.signature].inputs) != 1 or len(data) > MAX_NUMBERS_BYTES:
            return
        if not all(is_packed(found.dtypes[key]) and array.size for key, array in found.arrays.items()):
            return
        content = _tail(data, request)
        if content is None or len(data) - len(content) > MAX_PREFIX_BYTES:
            return
        frame = (*(part[: -array.nbytes] for part, array in zip(parts, found.arrays.values(), strict=False)), parts[-1])
        ((key, tensor),) = request.inputs.items()
        shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
        shapes = tuple(array.shape for array in found.arrays.values())
        run = bind(found.signature, key, shape, tuple(found.arrays), shapes)
        size = len(content)
        if len(self._plans) >= MAX_PLANS or self._kept_bytes + size > MAX_KEPT_BYTES:
            self._plans, self._tails, self._kept_bytes = {}, {}, 0
        self._kept_bytes += size
        self._plans[data[:-size]] = _Plan(
            generation, weakref.ref(found.session), request.model_spec.name, found.version, size, run, frame, Pace()
        )
        self._tails[len(data)] = tuple({*self._tails.get(len(data), ()), size})


def _framed(frame: tuple[bytes, ...], values: list[bytes]) -> bytes:
    if len(values) == 1:
        return frame[0] + values[0] + frame[1]
    parts = [frame[0]]
    for value, after in zip(values, frame[1:], strict=True):
        parts += (value, after)
    return b"".join(parts)


def _tail(data: bytes, request: wire.PredictRequest) -> bytes | None:
    """The numbers of a request, where they are its last bytes and those of its only input."""
    if len(request.inputs) != 1:
        return None
    (tensor,) = request.inputs.values()
    content: bytes = tensor.tensor_content
    if not content or tensor.dtype == DT_STRING or not data.endswith(content):
        return None
    # other numbers in the same place must give the same request but for them
    other = content.translate(_FLIPPED)
    again = wire.PredictRequest.FromString(data[: -len(content)] + other)
    (changed,) = again.inputs.values() if len(again.inputs) == 1 else (wire.Tensor(),)
    if changed.tensor_content != other:
        return None
    changed.tensor_content = content
    return content if again == request else None
