"""Which operations of a graph a run can reach, and which of them may run."""

import graphlib

import pytest
import tensorflow as tf

from protos import tensorflow_pb2
from serving import graph_operations
from serving.graph_operations import ALLOWED, Closure

SPEC = tf.TensorSpec([None, 4], tf.float32)


def layers(x):
    return tf.tanh(tf.matmul(x, tf.ones([4, 2])))


def write(x):
    tf.io.write_file("/tmp/never", "x")
    return layers(x)


def as_control_input(x):
    with tf.control_dependencies([tf.io.write_file("/tmp/never", "x")]):
        return layers(x)


def in_a_branch(x):
    return tf.cond(tf.reduce_sum(x) > 1e9, lambda: write(x), lambda: layers(x))


def in_a_loop(x):
    def body(i, y):
        tf.print("x", output_stream="file:///tmp/never")
        return i + 1, y

    return tf.while_loop(lambda i, _: i < 3, body, (0, layers(x)))[1]


def in_a_called_function(x):
    return tf.function(write)(x)


def from_a_file(x):
    return layers(x) + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)


def by_python(x):
    return tf.ensure_shape(tf.numpy_function(lambda y: y, [layers(x)], tf.float32), [None, 2])


def refused(function):
    graph = tf.function(function, autograph=False).get_concrete_function(SPEC).graph.as_graph_def()
    closure = Closure(graph)
    return set(closure.refused(closure.of_nodes(node.name for node in graph.node)))


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (as_control_input, {"WriteFile"}),
        (in_a_branch, {"WriteFile"}),
        (in_a_loop, {"PrintV2"}),
        (in_a_called_function, {"WriteFile"}),
        (from_a_file, {"ReadFile", "StringLength"}),
        (by_python, {"PyFunc"}),
    ],
)
def test_operation_that_does_more_than_arithmetic_is_found(function, operations):
    assert operations <= refused(function)


def test_network_with_branches_loops_and_variables_may_run():
    weights = tf.Variable(tf.ones([4, 2]))

    def network(x):
        y = tf.nn.relu(tf.matmul(x, weights))
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.softmax(y), lambda: tf.function(layers)(x))
        return tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z * 0.5), (0, y))[1]

    assert refused(network) == set()


def test_only_what_the_output_depends_on_counts():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], "x")
        output = tf.identity(layers(x), "action")
        tf.io.write_file("/tmp/never", "x", name="elsewhere")
    closure = Closure(graph.as_graph_def())
    assert closure.refused(closure.of_nodes([output.name])) == {}
    assert closure.refused(closure.of_nodes(["elsewhere"])) == {"WriteFile": "elsewhere"}


def test_every_allowed_operation_exists():
    known = {name for name in ALLOWED if tf.raw_ops.__dict__.get(name) is not None}
    assert ALLOWED - known <= {"Variable", "VariableV2", "Placeholder", "PlaceholderV2"} | (
        ALLOWED & {"StatefulPartitionedCall"}
    )


def test_function_that_tensorflow_may_run_in_the_place_of_another_counts():
    graph = tf.function(in_a_called_function, autograph=False).get_concrete_function(SPEC).graph.as_graph_def()
    harmless = (
        tf.function(lambda x: tf.function(layers)(x), autograph=False).get_concrete_function(SPEC).graph.as_graph_def()
    )
    for function in (*graph.library.function, *harmless.library.function):
        function.attr["api_implements"].s = b"layer"
    harmless.library.function.extend(graph.library.function)
    closure = Closure(harmless)
    assert set(closure.refused(closure.of_nodes(node.name for node in harmless.node))) == {"WriteFile"}


def test_function_cannot_have_the_name_of_an_operation():
    graph = tf.function(in_a_called_function, autograph=False).get_concrete_function(SPEC).graph.as_graph_def()
    graph.library.function[0].signature.name = "WriteFile"
    with tf.Graph().as_default(), pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="WriteFile"):
        tf.import_graph_def(graph)


def test_size_counts_a_function_for_each_call_of_it():
    """f0 has 1 node, and each further function calls the one before twice: TensorFlow would inline 2^60 nodes."""
    graph = tensorflow_pb2.GraphDef()
    graph.library.function.add().node_def.add(op="Tanh", name="y")
    for k in range(1, 61):
        function = graph.library.function.add()
        for name in ("first", "second"):
            function.node_def.add(op="PartitionedCall", name=name).attr["f"].func.name = f"f{k - 1}"
    for k, function in enumerate(graph.library.function):
        function.signature.name = f"f{k}"
    graph.node.add(op="f60", name="call")
    sizes = [1]
    for _ in range(60):
        sizes.append(2 + 2 * sizes[-1])
    assert Closure(graph).inlined_size() == 1 + sizes[-1] > 1 << 60


def test_size_is_counted_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(graph_operations, "MAX_INLINED_SIZE", 5)
    graph = tensorflow_pb2.GraphDef()
    for name, called in (("f", "Tanh"), ("g", "f"), ("h", "g")):
        function = graph.library.function.add()
        function.signature.name = name
        for node in ("first", "second"):
            function.node_def.add(op=called, name=node)
    graph.node.add(op="h", name="call")
    assert Closure(graph).inlined_size() == 1 + 5, "2 nodes of f, 6 of g, 14 of h"


def test_size_counts_functions_that_may_run_in_the_place_of_a_called_one():
    graph = tensorflow_pb2.GraphDef()
    for name in ("a", "b"):
        function = graph.library.function.add()
        function.signature.name, function.attr["api_implements"].s = name, b"layer"
        function.node_def.add(op="Tanh", name="y")
    graph.node.add(op="a", name="call")
    assert Closure(graph).inlined_size() == 3
    graph.library.function[1].node_def.add(op="a", name="call")
    with pytest.raises(graphlib.CycleError):
        Closure(graph).inlined_size()
