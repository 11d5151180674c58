"""Untrusted graphs: an operation that does more than arithmetic is refused before anything is run."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import variable_pb2

from export.show import inspect_checkpoint
from tests.export import writers
from tests.export.exporting import exported, refuses, same
from tests.export.writers import Tampered, X
from tests.serving import saved_models
from tests.serving.saved_models import edited


def as_control_input(path):
    def extra(act):
        with tf.control_dependencies([tf.io.write_file(path, "x")]):
            return tf.identity(act())

    return extra


def beside_the_output(path):
    def extra(act):
        tf.print("x", output_stream=f"file://{path}")
        return act()

    return extra


def in_a_branch(path):
    def write():
        tf.io.write_file(path, "x")
        return 1.0

    return lambda act: act() * tf.cond(tf.constant(1.0) > 0.5, write, lambda: 1.0)


def by_python(path):
    return lambda act: tf.ensure_shape(tf.numpy_function(lambda y: y, [act()], tf.float32), [None, 2])


OPERATIONS = {
    as_control_input: "WriteFile",
    beside_the_output: "StringFormat, at __inference_act",
    in_a_branch: "WriteFile",
    by_python: "PyFunc",
}
"""tests/serving/test_graph_operations.py has the other places of an operation."""


@pytest.mark.parametrize("what", OPERATIONS, ids=lambda what: what.__name__)
def test_saved_model_that_does_more_than_an_actor_is_refused_and_not_run(checkpoints, tmp_path, capsys, what):
    target = tmp_path / "target"
    folder = Tampered(what(str(target))).save(checkpoints)
    refuses(capsys, checkpoints, f"its graph would run {OPERATIONS[what]}", "nothing of it was run")
    assert inspect_checkpoint.main([str(folder)]) == 2
    assert "nothing of it was run" in "".join(capsys.readouterr())
    assert not target.exists()


def save_session(folder, target, local=False):
    """A SavedModel of a TF1 session that writes a file when it is loaded; `local`: for a local variable."""

    def signatures():
        x = tf.compat.v1.placeholder(tf.float32, [None, 9], "x")
        action = tf.tanh(tf.matmul(x, tf.compat.v1.get_variable("kernel", [9, 2])))
        if local:
            tf.compat.v1.get_variable("local", [1], collections=["local_variables"])
        tf.io.write_file(str(target), "x", name="write")
        return {"serving_default": (saved_models.PREDICT, {"x": x}, {"action": action})}

    main_op = lambda: None if local else tf.compat.v1.get_default_graph().get_operation_by_name("write")  # noqa: E731
    saved_models.write(folder, signatures, main_op)


def test_saved_model_that_writes_when_it_is_loaded_is_refused(checkpoints, tmp_path, capsys):
    save_session(checkpoints / "SA101_trial_1", tmp_path / "target")
    refuses(capsys, checkpoints, "its graph would run WriteFile")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["user_object", "constant"])
def test_only_a_constant_may_be_of_tensorflows_class_of_constants(checkpoints, capsys, kind):
    """Keras saves the mean of a Normalization layer as one."""
    mean = tf.range(9.0)
    agent = Tampered(lambda act: act() - mean[:2])
    with edited(agent.save(checkpoints)) as meta_graph:
        (node,) = (node for node in meta_graph.object_graph_def.nodes if node.HasField("constant"))
        assert node.registered_name == "tf.TrackableConstant"
        if kind == "user_object":
            node.user_object.identifier = "x"
    if kind == "constant":
        same(exported(checkpoints), agent.act(X).numpy())
    else:
        refuses(capsys, checkpoints, "a class (tf.TrackableConstant)")


def test_saved_model_with_a_table_is_refused(checkpoints, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("a\nb\n")
    agent = Tampered(lambda act: act())
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    words = tf.lookup.TextFileInitializer(str(tmp_path / "words.txt"), tf.string, line, tf.int64, number)
    agent.table = tf.lookup.StaticVocabularyTable(words, 1)
    agent.save(checkpoints)
    refuses(capsys, checkpoints, "its graph would run InitializeTableFromTextFile")


def test_training_graph_that_does_more_than_an_actor_is_refused_and_not_run(checkpoints, tmp_path, capsys):
    target = tmp_path / "target"
    with writers.session() as observation:
        mean = writers.dense(observation, 2, "actor/dense", tf.tanh)
        with tf.control_dependencies([tf.io.write_file(str(target), "x")]):
            tf.identity(mean, "mean")
        writers.saved(checkpoints, mean, {observation: X})
    refuses(capsys, checkpoints, "its graph would run WriteFile", flags=("--output-tensor", "mean"))
    assert not target.exists()


class Writer(Tampered):
    """An actor, beside another function that writes a file."""

    def __init__(self, path):
        super().__init__(lambda act: act())
        self.path = path

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def write(self, prefix):
        tf.io.write_file(self.path, "x")
        return prefix


def with_class_name(node, function):
    node.registered_name = "tf.StaticHashTable"


def as_saveable(node, function):
    node.saveable_objects["x"].save_function = function
    node.saveable_objects["x"].restore_function = function


def as_loader_method(node, function):
    node.children.add(local_name="_initialize", node_id=function)


@pytest.mark.parametrize("change", [with_class_name, as_saveable, as_loader_method], ids=lambda change: change.__name__)
def test_saved_model_whose_loader_would_call_its_function_is_refused(checkpoints, tmp_path, capsys, change):
    target = tmp_path / "target"
    with edited(Writer(str(target)).save(checkpoints)) as meta_graph:
        root = meta_graph.object_graph_def.nodes[0]
        change(root, next(child.node_id for child in root.children if child.local_name == "write"))
    refuses(capsys, checkpoints, "its graph would run", "nothing of it was run")
    assert not target.exists()


def test_local_variable_whose_initializer_writes_is_refused(checkpoints, tmp_path, capsys):
    save_session(checkpoints / "SA101_trial_1", tmp_path / "target", local=True)
    with edited(checkpoints / "SA101_trial_1") as meta_graph:
        values = meta_graph.collection_def["local_variables"].bytes_list.value
        variable = variable_pb2.VariableDef.FromString(values[0])
        variable.initializer_name = "write"
        values[0] = variable.SerializeToString()
    refuses(capsys, checkpoints, "its graph would run WriteFile")
    assert not (tmp_path / "target").exists()
