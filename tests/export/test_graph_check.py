"""Untrusted graphs: an operation that does more than arithmetic is refused before anything is run."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import saved_model_pb2

from export.show import inspect_checkpoint
from tests.export import writers
from tests.export.exporting import exported, refuses, same

SPEC = tf.TensorSpec([None, 5], tf.float32, name="observation")


class Agent(tf.Module):
    """An actor that also does something else with a file."""

    def __init__(self, extra):
        super().__init__()
        self.kernel = tf.Variable(tf.random.stateless_normal([5, 2], [1, 2]), name="kernel")
        self.extra = extra

    @tf.function(input_signature=[SPEC], autograph=False)
    def act(self, observation):
        return self.extra(lambda: tf.tanh(tf.matmul(observation, self.kernel)))


def save(checkpoints, agent):
    """Save an agent; returns the folder of the SavedModel."""
    folder = checkpoints / "SA101_trial_1"
    tf.saved_model.save(agent, str(folder), signatures={"serving_default": agent.act})
    return folder


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


def in_a_loop(path):
    def body(i):
        tf.io.write_file(path, "x")
        return i + 1

    return lambda act: act() * tf.cast(tf.while_loop(lambda i: i < 1, body, [0])[0], tf.float32)


def from_the_file(path):
    return lambda act: act() + tf.cast(tf.strings.length(tf.io.read_file(path)), tf.float32)


def by_python(path):
    return lambda act: tf.ensure_shape(tf.numpy_function(lambda y: y, [act()], tf.float32), [None, 2])


OPERATIONS = {
    as_control_input: "WriteFile",
    beside_the_output: "StringFormat, at __inference_act",
    in_a_branch: "WriteFile",
    in_a_loop: "WriteFile",
    from_the_file: "ReadFile",
    by_python: "PyFunc",
}


@pytest.mark.parametrize("what", OPERATIONS, ids=lambda what: what.__name__)
def test_saved_model_that_does_more_than_an_actor_is_refused_and_not_run(checkpoints, tmp_path, capsys, what):
    target = tmp_path / "target"
    folder = save(checkpoints, Agent(what(str(target))))
    refuses(capsys, checkpoints, f"its graph would run {OPERATIONS[what]}", "nothing of it was run")
    assert inspect_checkpoint.main([str(folder)]) == 2
    assert "nothing of it was run" in "".join(capsys.readouterr())
    assert not target.exists()


def save_session(folder, target, local=False):
    """A SavedModel of a TF1 session that writes a file when it is loaded; `local`: for a local variable."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 5], "x")
        kernel = tf.compat.v1.get_variable("kernel", [5, 2])
        action = tf.tanh(tf.matmul(x, kernel))
        if local:
            tf.compat.v1.get_variable("local", [1], collections=["local_variables"])
        write = tf.io.write_file(str(target), "x")
        session.run(kernel.initializer)
        builder = tf.compat.v1.saved_model.Builder(str(folder))
        signature = tf.compat.v1.saved_model.predict_signature_def({"x": x}, {"action": action})
        main_op = None if local else write
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=main_op)
        builder.save()
        return write.name


def test_saved_model_that_writes_when_it_is_loaded_is_refused(checkpoints, tmp_path, capsys):
    save_session(checkpoints / "SA101_trial_1", tmp_path / "target")
    refuses(capsys, checkpoints, "its graph would run WriteFile")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["user_object", "constant"])
def test_only_a_constant_may_be_of_tensorflows_class_of_constants(checkpoints, capsys, kind):
    """Keras saves the mean of a Normalization layer as one."""
    mean = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    agent = Agent(lambda act: act())
    agent.act = tf.function(
        lambda observation: tf.tanh(tf.matmul(observation - mean, agent.kernel)),
        input_signature=[SPEC],
        autograph=False,
    )
    folder = save(checkpoints, agent)
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = [node for node in model.meta_graphs[0].object_graph_def.nodes if node.HasField("constant")]
    assert [node.registered_name for node in nodes] == ["tf.TrackableConstant"]
    if kind == "constant":
        x = tf.random.stateless_normal([4, 5], [3, 4])
        same(exported(checkpoints, x=x.numpy()), agent.act(x).numpy())
    else:
        nodes[0].user_object.identifier = "x"
        (folder / "saved_model.pb").write_bytes(model.SerializeToString())
        refuses(capsys, checkpoints, "a class (tf.TrackableConstant)")


def test_saved_model_with_a_table_is_refused(checkpoints, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("a\nb\n")
    agent = Agent(lambda act: act())
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    words = tf.lookup.TextFileInitializer(str(tmp_path / "words.txt"), tf.string, line, tf.int64, number)
    agent.table = tf.lookup.StaticVocabularyTable(words, 1)
    save(checkpoints, agent)
    refuses(capsys, checkpoints, "its graph would run InitializeTableFromTextFile")


def test_training_graph_that_does_more_than_an_actor_is_refused_and_not_run(checkpoints, tmp_path, capsys):
    target = tmp_path / "target"
    with writers.session() as observation:
        mean = writers.dense(observation, 2, "actor/dense", tf.tanh)
        with tf.control_dependencies([tf.io.write_file(str(target), "x")]):
            tf.identity(mean, "mean")
        writers.saved(checkpoints, mean, {observation: writers.X})
    refuses(
        capsys,
        checkpoints,
        "its graph would run WriteFile",
        flags=("--output-tensor", "mean"),
    )
    assert not target.exists()


class Writer(Agent):
    """An actor, beside another function that writes a file."""

    def __init__(self, path):
        super().__init__(lambda act: act())
        self.path = path

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def write(self, prefix):
        tf.io.write_file(self.path, "x")
        return prefix


def with_class_name(model, functions):
    model.meta_graphs[0].object_graph_def.nodes[0].registered_name = "tf.StaticHashTable"


def as_saveable(model, functions):
    nodes = model.meta_graphs[0].object_graph_def.nodes
    nodes[0].saveable_objects["x"].save_function = functions["write"]
    nodes[0].saveable_objects["x"].restore_function = functions["write"]


def as_loader_method(model, functions):
    child = model.meta_graphs[0].object_graph_def.nodes[0].children.add()
    child.local_name, child.node_id = "_initialize", functions["write"]


@pytest.mark.parametrize("change", [with_class_name, as_saveable, as_loader_method], ids=lambda change: change.__name__)
def test_saved_model_whose_loader_would_call_its_function_is_refused(checkpoints, tmp_path, capsys, change):
    target = tmp_path / "target"
    folder = save(checkpoints, Writer(str(target)))
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    functions = {child.local_name: child.node_id for child in model.meta_graphs[0].object_graph_def.nodes[0].children}
    change(model, functions)
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())
    refuses(capsys, checkpoints, "its graph would run", "nothing of it was run")
    assert not target.exists()


def test_local_variable_whose_initializer_writes_is_refused(checkpoints, tmp_path, capsys):
    write = save_session(checkpoints / "SA101_trial_1", tmp_path / "target", local=True)
    path = checkpoints / "SA101_trial_1" / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    values = model.meta_graphs[0].collection_def["local_variables"].bytes_list.value
    variable = variable_pb2.VariableDef.FromString(values[0])
    variable.initializer_name = write
    values[0] = variable.SerializeToString()
    path.write_bytes(model.SerializeToString())
    refuses(capsys, checkpoints, "its graph would run WriteFile")
    assert not (tmp_path / "target").exists()
