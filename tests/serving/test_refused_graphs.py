"""The embedded server loads no model that does more than an actor, unless --allow_any_operation is passed."""

import shutil

import grpc
import numpy as np
import pytest
import tensorflow as tf

from protos import tensorflow_pb2
from serving.embedded.config import ServerConfig
from serving.embedded.models.servable import LoadError
from serving.embedded.status import StatusError
from serving.embedded.tensorflow import graph_check, session
from serving.embedded.tensorflow.session import Session
from tests.serving import saved_models
from tests.serving.conftest import running
from tests.serving.saved_models import edited

tf1 = tf.compat.v1


def write(folder, network, main_op=lambda path: None, path=""):
    """A SavedModel of TensorFlow 1; `network`: its output, `main_op`: what is run at its load."""

    def signatures():
        x = tf1.placeholder(tf.float32, [None, 4], "x")
        weights = tf1.get_variable("w", [4, 2], use_resource=True)
        return {"serving_default": (saved_models.PREDICT, {"x": x}, {"y": network(x, weights, path)})}

    saved_models.write(folder, signatures, lambda: main_op(path))


def save(folder, network):
    """A SavedModel of tf.saved_model.save; `network`: its output, from x and a variable."""
    module = tf.Module()
    module.kernel = tf.Variable(tf.ones([4, 2]))
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    act = tf.function(lambda x: {"y": network(x, module.kernel)}, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(folder), signatures=act)


def refused(folder, match):
    with pytest.raises(LoadError, match=match) as error:
        Session(folder)
    return str(error.value)


def actor(x, weights, _path):
    return tf.tanh(tf.matmul(x, weights))


def as_control_input(x, weights, path):
    with tf.control_dependencies([tf.io.write_file(path, "x")]):
        return tf.identity(actor(x, weights, path))


def in_a_function(x, weights, path):
    return tf.function(lambda z: as_control_input(z, weights, path), autograph=False)(x)


def memory(x, weights, _path):
    return tf1.assign_add(weights, tf.ones([4, 2])) + tf.reduce_sum(x)


@pytest.mark.parametrize(
    ("network", "operation"),
    [(as_control_input, "WriteFile"), (in_a_function, "WriteFile"), (memory, "AssignAddVariableOp")],
)
def test_model_that_does_more_than_an_actor_is_refused_by_name(tmp_path, network, operation):
    write(tmp_path / "m", network, path=str(tmp_path / "target"))
    assert refused(tmp_path / "m", f"{operation}.*nothing of it was run.*--allow_any_operation")
    assert not (tmp_path / "target").exists()
    assert Session(tmp_path / "m", allow_any_operation=True).signatures.keys() == {"serving_default"}


def test_file_is_not_written_while_a_model_is_loaded(tmp_path):
    target = tmp_path / "target"
    write(tmp_path / "models" / "M" / "1", actor, lambda path: tf.io.write_file(path, "x"), str(target))
    with running(ServerConfig(tmp_path / "models", port=0, poll_s=0)) as server:
        assert server.manager.served() == {} and not target.exists()
    with running(ServerConfig(tmp_path / "models", port=0, poll_s=0, allow_any_operation=True)) as server:
        assert server.manager.served() == {"M": [1]} and target.exists()


def test_restore_operation_is_checked_too(tmp_path):
    write(tmp_path / "m", actor)
    assert Session(tmp_path / "m")
    with edited(tmp_path / "m") as meta_graph:
        graph = meta_graph.graph_def
        for name, value in (("path", str(tmp_path / "target")), ("content", "x")):
            node = graph.node.add(name=name, op="Const")
            node.attr["dtype"].type = tf.string.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        graph.node.add(name="write", op="WriteFile", input=["path", "content"])
        restore = meta_graph.saver_def.restore_op_name
        next(node for node in graph.node if node.name == restore).input.append("^write")
    assert refused(tmp_path / "m", "WriteFile")
    assert not (tmp_path / "target").exists()


def test_function_that_is_passed_to_a_function_is_checked(tmp_path):
    """The attribute of a function in an attribute names another function, which TensorFlow puts in the place of a
    parameter."""
    write(tmp_path / "m", in_a_function, path=str(tmp_path / "target"))
    with edited(tmp_path / "m") as meta_graph:
        call = next(node for node in meta_graph.graph_def.node if node.attr["f"].HasField("func"))
        written = call.attr["f"].func.name
        call.attr["f"].func.name = "missing"
        call.attr["f"].func.attr["inner"].func.name = written
    assert refused(tmp_path / "m", "WriteFile")


def test_control_characters_of_a_graphs_names_do_not_reach_the_error(tmp_path):
    write(tmp_path / "m", as_control_input, path=str(tmp_path / "target"))
    name = "\x1b[2J\u202e" + "x" * 1000
    with edited(tmp_path / "m") as meta_graph:
        for node in meta_graph.graph_def.node:
            node.name = node.name if node.op != "WriteFile" else name
            node.input[:] = [f"^{name}" if "WriteFile" in edge else edge for edge in node.input]
    error = refused(tmp_path / "m", "WriteFile")
    assert error.isprintable() and len(error) < 500


@pytest.fixture
def short_loops(monkeypatch):
    monkeypatch.setattr(session, "_LOOP_CONFIG", tensorflow_pb2.ConfigProto(operation_timeout_in_ms=200))


