"""Graph code has no Python operator on a tensor that TensorFlow does not overload in a plain graph.

There `a == b` is identity of the tensors' Python objects, and so are `!=` and `in`: such a rule is dead in every
exported model, and alive in an eager test.
"""

import ast

import pytest

from tests.conftest import ROOT

FILES = sorted(
    [
        *(ROOT / "export" / "actors").glob("*.py"),
        *(path for name in ("graphs", "fleets", "saved_model") for path in (ROOT / "export" / name).glob("*.py")),
        *(ROOT / "training" / name for name in ("ppo.py", "mlp_learner.py", "checkpoints.py")),
        ROOT / "training" / "phase_competition" / "street_learner.py",
        ROOT / "pretraining" / "streets_trainer.py",
        ROOT / "export" / "quiet.py",
    ]
)
ALLOWED = {
    "export/actors/phase_competition_graph.py": [
        "x.shape.rank == 2", "weights[name].shape.rank == len(shape)", "part.shape.rank == JUNCTION_RANKS[name]",
        "np.arange(len(FEATURES)) == TOTAL_WAIT",
    ],
    "export/actors/steps.py": ["bias.shape.rank == 1", "x.shape[-1] == self.choices"],
    "export/fleets/fleet_graph.py": ["not members[0].categorical", "actor.scores == Q_VALUES"],
    "export/graphs/graph_actor.py": [
        "node.name == trained.observation", "node.name in trained.constants", "node in remaining", "not weights",
        "node.op in RANDOM_MEAN", "node.name not in trained.variables", "node.op not in REFERENCES",
        "node.op in VARIABLES", "node.op not in _PASSES", "dtype == tf.resource",
        'not any(node.op == "Merge" for node in graph.node)', 'not source.startswith("^")',
        'node.attr["T"].type != tf.resource.as_datatype_enum',
    ],
    "export/graphs/trained_function.py": [
        "not model.meta_graphs", "id(v) in names", "id(captured) in handles", "name_counts[name] == 1",
        "tensor.dtype == tf.bool", "captured.dtype != tf.resource", "tensor is not observation", "value is True",
        "shape.rank == 2",
        "not any( value is True for value in tf.nest.flatten(concrete.structured_input_signature) )",
    ],
    "export/graphs/training_graph.py": ["shape != list(values.shape)"],
    "export/graphs/user_builder.py": [
        "not scope", 'self.path.suffix in (".h5", ".hdf5", ".keras")',
        'checkpoint.stored[name].dtype not in ("string", "object")',
    ],
    "export/saved_model/write.py": [
        "node.name == CONTRACT", "node.name == INPUT", "weight.is_shared is is_shared",
        "key not in _templates", "not categorical", "scores == Q_VALUES", "node.name == OBSERVATION",
        "actor.output_kind == PROBABILITIES_OUTPUT", 'f"{node.name}:0" not in inputs',
    ],
    "training/checkpoints.py": ["k == 0", "path.stem != newest"],
}  # fmt: skip
"""By file, comparisons of sizes, names, kinds and NumPy arrays in functions that build operations."""
PYTHON_ONLY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)


def builds_operations(function):
    """True if a function calls TensorFlow's operations: a dotted name that begins with tf."""
    return any(isinstance(node, ast.Name) and node.id == "tf" for node in ast.walk(function))


def forbidden(source, allowed=()):
    """Texts of comparisons in functions that build operations, which TensorFlow does not overload."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [
        text for function in functions if builds_operations(function) for text in compared(function, source, allowed)
    ]


def compared(function, source, allowed):
    for node in ast.walk(function):
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if is_not or (isinstance(node, ast.Compare) and any(isinstance(op, PYTHON_ONLY) for op in node.ops)):
            text = " ".join(ast.get_source_segment(source, node).split())
            sides = [] if is_not else [node.left, *node.comparators]
            if text not in allowed and not any(map(is_no_tensor, sides)):
                yield text


def is_no_tensor(node):
    """True for a text or None."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str))


def names_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_graph_code_compares_no_tensors_with_pythons_operators(path):
    assert forbidden(path.read_text(), ALLOWED.get(names_of(path), ())) == []


def test_every_allowed_comparison_is_used():
    for name, texts in ALLOWED.items():
        assert sorted(set(forbidden((ROOT / name).read_text()))) == sorted(texts), name


@pytest.mark.parametrize(
    "comparison",
    ["x == k", "x != y", "x in (y, k)", "x not in y", "x is y", "x is not y", "not x", "x == 0"],
)
def test_a_comparison_of_tensors_is_found(comparison):
    assert forbidden(f"def rule(x, y, k):\n    return tf.where({comparison}, x, y)\n") == [comparison]
    assert forbidden(f"def rule(x, y, k):\n    return np.where({comparison}, x, y)\n") == []


def test_texts_and_none_may_be_compared():
    assert forbidden('def f(x, k):\n    return tf.nn.relu(x) if k == "relu" and x is not None else x\n') == []
