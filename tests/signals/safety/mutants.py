"""Mutants of a Python module: its source with one operator, bound or condition changed.

Left out are annotations, decorators, docstrings, the text of messages and zip's
`strict`, which change no decision.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SIGNAL_LETTERS = frozenset("rygGsuoOY")
DIGITS = {"0": "1", "1": "0"}
_SKIPPED_FIELDS = frozenset(("annotation", "returns", "decorator_list", "format_spec", "bases"))


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    path: Path
    line: int
    function: str
    """Qualified name of the function or class; "" at the module's level."""
    before: str
    after: str
    number: int
    """Of equal changes in one function, in the order of the source, from 1."""
    compile: Callable[[], CodeType]
    """Compile the changed module. The syntax tree is changed in place, so at most one mutant is compiled in a
    process."""

    @property
    def key(self) -> str:
        """Names the mutant wherever its function moves to."""
        place = f"{self.path.stem}.{self.function}" if self.function else self.path.stem
        return f"{place}: {self.before} -> {self.after}" + (f" ({self.number})" if self.number > 1 else "")


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module, in the order of its source."""
    tree = ast.parse(path.read_text())
    counts: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    for parents, place, new in _changes(tree, ()):
        old = _get(parents[-1], place)
        context = _context(parents, old)
        before = ast.unparse(context or old)
        _set(parents[-1], place, new)
        after = ast.unparse(context or new)
        _set(parents[-1], place, old)
        if isinstance(old, ast.Continue | ast.Break | ast.Expr) and isinstance(parents[-1], ast.If):
            before, after = (f"if {ast.unparse(parents[-1].test)}: {text}" for text in (before, after))
        function = ".".join(node.name for node in parents if isinstance(node, ast.FunctionDef | ast.ClassDef))
        counts[function, before, after] += 1
        number = counts[function, before, after]

        def compiled(parent: ast.AST = parents[-1], place: "_Place" = place, new: ast.AST = new) -> CodeType:
            _set(parent, place, new)
            return compile(ast.fix_missing_locations(tree), str(path), "exec")

        line = getattr(old, "lineno", 0) or next(node.lineno for node in reversed(parents) if hasattr(node, "lineno"))
        mutants.append(Mutant(path, line, function, before, after, number, compiled))
    return mutants


_Place = tuple[str, int | None]
"""A field of a node, and the index in it if it is a list."""


def _get(parent: ast.AST, place: _Place) -> ast.AST:
    name, index = place
    return getattr(parent, name) if index is None else getattr(parent, name)[index]


def _set(parent: ast.AST, place: _Place, node: ast.AST) -> None:
    name, index = place
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _changes(parent: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[tuple[ast.AST, ...], _Place, ast.AST]]:
    """(ancestors, place in the last of them, what stands there instead)."""
    parents = (*above, parent)
    for name, value in ast.iter_fields(parent):
        if name in _SKIPPED_FIELDS:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(node, ast.AST) or _is_skipped(parent, node):
                continue
            place = name, index
            if _is_condition(parent, name) and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield parents, place, ast.UnaryOp(ast.Not(), node)
            for new in _replacements(node):
                yield parents, place, new
            yield from _changes(node, parents)


def _is_skipped(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.Constant):
        return isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.Expr) and isinstance(node.value, str))
    return False


def _is_condition(parent: ast.AST, field: str) -> bool:
    return (
        (isinstance(parent, ast.If | ast.IfExp | ast.While) and field == "test")
        or (isinstance(parent, ast.comprehension) and field == "ifs")
        or (isinstance(parent, ast.BoolOp) and field == "values")
    )


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node, each with one change."""
    match node:
        case ast.Compare(ops=ops):
            for k, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield _with(node, ops=[*ops[:k], other(), *ops[k + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op, values=values):
            # `a and b and c` has two operators, each of which is changed: `a or b and c`, `a and b or c`
            for k in range(1, len(values)):
                if isinstance(op, ast.And):
                    yield ast.BoolOp(ast.Or(), [_bool_op(op, values[:k]), _bool_op(op, values[k:])])
                else:
                    yield _bool_op(
                        op, [*values[: k - 1], ast.BoolOp(ast.And(), values[k - 1 : k + 1]), *values[k + 1 :]]
                    )
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(round(1.1 * value, 9) if value else 1.0)
        case ast.Constant(value=str(value)) if value in DIGITS:
            yield ast.Constant(DIGITS[value])
        case ast.Constant(value=str(value)) if SIGNAL_LETTERS.issuperset(value):
            for k in range(len(value)):
                yield ast.Constant(value[:k] + value[k + 1 :])
        case ast.Attribute(value=ast.Name("math"), attr="inf"):
            yield ast.Constant(0.0)
        case ast.Name(id) if id in FUNCTIONS:
            yield ast.Name(FUNCTIONS[id], ast.Load())
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()


def _bool_op(op: ast.boolop, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.BoolOp(op, values)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _context(parents: tuple[ast.AST, ...], node: ast.AST) -> ast.AST | None:
    """The expression or simple statement around a node that says little by itself; None: the node is enough."""
    if not isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp):
        return None
    context = next(parent for parent in reversed(parents) if isinstance(parent, ast.expr | ast.stmt | ast.arguments))
    return None if isinstance(context, ast.If | ast.For | ast.While) else context
