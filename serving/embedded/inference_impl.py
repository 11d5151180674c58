"""PredictionService's Classify, Regress and MultiInference.

Checked and worded as tensorflow/serving's classifier.cc, regressor.cc and
multi_inference.cc. Their signatures take serialized tf.Examples.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import inference_pb2 as pb
from protos import predict_pb2 as wire
from serving.embedded.model_manager import ModelManager
from serving.embedded.predict_impl import DEFAULT_SIGNATURE
from serving.embedded.status import Answer, StatusError, failed_precondition, invalid_argument, unimplemented
from serving.tensors import DT_STRING

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_KIND = {CLASSIFY: "classification", REGRESS: "regression"}
_INPUTS = "inputs"
_CLASSES, _SCORES, _OUTPUTS = "classes", "scores", "outputs"

_Arrays = dict[str, NDArray[Any]]


def classify(manager: ModelManager, request: pb.ClassificationRequest) -> Answer:
    """Classes and scores of every example. Raises StatusError."""
    version, name, signature, session = _signature(manager, request, CLASSIFY)
    response = pb.ClassificationResponse()
    examples, arrays = _run(session, name, _checked(signature, CLASSIFY), request.input)
    _to_classifications(arrays, len(examples), response.result)
    _tell(response.model_spec, request.model_spec.name, name, version)
    return Answer(version, response)


def regress(manager: ModelManager, request: pb.RegressionRequest) -> Answer:
    """A value for every example. Raises StatusError."""
    version, name, signature, session = _signature(manager, request, REGRESS)
    response = pb.RegressionResponse()
    examples, arrays = _run(session, name, _checked(signature, REGRESS), request.input)
    _to_regressions(arrays, len(examples), response.result)
    _tell(response.model_spec, request.model_spec.name, name, version)
    return Answer(version, response)


def multi_inference(manager: ModelManager, request: pb.MultiInferenceRequest) -> Answer:
    """Several signatures of one model on the same examples. Raises StatusError."""
    if not request.tasks:
        raise invalid_argument("Inference request must contain at least one task")
    models = {task.model_spec.name for task in request.tasks}
    if "" in models:
        raise invalid_argument("Found ModelSpec with an empty model name.")
    if len(models) > 1:
        raise invalid_argument("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    version, session = manager.find(request.tasks[0].model_spec)
    seen: set[str] = set()
    wanted: list[tuple[str, str, list[str]]] = []
    tensors: set[str] = set()
    for task in request.tasks:
        name = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if name in seen:
            raise invalid_argument(f"Duplicate evaluation of signature: {name}")
        seen.add(name)
        if name not in session.signatures:
            raise invalid_argument(f"Requested signature not found in model graph: {name}")
        if task.method_name not in _KIND:
            raise unimplemented(f"Unsupported signature method_name: {task.method_name}")
        wanted.append((task.method_name, name, _checked(session.signatures[name], task.method_name)))
        tensors.add(session.definitions.signature_def[name].inputs[_INPUTS].name)
    if len(tensors) > 1:
        raise invalid_argument("Input tensor must be the same for all Signatures.")
    response = pb.MultiInferenceResponse()
    for method, name, outputs in wanted:
        examples, arrays = _run(session, name, outputs, request.input)
        result = response.results.add()
        if method == CLASSIFY:
            _to_classifications(arrays, len(examples), result.classification_result)
        else:
            _to_regressions(arrays, len(examples), result.regression_result)
        _tell(result.model_spec, request.tasks[0].model_spec.name, name, version)
    return Answer(version, response)


def _signature(manager: ModelManager, request: Any, method: str) -> tuple[int, str, Any, Any]:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    version, session = manager.find(request.model_spec)
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = session.signatures.get(name)
    if signature is None:
        raise invalid_argument(f"No signature was found with the name: {name}")
    return version, name, signature, session


def _checked(signature: Any, method: str) -> list[str]:
    """The outputs to ask for. Raises StatusError where the signature is none of this method."""
    if signature.method_name != method:
        raise invalid_argument(f"Expected {_KIND[method]} signature method_name to be {method}. Was: {signature.method_name}")
    if len(signature.inputs) != 1:
        raise invalid_argument("Expected one input Tensor.")
    if signature.inputs.get(_INPUTS) != DT_STRING:
        raise failed_precondition(f"No {_KIND[method]} inputs found in SignatureDef: {', '.join(signature.inputs)}")
    if method == REGRESS:
        if len(signature.outputs) != 1:
            raise invalid_argument("Expected one output Tensor.")
        if _OUTPUTS not in signature.outputs:
            raise failed_precondition(f"No regression outputs found in SignatureDef: {', '.join(signature.outputs)}")
        return [_OUTPUTS]
    if len(signature.outputs) not in (1, 2):
        raise invalid_argument(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    found = [key for key in (_CLASSES, _SCORES) if key in signature.outputs]
    if not found:
        raise failed_precondition(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". '
            f"Signature was: {', '.join(signature.outputs)}"
        )
    return found


def examples_of(given: pb.Input) -> list[bytes]:
    """The serialized tf.Examples of an input. Raises StatusError where there are none."""
    kind = given.WhichOneof("kind")
    found = list(getattr(given, kind).examples) if kind else []
    if not found:
        raise invalid_argument("Input is empty.")
    # serialized messages put one behind the other are merged when they are read
    context = given.example_list_with_context.context
    return [context + example for example in found]


def _run(session: Any, name: str, outputs: list[str], given: pb.Input) -> tuple[list[bytes], _Arrays]:
    examples = examples_of(given)
    fed = np.empty(len(examples), object)
    fed[:] = examples
    values = session.run(name, {_INPUTS: fed}, outputs)
    return examples, dict(zip(outputs, values, strict=True))


def _to_classifications(arrays: _Arrays, count: int, result: pb.ClassificationResult) -> None:
    classes, scores = arrays.get(_CLASSES), arrays.get(_SCORES)
    for name, array, kind, told in ((_CLASSES, classes, "O", "DT_STRING"), (_SCORES, scores, "f", "DT_FLOAT")):
        if array is None:
            continue
        if array.ndim != 2:
            raise _shape("[batch_size num_classes]", array)
        if array.dtype.kind != kind or (kind == "f" and array.itemsize != 4):
            raise invalid_argument(f"Expected {name} Tensor of {told}. Got: {array.dtype}")
        if array.shape[0] != count:
            raise invalid_argument(f"Expected {name} output batch size of {count}. Got: {array.shape[0]}")
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise invalid_argument(
            f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
        )
    width = next(array.shape[1] for array in (classes, scores) if array is not None)
    for i in range(count):
        row = result.classifications.add()
        for c in range(width):
            one = row.classes.add()
            if classes is not None:
                one.label = classes[i, c].decode("utf-8", "replace")
            if scores is not None:
                one.score = float(scores[i, c])


def _to_regressions(arrays: _Arrays, count: int, result: pb.RegressionResult) -> None:
    values = arrays[_OUTPUTS]
    if not (values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)):
        raise _shape("either [batch_size] or [batch_size, 1]", values)
    if values.shape[0] != count:
        raise invalid_argument(f"Input batch size did not match output batch size: {count} vs. {values.shape[0]}")
    if values.dtype != np.float32:
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT.  Got: {values.dtype}")
    for value in values.reshape(-1).tolist():
        result.regressions.add(value=value)


def _shape(wanted: str, array: NDArray[Any]) -> StatusError:
    return invalid_argument(f"Expected Tensor shape: {wanted} but got {list(array.shape)}")


def _tell(spec: wire.ModelSpec, model: str, signature: str, version: int) -> None:
    spec.name, spec.signature_name = model, signature
    spec.version.value = version
