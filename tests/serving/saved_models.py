"""SavedModels that are no policies: every dtype, classify and regress signatures, slow ones. Written by TensorFlow itself."""

from pathlib import Path

import tensorflow as tf

tf1 = tf.compat.v1
EXPERIMENTAL = tf.dtypes.experimental
CLASSIFY, REGRESS, PREDICT = (f"tensorflow/serving/{name}" for name in ("classify", "regress", "predict"))


def write(folder: Path, signatures) -> None:
    """`signatures`: name -> (method, inputs, outputs), built by a function inside the graph."""
    with tf.Graph().as_default(), tf1.Session() as session:
        builder = tf1.saved_model.Builder(str(folder))
        found = {
            name: tf1.saved_model.build_signature_def(
                {key: tf1.saved_model.build_tensor_info(tensor) for key, tensor in inputs.items()},
                {key: tf1.saved_model.build_tensor_info(tensor) for key, tensor in outputs.items()},
                method,
            )
            for name, (method, inputs, outputs) in signatures().items()
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=found)
        builder.save()


def write_examples(folder: Path) -> None:
    """y = 2 x + offset of tf.Examples; classes by sign, with two scores."""

    def signatures():
        examples = tf1.placeholder(tf.string, [None], "examples")
        features = {"x": tf.io.FixedLenFeature([1], tf.float32), "offset": tf.io.FixedLenFeature([1], tf.float32, [0.0])}
        parsed = tf.io.parse_example(examples, features)
        y = 2 * parsed["x"] + parsed["offset"]
        scores = tf.concat([y, -y], 1)
        classes = tf.tile(tf.constant([["plus", "minus"]]), [tf.shape(y)[0], 1])
        given = {"inputs": examples}
        return {
            "serving_default": (REGRESS, given, {"outputs": y}),
            "classes": (CLASSIFY, given, {"classes": classes, "scores": scores}),
            "scores": (CLASSIFY, given, {"scores": scores}),
            "labels": (CLASSIFY, given, {"classes": classes}),
            "wide": (REGRESS, given, {"outputs": scores}),
            "misnamed": (REGRESS, given, {"y": y}),
            "by_predict": (PREDICT, given, {"y": y}),
        }

    write(folder, signatures)


DTYPES = [
    tf.float32, tf.float64, tf.int32, tf.uint8, tf.int16, tf.int8, tf.string, tf.complex64, tf.int64, tf.bool, tf.uint16,
    tf.complex128, tf.half, tf.uint32, tf.uint64, tf.bfloat16, tf.qint8, tf.quint8, tf.qint32, tf.qint16, tf.quint16,
    EXPERIMENTAL.float8_e5m2, EXPERIMENTAL.float8_e4m3fn, EXPERIMENTAL.int4, EXPERIMENTAL.uint4,
]  # fmt: skip


def write_dtypes(folder: Path) -> None:
    """A signature for every dtype, which gives back what it gets; and one of two inputs, one with a default."""

    def signatures():
        made = {}
        for dtype in DTYPES:
            x = tf1.placeholder(dtype, None, dtype.name)
            made[dtype.name] = (PREDICT, {"x": x}, {"y": tf.identity(x)})
        a, b = tf1.placeholder(tf.float32, [None, None], "a"), tf1.placeholder(tf.float32, [None, None], "b")
        made["sum"] = (PREDICT, {"a": a, "b": b}, {"sum": a + b, "difference": a - b})
        flat = tf1.placeholder(tf.float32, [], "flat")
        made["flat"] = (PREDICT, {"x": flat}, {"y": flat + 1, "z_bytes": tf.as_string(flat)})
        text = made["string"][1]["x"]
        made["texts"] = (PREDICT, {"x": text}, {"y_bytes": tf.identity(text), "y": tf.identity(text)})
        return made

    write(folder, signatures)