def error_of_a_run(model, x):
    with pytest.raises(StatusError) as error:
        model.run("serving_default", {"x": x}, ["y"])
    return error.value.code


def endless(x, weights, _path):
    forever = tf.while_loop(
        lambda i, y: tf.less(i, 1.0), lambda i, y: (i * 0.5, tf.tanh(y)), (tf.reduce_min(x), actor(x, weights, ""))
    )
    return forever[1]


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_endless_loop_is_ended_by_the_time_limit(tmp_path, short_loops, control_flow):
    (tf1.enable_control_flow_v2 if control_flow == "v2" else tf1.disable_control_flow_v2)()
    try:
        write(tmp_path / "m", endless)
    finally:
        tf1.enable_control_flow_v2()
    model = Session(tmp_path / "m")
    assert error_of_a_run(model, np.zeros((1, 4), np.float32)) is grpc.StatusCode.DEADLINE_EXCEEDED
    (y,) = model.run("serving_default", {"x": np.full((1, 4), 2, np.float32)}, ["y"])
    assert y.shape == (1, 2), "other runs of the model are not affected"


def test_loop_is_not_run_while_a_model_is_loaded(tmp_path):
    def main_op(_path):
        return tf.while_loop(lambda i: tf.less(i, 1.0), lambda i: i * 0.5, [tf.zeros([])])[0].op

    write(tmp_path / "m", actor, main_op)
    assert refused(tmp_path / "m", r"its graph runs .*(While|Enter|NextIteration)")


def test_function_that_calls_itself_is_refused(tmp_path):
    outer = tf.function(lambda z: tf.function(tf.tanh)(z), autograph=False)
    write(tmp_path / "m", lambda x, weights, _: outer(actor(x, weights, "")))
    with edited(tmp_path / "m") as meta_graph:
        for function in meta_graph.graph_def.library.function:
            for node in (node for node in function.node_def if "f" in node.attr):
                node.attr["f"].func.name = function.signature.name
    assert refused(tmp_path / "m", "calls itself; nothing of it was run")


def test_graph_that_calls_make_too_large_is_refused(tmp_path, monkeypatch):
    half = tf.function(tf.tanh, autograph=False)
    quarter = tf.function(lambda x: half(half(x)), autograph=False)
    write(tmp_path / "m", lambda x, weights, _: quarter(quarter(actor(x, weights, ""))))
    assert Session(tmp_path / "m")
    monkeypatch.setattr(graph_check, "MAX_NODES", 10)
    assert refused(tmp_path / "m", r"its graph runs \d+ operations, more than 10; nothing of it was run")


@pytest.mark.parametrize(("limit", "name"), [("MAX_GRAPH_BYTES", "saved_model.pb"), ("MAX_MODEL_BYTES", "m")])
def test_large_model_is_refused_before_it_is_read(tmp_path, limit, name):
    write(tmp_path / "m", actor)
    file = tmp_path / "m" / ("saved_model.pb" if name != "m" else "variables/variables.data-00000-of-00001")
    with file.open("r+b") as sparse:
        sparse.truncate(getattr(graph_check, limit) + 1)
    assert refused(tmp_path / "m", rf"{name} has \d+ bytes, more than the \d+ that an actor may have")


def test_endless_loop_over_constants_is_ended_too(tmp_path, short_loops):
    """TensorFlow folds constants before the first run, where no time limit would hold."""

    save(tmp_path / "m", lambda x, _: x + tf.while_loop(lambda i: i < 1.0, lambda i: i * 0.5, [tf.constant(0.0)])[0])
    assert error_of_a_run(Session(tmp_path / "m"), np.ones((1, 4), np.float32)) is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("write_model", [lambda folder: save(folder, tf.matmul), saved_models.write_reference])
def test_a_model_whose_values_of_variables_are_missing_is_refused(tmp_path, write_model):
    write_model(tmp_path / "m")
    assert Session(tmp_path / "m")
    (tmp_path / "m" / "variables" / "variables.index").unlink()
    for allow_any_operation in (False, True):
        with pytest.raises(LoadError, match="index is missing; copy the whole version"):
            Session(tmp_path / "m", allow_any_operation)


def test_a_model_that_is_saved_without_a_variable_is_refused(tmp_path):
    write(tmp_path / "m", actor)
    with edited(tmp_path / "m") as meta_graph:
        (variable,) = (node for node in meta_graph.graph_def.node if node.name == "w")
        copy = meta_graph.graph_def.node.add()
        copy.CopyFrom(variable)
        copy.name, copy.attr["shared_name"].s = "unsaved", b"unsaved"
        for node in meta_graph.graph_def.node:
            if node.op == "ReadVariableOp":
                node.input[0] = "unsaved"
    refused(tmp_path / "m", "1 of its 1 variables have no value, such as 'unsaved': the version is saved without them")
    # a run of such a model may assign its variables itself
    assert Session(tmp_path / "m", allow_any_operation=True)


def test_a_model_whose_variables_are_assigned_by_its_main_op_needs_no_files(tmp_path):
    write(tmp_path / "m", actor, lambda _: tf1.global_variables()[0].assign(tf.ones([4, 2])).op)
    shutil.rmtree(tmp_path / "m" / "variables")
    (y,) = Session(tmp_path / "m").run("serving_default", {"x": np.ones((1, 4), np.float32)}, ["y"])
    assert np.allclose(y, np.tanh(4))
