"""ONNX files of MLP actors, compared with ONNX's own reference evaluation."""

import numpy as np
import pytest

from tests.export.exporting import export, refused, refuses, run

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

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


def outputs(checkpoints):
    (version,) = (checkpoints.parent / "models" / "SA101").iterdir()
    return run(version, "serving_default", observation=X)


def test_logits_become_probabilities(checkpoints):
    model = save(checkpoints / "SA101_trial_4.onnx", [GEMM, TANH, *LOGITS])
    assert export(checkpoints, "--action", "categorical") == 0
    logits = ReferenceEvaluator(model).run(None, {"x": X})[0]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs(checkpoints)["probabilities"], expected, atol=1e-5)


def test_softmax_at_the_end_shows_that_the_actor_is_categorical(checkpoints):
    model = save(
        checkpoints / "SA101_trial_4.onnx",
        [GEMM, TANH, *LOGITS, helper.make_node("Softmax", ["y"], ["p"], axis=1)],
        "p",
    )
    assert export(checkpoints) == 0
    np.testing.assert_allclose(
        outputs(checkpoints)["probabilities"], ReferenceEvaluator(model).run(None, {"x": X})[0], atol=1e-5
    )


def test_chosen_action_as_a_whole_number_ends_an_actor(checkpoints):
    ends = [
        helper.make_node("ArgMax", ["y"], ["k"], axis=1),
        helper.make_node("Cast", ["k"], ["i"], to=TensorProto.INT32),
    ]
    model = save(checkpoints / "SA101_trial_4.onnx", [GEMM, TANH, *LOGITS, *ends], "i")
    assert export(checkpoints) == 0
    chosen = ReferenceEvaluator(model).run(None, {"x": X})[0].ravel()
    np.testing.assert_array_equal(outputs(checkpoints)["action"], chosen)


def test_scaled_observation_and_clipped_action_stay_in_the_graph(checkpoints):
    low, high = numpy_helper.from_array(np.float32(-0.5), "low"), numpy_helper.from_array(np.float32(0.5), "high")
    nodes = [
        helper.make_node("Sub", ["x", "scale"], ["s"]),
        helper.make_node("Gemm", ["s", "w0", "b0"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["a"]),
        *LOGITS,
        helper.make_node("Constant", [], ["low"], value=low),
        helper.make_node("Constant", [], ["high"], value=high),
        helper.make_node("Clip", ["y", "low", "high"], ["z"]),
    ]
    model = save(checkpoints / "SA101_trial_4.onnx", nodes, "z")
    assert export(checkpoints) == 0
    np.testing.assert_allclose(
        outputs(checkpoints)["action"], ReferenceEvaluator(model).run(None, {"x": X})[0], atol=1e-5
    )


@pytest.mark.parametrize(
    ("nodes", "inputs", "part"),
    [
        ([GEMM, helper.make_node("Sin", ["h"], ["a"]), *LOGITS], ("x",), "operation Sin"),
        (
            [GEMM, helper.make_node("Cast", ["h"], ["a"], to=TensorProto.INT64), *LOGITS],
            ("x",),
            "operation Cast (Cast) gives other values than its exported step, with to 7",
        ),
        ([GEMM, TANH, *LOGITS], ("x", "hidden"), "has the inputs x, hidden"),
        (
            [helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1, alpha=2.0), TANH, *LOGITS],
            ("x",),
            "operation Gemm (Gemm) gives other values than its exported step, with alpha 2",
        ),
        ([GEMM, TANH, helper.make_node("Mul", ["a", "h"], ["y"])], ("x",), "operation Mul"),
        ([helper.make_node("Transpose", ["x"], ["a"]), *LOGITS], ("x",), "operation Transpose"),
    ],
)
def test_graphs_that_are_no_mlp_are_refused_by_name(checkpoints, capsys, nodes, inputs, part):
    save(checkpoints / "SA101_trial_4.onnx", nodes, inputs=inputs)
    refuses(
        capsys,
        checkpoints,
        part,
        flags=(
            "--action",
            "categorical",
        ),
    )


