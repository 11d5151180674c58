"""SavedModels that are not policies, written by TensorFlow: every dtype, variables, slow ones."""

import contextlib
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

tf1 = tf.compat.v1
PREDICT = "tensorflow/serving/predict"


def write(folder: Path, signatures, main_op=lambda: None) -> None:
    """`signatures`: function that builds name -> (method, inputs, outputs) inside the graph; `main_op`: what is run at
    its load."""
    with tf.Graph().as_default(), tf1.Session() as session:
        builder = tf1.saved_model.Builder(str(folder))
        definitions = signatures()
        session.run(tf1.global_variables_initializer())
        signature_defs = {
            name: tf1.saved_model.build_signature_def(
                {key: tf1.saved_model.build_tensor_info(tensor) for key, tensor in inputs.items()},
                {key: tf1.saved_model.build_tensor_info(tensor) for key, tensor in outputs.items()},
                method,
            )
            for name, (method, inputs, outputs) in definitions.items()
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signature_defs, main_op=main_op())
        builder.save()


@contextlib.contextmanager
def edited(folder: Path):
    """The graph of a SavedModel, which is written again at the end."""
    file = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    yield model.meta_graphs[0]
    file.write_bytes(model.SerializeToString())


def write_garbage(folder: Path) -> Path:
    """A version that cannot be loaded: the path of its saved_model.pb."""
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"garbage")
    return folder / "saved_model.pb"


DTYPES = [
    tf.float32, tf.float64, tf.int32, tf.uint8, tf.int16, tf.int8, tf.string, tf.complex64, tf.int64, tf.bool,
    tf.uint16, tf.complex128, tf.half, tf.uint32, tf.uint64, tf.bfloat16,
]  # fmt: skip

UNSUPPORTED_DTYPES = [tf.qint8, tf.quint16, tf.dtypes.experimental.float8_e5m2, tf.dtypes.experimental.int4]


def write_dtypes(folder: Path) -> None:
    """An identity signature for every dtype, and a signature with two inputs and outputs."""

    def signatures():
        signature_defs = {}
        for dtype in (*DTYPES, *UNSUPPORTED_DTYPES):
            x = tf1.placeholder(dtype, None, dtype.name)
            signature_defs[dtype.name] = (PREDICT, {"x": x}, {"y": tf.identity(x)})
        a, b = tf1.placeholder(tf.float32, [None, None], "a"), tf1.placeholder(tf.float32, [None, None], "b")
        signature_defs["sum"] = (PREDICT, {"a": a, "b": b}, {"sum": a + b, "difference": a - b})
        flat = tf1.placeholder(tf.float32, [], "flat")
        signature_defs["flat"] = (PREDICT, {"x": flat}, {"y": flat + 1, "z_bytes": tf.as_string(flat)})
        text = signature_defs["string"][1]["x"]
        signature_defs["strings"] = (PREDICT, {"x": text}, {"y_bytes": tf.identity(text), "y": tf.identity(text)})
        return signature_defs

    write(folder, signatures)


def write_echo(folder: Path, dtype: tf.DType, *keys: str) -> None:
    """Inputs of any shape, returned under their own names."""

    def signatures():
        inputs = {key: tf1.placeholder(dtype, None, key) for key in keys}
        return {"serving_default": (PREDICT, inputs, {key: tf.identity(x) for key, x in inputs.items()})}

    write(folder, signatures)


def write_memory(folder: Path) -> None:
    """Two signatures that return the input of the previous call, numbers and strings, out of variables."""

    def signatures():
        signature_defs = {}
        for name, dtype, first in (("serving_default", tf.float32, [0.0] * 4), ("strings", tf.string, ["first"])):
            initial = tf1.constant_initializer(first, dtype=dtype)
            kept = tf1.get_variable(name, [len(first)], dtype, initial, use_resource=True)
            x = tf1.placeholder(dtype, [len(first)])
            before = tf.strings.join([kept.read_value(), ""]) if dtype == tf.string else kept.read_value() + 0.0
            with tf1.control_dependencies([before]):
                assigned = tf1.raw_ops.AssignVariableOp(resource=kept.handle, value=x)
            with tf1.control_dependencies([assigned]):
                signature_defs[name] = (PREDICT, {"x": x}, {"before": tf.identity(before)})
        return signature_defs

    write(folder, signatures)


def write_defaults(folder: Path) -> None:
    """y = 10 a + b, with 7 as the default of a; in `soft` the graph has other defaults of its own."""

    def signatures():
        signature_defs = {}
        for name in ("serving_default", "soft"):
            a, b = (
                tf1.placeholder(tf.float32, [None], key)
                if name != "soft"
                else tf1.placeholder_with_default([n], [None])
                for key, n in (("a", 100.0), ("b", 1000.0))
            )
            signature_defs[name] = (PREDICT, {"a": a, "b": b}, {"y": 10 * a + b})
        return signature_defs

    write(folder, signatures)
    with edited(folder) as meta_graph:
        for definition in meta_graph.signature_def.values():
            definition.defaults["a"].CopyFrom(tf.make_tensor_proto([7.0]))


def write_reference(folder: Path) -> None:
    """An output that is a TensorFlow 1 variable: its dtype is a reference."""

    def signatures():
        kept = tf1.get_variable("kept", [2], tf.float32, tf1.constant_initializer([1.0, 2.0]), use_resource=False)
        x = tf1.placeholder(tf.float32, [None], "x")
        return {"serving_default": (PREDICT, {"x": x}, {"y": kept._ref(), "z": x + 1})}

    write(folder, signatures)


def write_slow(folder: Path, seconds_each: int = 60) -> None:
    """A run that takes seconds: a chain of products of large matrices."""

    def signatures():
        x = tf1.placeholder(tf.float32, [None, None], "x")
        y = w = tf.fill([1500, 1500], tf.reduce_sum(x) * 1e-9)
        for _ in range(seconds_each):
            y = tf.matmul(y, w)
        return {"serving_default": (PREDICT, {"x": x}, {"y": y[:1, :1]})}

    write(folder, signatures)
