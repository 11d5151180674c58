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


def graph_of(function):
    return tf.function(function, autograph=False).get_concrete_function(SPEC).graph.as_graph_def()


def refused(graph):
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
    assert operations <= refused(graph_of(function))


def test_network_with_branches_loops_and_variables_may_run():
    weights = tf.Variable(tf.ones([4, 2]))

    def network(x):
        y = tf.nn.relu(tf.matmul(x, weights))
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.softmax(y), lambda: tf.function(layers)(x))
        return tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z * 0.5), (0, y))[1]

    assert refused(graph_of(network)) == set()


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
    unknown = {name for name in ALLOWED if not hasattr(tf.raw_ops, name)}
    assert unknown <= {"Variable", "VariableV2", "Placeholder", "PlaceholderV2"} | (
        ALLOWED & {"StatefulPartitionedCall"}
    )


def test_function_that_tensorflow_may_run_in_the_place_of_another_counts():
    graph = graph_of(in_a_called_function)
    harmless = graph_of(lambda x: tf.function(layers)(x))
    for function in (*graph.library.function, *harmless.library.function):
        function.attr["api_implements"].s = b"layer"
    harmless.library.function.extend(graph.library.function)
    assert refused(harmless) == {"WriteFile"}


def test_function_cannot_have_the_name_of_an_operation():
    graph = graph_of(in_a_called_function)
    graph.library.function[0].signature.name = "WriteFile"
    with tf.Graph().as_default(), pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="WriteFile"):
        tf.import_graph_def(graph)


def calls(interface="", **functions):
    """A graph that calls the last of these functions of an interface, each with nodes of these operations."""
    graph = tensorflow_pb2.GraphDef()
    for name, operations in functions.items():
        function = graph.library.function.add()
        function.signature.name = name
        if interface:
            function.attr["api_implements"].s = interface.encode()
        for number, operation in enumerate(operations):
            function.node_def.add(op=operation, name=f"n{number}")
    graph.node.add(op=name, name="call")
    return graph


DOUBLED = {f"f{k}": [f"f{k - 1}"] * 2 for k in range(1, 61)}
"""Each function calls the one before twice: TensorFlow would inline over 2^60 nodes."""


@pytest.mark.parametrize(
    ("graph", "bound", "size"),
    [
        (calls(f0=["Tanh"], **DOUBLED), None, 1 + 3 * 2**60 - 2),
        (calls(f=["Tanh"] * 2, g=["f"] * 2, h=["g"] * 2), 5, 1 + 5),  # 2 nodes of f, 6 of g, 14 of h
        (calls("layer", b=["Tanh"], a=["Tanh"]), None, 3),  # functions that may run in the place of a called one
        (calls("layer", b=["Tanh", "a"], a=["Tanh"]), None, None),
    ],
)
def test_size_counts_a_function_for_each_call_of_it_up_to_a_bound(monkeypatch, graph, bound, size):
    monkeypatch.setattr(graph_operations, "MAX_INLINED_SIZE", bound or graph_operations.MAX_INLINED_SIZE)
    if size is None:
        with pytest.raises(graphlib.CycleError):
            Closure(graph).inlined_size()
    else:
        assert Closure(graph).inlined_size() == size
