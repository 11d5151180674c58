"""ONNX files of MLP actors, compared with ONNX's own reference evaluation."""

import numpy as np
import pytest

from tests.export.exporting import export, refuses, run, version

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

CATEGORICAL = ("--action", "categorical")
RNG = np.random.default_rng(5)
X = RNG.random((6, 5)).astype(np.float32)


def constant(name, *shape):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


WEIGHTS = [constant("w0", 8, 5), constant("b0", 8), constant("w1", 8, 3), constant("b1", 3), constant("scale", 5)]
GEMM = helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1)
TANH = helper.make_node("Tanh", ["h"], ["a"])
LOGITS = [helper.make_node("MatMul", ["a", "w1"], ["m"]), helper.make_node("Add", ["m", "b1"], ["y"])]


def save(path, nodes, output="y", inputs=("x",), more=(), size=5):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name in inputs]
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", 3])
    model = helper.make_model(helper.make_graph(nodes, "actor", values, [out], [*WEIGHTS, *more]))
    onnx.save(model, path)
    return model


def reference(model):
    return ReferenceEvaluator(model).run(None, {"x": X})[0]


def outputs(checkpoints):
    return run(version(checkpoints), "serving_default", observation=X)


def of_shape(shape):
    """(layers of an actor that reshapes its observation, its shape)."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Gemm", ["r", "w0", "b0"], ["h"], transB=1),
    ]
    return [*nodes, TANH, *LOGITS], [numpy_helper.from_array(np.array(shape), "shape")]


DIVIDED = [
    helper.make_node("Div", ["x", "four"], ["d"]),
    helper.make_node("Gemm", ["d", "w0", "row"], ["h"], transB=1),
    TANH,
    *LOGITS,
]
FOUR = numpy_helper.from_array(np.array(4, np.float32), "four")
ROW = numpy_helper.from_array(RNG.random((1, 8)).astype(np.float32), "row")
CONSTANT_OPERATIONS = [
    helper.make_node("Transpose", ["w0"], ["w0t"], perm=[1, 0]),
    helper.make_node("MatMul", ["x", "w0t"], ["m0"]),
    helper.make_node("Add", ["m0", "b0"], ["h"]),
    TANH,
    *LOGITS,
    helper.make_node("Sin", ["h"], ["value"]),
]


def elu(alpha):
    return [GEMM, helper.make_node("Elu", ["h"], ["a"], alpha=alpha), *LOGITS]


SILU = [helper.make_node("Sigmoid", ["h"], ["s"]), helper.make_node("Mul", ["h", "s"], ["a"])]
ROOT, ONE, HALF, THRESHOLD = (
    numpy_helper.from_array(np.array(value, np.float32), name)
    for name, value in {"root": 2**0.5, "one": 1, "half": 0.5, "threshold": 20}.items()
)
GELU = [
    helper.make_node("Div", ["h", "root"], ["d"]),
    helper.make_node("Erf", ["d"], ["e"]),
    helper.make_node("Add", ["e", "one"], ["f"]),
    helper.make_node("Mul", ["h", "f"], ["g"]),
    helper.make_node("Mul", ["g", "half"], ["a"]),
]
SOFTPLUS = [
    helper.make_node("Softplus", ["h"], ["s"]),
    helper.make_node("Greater", ["h", "threshold"], ["c"]),
    helper.make_node("Where", ["c", "h", "s"], ["a"]),
]
LEAKY = helper.make_node("LeakyRelu", ["h"], ["a"], alpha=0.15)


@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        ([GEMM, TANH, *LOGITS], []),
        ([GEMM, *SILU, *LOGITS], []),
        ([GEMM, *GELU, *LOGITS], [ROOT, ONE, HALF]),
        ([GEMM, helper.make_node("Gelu", ["h"], ["a"], approximate="none"), *LOGITS], []),
        ([GEMM, helper.make_node("Swish", ["h"], ["a"]), *LOGITS], []),
        ([GEMM, *SOFTPLUS, *LOGITS], [THRESHOLD]),
        ([GEMM, helper.make_node("LeakyRelu", ["h"], ["a"]), *LOGITS], []),
        ([GEMM, LEAKY, *LOGITS], []),
        (elu(1.0), []),
        of_shape([-1, 5]),
        of_shape([0, -1]),
        (DIVIDED, [FOUR, ROW]),
        (CONSTANT_OPERATIONS, []),
    ],
    ids=[
        "mlp",
        "silu of two operations",
        "gelu of five",
        "gelu of PyTorch from opset 20 on",
        "silu from opset 24 on",
        "softplus of three",
        "leaky_relu",
        "leaky_relu of 0.15",
        "elu",
        "reshaped rows",
        "flattened",
        "divided, bias of one row",
        "constant operations, another head",
    ],
)
def test_logits_become_probabilities(checkpoints, nodes, more):
    model = save(checkpoints / "SA101_trial_4.onnx", nodes, more=more)
    assert export(checkpoints, *CATEGORICAL, "--scores", "probabilities") == 0
    found, logits = outputs(checkpoints), reference(model)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(found["action"], logits.argmax(1))


ARGMAX = [
    helper.make_node("ArgMax", ["y"], ["k"], axis=1),
    helper.make_node("Cast", ["k"], ["i"], to=TensorProto.INT32),
]
CLIPPED = [
    helper.make_node("Sub", ["x", "scale"], ["s"]),
    helper.make_node("Gemm", ["s", "w0", "b0"], ["h"], transB=1),
    helper.make_node("Relu", ["h"], ["a"]),
    *LOGITS,
    helper.make_node("Constant", [], ["low"], value=numpy_helper.from_array(np.float32(-0.5), "low")),
    helper.make_node("Constant", [], ["high"], value=numpy_helper.from_array(np.float32(0.5), "high")),
    helper.make_node("Clip", ["y", "low", "high"], ["z"]),
]


@pytest.mark.parametrize(
    ("nodes", "output", "key"),
    [
        ([GEMM, TANH, *LOGITS, helper.make_node("Softmax", ["y"], ["p"], axis=1)], "p", "probabilities"),
        ([GEMM, TANH, *LOGITS, *ARGMAX], "i", "action"),
        (CLIPPED, "z", "action"),
    ],
    ids=["probabilities", "chosen action", "scaled observation, clipped action"],
)
def test_end_of_the_graph_shows_the_kind_of_the_action(checkpoints, nodes, output, key):
    model = save(checkpoints / "SA101_trial_4.onnx", nodes, output)
    assert export(checkpoints, *(("--scores", "q_values") if output == "i" else ())) == 0
    found = outputs(checkpoints)[key]
    np.testing.assert_allclose(found, reference(model).reshape(found.shape), atol=1e-5)


OTHER_VALUES = "gives other values than its exported step, with"
NAN = numpy_helper.from_array(np.array(np.nan, np.float32), "nan")
HUGE = numpy_helper.from_array(np.full((8, 5), 1e300), "huge")


@pytest.mark.parametrize(
    ("nodes", "part", "options"),
    [
        ([GEMM, helper.make_node("Sin", ["h"], ["a"]), *LOGITS], "operation Sin", {}),
        ([GEMM, helper.make_node("Cast", ["h"], ["a"], to=TensorProto.INT64), *LOGITS],
        "Input type mismatch", {}),
        ([GEMM, TANH, *LOGITS], "has the inputs x, hidden", {"inputs": ("x", "hidden")}),
        ([helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1, alpha=2.0), TANH, *LOGITS],
        f"operation Gemm (Gemm) {OTHER_VALUES} alpha 2", {}),
        ([GEMM, TANH, helper.make_node("Mul", ["a", "h"], ["y"])], "operation Mul", {}),
        ([GEMM, TANH, helper.make_node("Add", ["a", "h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"])], "operation Add (Add) does not continue a single chain", {}),
        ([GEMM, helper.make_node("Erf", ["h"], ["a"]), *LOGITS], "operation Erf (Erf) is not supported alone", {}),
        ([GEMM, helper.make_node("Transpose", ["h"], ["t"]), helper.make_node("Transpose", ["t"], ["a"]), *LOGITS],
        "operation Transpose", {}),
        ([GEMM, helper.make_node("Selu", ["h"], ["a"], alpha=1.0, gamma=1.0), *LOGITS],
        f"operation Selu (Selu) {OTHER_VALUES} alpha 1, gamma 1", {}),
        ([GEMM, helper.make_node("Relu", ["h"], ["a"], domain="my.ops"), *LOGITS],
        "operation my.ops::Relu (Relu)", {}),
        ([GEMM, helper.make_node("Clip", ["h", "nan", "nan"], ["a"]), *LOGITS],
        "operation Clip (Clip) gives other values", {"more": [NAN]}),
        ([helper.make_node("Gemm", ["x", "huge", "b0"], ["h"], transB=1), TANH, *LOGITS],
        "huge has non-finite values", {"more": [HUGE]}),
        (elu(0.5), f"operation Elu (Elu) {OTHER_VALUES} alpha 0.5", {}),
        ([GEMM, helper.make_node("Gelu", ["h"], ["a"], approximate="tanh"), *LOGITS],
        "operation Gelu (Gelu) approximates gelu", {}),
        ([GEMM, TANH, *LOGITS], "shapes (1,10) and (5,8) not aligned",
        {"size": 10}),
        *((nodes, "cannot be read as an ONNX model", {"more": more})
        for nodes, more in map(of_shape, ([-1, 5, 1], [-1, 1], [-1, -1]))),
    ],
)  # fmt: skip
def test_graph_that_is_no_mlp_is_refused_by_name(checkpoints, capsys, nodes, part, options):
    save(checkpoints / "SA101_trial_4.onnx", nodes, **options)
    refuses(capsys, checkpoints, part, flags=CATEGORICAL)


def test_weights_in_another_file_are_not_looked_for(checkpoints, capsys):
    model = save(checkpoints / "SA101_trial_4.onnx", [GEMM, TANH, *LOGITS])
    onnx.external_data_helper.convert_model_to_external_data(model, location="../secret", size_threshold=0)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location="../secret")
    model.graph.initializer[0].ClearField("raw_data")
    (checkpoints / "SA101_trial_4.onnx").write_bytes(model.SerializeToString())
    refuses(capsys, checkpoints, "its tensor w0 is in another file", flags=CATEGORICAL)


@pytest.mark.parametrize("data", [b"", b"ONNX", b"\x08" * 200])
def test_damaged_files_get_one_line(checkpoints, capsys, data):
    (checkpoints / "SA101_trial_4.onnx").write_bytes(data)
    refuses(capsys, checkpoints, "SA101_trial_4.onnx")