SELU = helper.make_node("Selu", ["h"], ["a"], alpha=1.0, gamma=1.0)
FOREIGN = helper.make_node("Relu", ["h"], ["a"], domain="my.ops")
SHAPES = {"rows": [-1, 5], "flat": [0, -1], "split": [-1, 5, 1], "all": [-1, 1], "blocks": [-1, -1]}


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        (
            [GEMM, SELU, *LOGITS],
            "operation Selu (Selu) gives other values than its exported step, with alpha 1, gamma 1",
        ),
        ([GEMM, FOREIGN, *LOGITS], "operation my.ops::Relu (Relu)"),
        (
            [GEMM, helper.make_node("Clip", ["h", "nan", "nan"], ["a"]), *LOGITS],
            "operation Clip (Clip) gives other values",
        ),
        ([helper.make_node("Gemm", ["x", "huge", "b0"], ["h"], transB=1), TANH, *LOGITS], "huge holds float64 values"),
    ],
)
def test_operations_with_unusual_settings_are_refused(checkpoints, capsys, nodes, part):
    more = [
        numpy_helper.from_array(np.array(np.nan, np.float32), "nan"),
        numpy_helper.from_array(np.full((8, 5), 1e300), "huge"),
    ]
    save(checkpoints / "SA101_trial_4.onnx", nodes, more=more)
    refuses(
        capsys,
        checkpoints,
        part,
        flags=(
            "--action",
            "categorical",
        ),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_only_a_reshape_that_keeps_rows_is_ignored(checkpoints, capsys, shape):
    more = [numpy_helper.from_array(np.array(SHAPES[shape]), "shape")]
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Gemm", ["r", "w0", "b0"], ["h"], transB=1),
    ]
    model = save(checkpoints / "SA101_trial_4.onnx", [*nodes, TANH, *LOGITS], more=more)
    code = export(checkpoints, "--action", "categorical")
    if shape in ("rows", "flat"):
        assert code == 0
        logits = ReferenceEvaluator(model).run(None, {"x": X})[0]
        np.testing.assert_array_equal(outputs(checkpoints)["action"], logits.argmax(1))
    else:
        assert code == 2
        refused(
            capsys,
            "operation Reshape (Reshape) cannot be evaluated" if shape == "blocks" else "operation Gemm (Gemm) cannot",
        )


def test_actor_that_takes_the_observation_in_parts_is_refused(checkpoints, capsys):
    save(checkpoints / "SA101_trial_4.onnx", [GEMM, TANH, *LOGITS], size=10)
    refuses(
        capsys,
        checkpoints,
        "operation Gemm (Gemm) cannot be evaluated: shapes (1,10) and (5,8) not aligned",
        flags=(
            "--action",
            "categorical",
        ),
    )


def test_observation_divided_by_a_number_and_a_bias_of_one_row_are_read(checkpoints):
    more = [
        numpy_helper.from_array(np.array(4, np.float32), "four"),
        numpy_helper.from_array(RNG.random((1, 8)).astype(np.float32), "row"),
    ]
    nodes = [
        helper.make_node("Div", ["x", "four"], ["d"]),
        helper.make_node("Gemm", ["d", "w0", "row"], ["h"], transB=1),
    ]
    model = save(checkpoints / "SA101_trial_4.onnx", [*nodes, TANH, *LOGITS], more=more)
    assert export(checkpoints, "--action", "categorical") == 0
    logits = ReferenceEvaluator(model).run(None, {"x": X})[0]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs(checkpoints)["probabilities"], expected, atol=1e-5)


def test_weights_of_constant_operations_are_read_and_another_head_is_not_run(checkpoints):
    nodes = [
        helper.make_node("Transpose", ["w0"], ["w0t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w0t"], ["m0"]),
        helper.make_node("Add", ["m0", "b0"], ["h"]),
        TANH,
        *LOGITS,
        helper.make_node("Sin", ["h"], ["value"]),
    ]
    model = save(checkpoints / "SA101_trial_4.onnx", nodes)
    assert export(checkpoints, "--action", "categorical") == 0
    logits = ReferenceEvaluator(model).run(None, {"x": X})[0]
    np.testing.assert_array_equal(outputs(checkpoints)["action"], logits.argmax(1))


@pytest.mark.parametrize(("alpha", "code"), [(1.0, 0), (0.5, 2)])
def test_activation_is_what_its_attributes_make_of_it(checkpoints, alpha, code):
    elu = helper.make_node("Elu", ["h"], ["a"], alpha=alpha)
    save(checkpoints / "SA101_trial_4.onnx", [GEMM, elu, *LOGITS])
    assert export(checkpoints, "--action", "categorical") == code


def test_weights_in_another_file_are_not_looked_for(checkpoints, capsys):
    model = save(checkpoints / "SA101_trial_4.onnx", [GEMM, TANH, *LOGITS])
    onnx.external_data_helper.convert_model_to_external_data(model, location="../secret", size_threshold=0)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location="../secret")
    model.graph.initializer[0].ClearField("raw_data")
    (checkpoints / "SA101_trial_4.onnx").write_bytes(model.SerializeToString())
    refuses(
        capsys,
        checkpoints,
        "its tensor w0 is in another file",
        flags=(
            "--action",
            "categorical",
        ),
    )


@pytest.mark.parametrize("data", [b"", b"ONNX", b"\x08" * 200])
def test_damaged_files_get_one_line(checkpoints, capsys, data):
    (checkpoints / "SA101_trial_4.onnx").write_bytes(data)
    refuses(capsys, checkpoints, "SA101_trial_4.onnx")
