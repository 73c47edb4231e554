"""What beginners write in a cell that cannot be traced: why not, and what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ..errors import CellError
from .source import CellSource, StepSource

__all__ = ["is_traced_in_branch", "lesson"]

_AUTOGRAPH = re.compile(r"tensorflow/python/autograph/operators/control_flow\.py$")
_SYMBOLIC = re.compile(r"'(?:Symbolic|Eager)?Tensor' object has no attribute 'numpy'")
_AS_BOOL = re.compile(r"symbolic `?tf\.Tensor`? as a Python `?bool`?")
_ITERATED = re.compile(r"Iterating over a symbolic `?tf\.Tensor`?")
_AS_ARRAY = re.compile(r"Cannot convert a symbolic (?:tf\.)?Tensor[^\n]{0,200} to a numpy array")
_MIXED = re.compile(
    r"parameter '[xy]' of op '\w+', got |\bExpected \w+, but got \S+ of type "
    r"|does not match type \w+ of argument '[xy]'|`x` and `y` must have the same dtype"
)
_CHANGED = re.compile(r"'(?:Symbolic|Eager)?Tensor' object does not support item assignment")
_AS_NUMBER = re.compile(
    r"\b(?:list|tuple|string|bytes|range) ind(?:ices|ex) must be [^\n]*, not \w*Tensor"
    r"|\bTensor is unhashable\b"
    r"|unsupported format string passed to \w*Tensor\."
    r"|format: a \w+ number is required, not \w*Tensor|must be real number, not \w*Tensor"
    r"|expected a sequence of integers or a single integer"
    r"|\w*Tensor' object cannot be interpreted as an integer"
    r"|multiply sequence by non-int of type '\w*Tensor|cannot convert '\w*Tensor' object to bytes"
    r"|argument must be [^\n]*, not '?\w*Tensor"
)
_NO_REDUCTION = re.compile(r"is not a valid ReduceOp")
_NO_METHOD = re.compile(r"\w*Tensor'? object has no attribute '(\w+)'")
_OF_NUMPY = {
    **dict.fromkeys(("mean", "sum", "max", "min", "prod", "any", "all"), "tf.reduce_{}(x)"),
    **dict.fromkeys(("reshape", "round", "argmax", "argmin"), "tf.{}(x, …)"),
    "T": "tf.transpose(x)",
    "transpose": "tf.transpose(x)",
    "astype": "tf.cast(x, tf.int32)",
    "std": "tf.math.reduce_std(x)",
    "size": "tf.size(x)",
    "flatten": "tf.reshape(x, [-1])",
    "ravel": "tf.reshape(x, [-1])",
    "dot": "tf.tensordot(x, y, 1)",
    "item": "x",
    "tolist": "tf.unstack(x)",
    "copy": "tf.identity(x)",
    "clip": "tf.clip_by_value(x, 0, 1)",
}
_OUTSIDE_ONLY = re.compile(r"requires (?:being in )?cross-replica context")
_COMBINED = (
    "Leave `strategy.run` out; `ctx.all_reduce('sum', x)` and `ctx.all_gather(x, axis=0)` "
    "combine the replicas' values, and so do `-r NAME=mean` and `-g NAME`."
)
_WITHOUT_VALUE = (
    "Look it up with `tf.gather([10, 20, 30], replica_id)`, show it with `print('x', x)`, or use "
    "TensorFlow's function."
)
_LONGEST = 60
_BLOCKS = ("body", "orelse", "finalbody")


def is_traced_in_branch(frames: TracebackType | None) -> bool:
    """Whether an error comes out of a branch or a loop over tensors, which is only traced."""
    while frames is not None:
        code = frames.tb_frame.f_code
        is_stage = code.co_name.startswith("_tf_") or code.co_name.endswith("_for_stmt")
        if is_stage and _AUTOGRAPH.search(code.co_filename.replace("\\", "/")):
            return True
        frames = frames.tb_next
    return False


def lesson(
    error: BaseException, cell: StepSource, *, in_branch: bool, replicas: int
) -> CellError | None:
    """Says what is to be written in place of what has raised an error, in a sentence or two.

    Args:
        error: What the cell raised, with `tpunb_lines`.
        cell: The cell.
        in_branch: Whether it was raised where both branches of a condition are traced.
        replicas: How many there are.

    Returns:
        The explanation; None where the error speaks for itself.
    """
    lines = getattr(error, "tpunb_lines", ())
    if not isinstance(cell, CellSource) or not lines:
        return None
    path = _path(cell.body, lines[-1])
    statement = path[-1] if path else None
    told = (
        _traced_raise(error, path, in_branch, replicas)
        if isinstance(statement, ast.Raise | ast.Assert)
        else None
    )
    told = (
        told
        or _asserted(error, statement, replicas)
        or _valueless(error, statement, replicas)
        or _misunderstood(error, statement)
    )
    if told is None:
        return None
    found = CellError(told[0], fix=told[1])
    for name in ("tpunb_lines", "tpunb_replicas"):
        setattr(found, name, getattr(error, name, ()))
    return found


def _traced_raise(
    error: BaseException, path: list[ast.stmt], in_branch: bool, replicas: int
) -> tuple[str, str] | None:
    """`if replica_id == 3: raise ValueError`."""
    is_assertion = isinstance(path[-1], ast.Assert)
    if not in_branch or (is_assertion and not isinstance(error, AssertionError)):
        return None
    word = "assert" if is_assertion else "raise"
    around = next((outer for outer in reversed(path[:-1]) if isinstance(outer, ast.If)), None)
    if around is None:
        return (
            f"A loop over tensors is traced, so `{word}` runs once, whatever the values are.",
            "Assign what is to be checked, and look at it in the next cell.",
        )
    test = _shown(around.test)
    if not any(inner is path[-1] for block in around.body for inner in ast.walk(block)):
        test = f"not ({test})"
    both = f"Both branches of `if {_shown(around.test)}` are traced"
    return (
        f"{both}, so `{word}` runs at once, whatever the value is.",
        f"Write `failed = {test}`, and in the next cell `if {_any('failed', replicas)}: raise …`.",
    )


def _asserted(
    error: BaseException, statement: ast.stmt | None, replicas: int
) -> tuple[str, str] | None:
    """`assert replica_id < 3`."""
    if not isinstance(statement, ast.Assert) or not _AS_BOOL.search(str(error)):
        return None
    every = "all(ok.values)" if replicas > 1 else "ok"
    return (
        "`assert` needs a value, and a tensor gets its value after the cell is traced.",
        f"Write `ok = {_shown(statement.test)}`, and in the next cell `assert {every}`.",
    )


def _valueless(
    error: BaseException, statement: ast.stmt | None, replicas: int
) -> tuple[str, str] | None:
    """What needs a tensor's value: `.numpy()`, `bool()`, NumPy's functions."""
    text = str(error)
    if _SYMBOLIC.search(text):
        name = _owner_of_numpy(statement)
        after = f"{name}.values[0].numpy()" if replicas > 1 else f"{name}.numpy()"
        return (
            "A tensor gets its value after the cell is traced, so `.numpy()` is not for inside.",
            f"Leave it out here, and write `{after}` in the next cell.",
        )
    if _AS_BOOL.search(text):
        return (
            "Python needs the value of a tensor here, which comes after the cell is traced.",
            "Use an operation of TensorFlow: `tf.where`, `tf.maximum`, `tf.reduce_any`, ….",
        )
    if _ITERATED.search(text):
        return (
            "Python needs the number of a tensor's rows here, and the cell is only traced.",
            "Use `tf.unstack(x)`, a `for` statement, or an operation on the whole tensor.",
        )
    if _AS_ARRAY.search(text):
        return (
            "NumPy needs the value of a tensor, which comes after the cell is traced.",
            "Use TensorFlow's function: `tf.reduce_mean(x)` in place of `np.mean(x)`, ….",
        )
    if isinstance(error, TypeError) and _AS_NUMBER.search(text):
        return (
            "Python needs the value of a tensor here, which comes after the cell is traced.",
            _WITHOUT_VALUE,
        )
    return None


def _misunderstood(error: BaseException, statement: ast.stmt | None) -> tuple[str, str] | None:
    """What NumPy allows and TensorFlow does not, and what belongs outside of the replicas."""
    text = str(error)
    nodes = list(ast.walk(statement)) if statement is not None else []
    if _is_arithmetic(nodes) and isinstance(error, TypeError) and _MIXED.search(text):
        named = "replica_id" if _mentions(nodes, "replica_id") else "x"
        return (
            "TensorFlow does not compute with different types: integers do not become floats.",
            f"Cast to one type first, as in `tf.cast({named}, tf.float32)`.",
        )
    if isinstance(error, TypeError) and _CHANGED.search(text):
        return (
            "A tensor cannot be changed in place.",
            "Make another: `tf.tensor_scatter_nd_update(x, [[0]], [5])`, or one with `tf.where`.",
        )
    if isinstance(error, TypeError | ValueError) and _mentions_method(nodes, "all_reduce"):
        if _MIXED.search(text):
            return (
                "A mean of integers is no integer.",
                "Write `ctx.all_reduce('mean', tf.cast(x, tf.float32))`.",
            )
        if _NO_REDUCTION.search(text):
            return (
                "`all_reduce` takes 'sum' or 'mean'.",
                "For the largest of all: `tf.reduce_max(ctx.all_gather([x], axis=0))`.",
            )
    missing = _NO_METHOD.search(text) if isinstance(error, AttributeError) else None
    if missing and missing[1] in _OF_NUMPY:
        name = missing[1]
        return (
            f"`{name}` is NumPy's, and a tensor has no such attribute.",
            f"Write `{_OF_NUMPY[name].format(name)}`.",
        )
    if isinstance(error, RuntimeError) and _OUTSIDE_ONLY.search(text):
        return (
            "The cell itself runs on every replica, and the strategy's methods are for outside.",
            _COMBINED,
        )
    return None


def _is_arithmetic(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare) for node in nodes)


def _mentions_method(nodes: list[ast.AST], name: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def _mentions(nodes: list[ast.AST], name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _any(name: str, replicas: int) -> str:
    return f"any({name}.values)" if replicas > 1 else name


def _shown(test: ast.expr) -> str:
    text = ast.unparse(test)
    return text if len(text) <= _LONGEST else "…"


def _owner_of_numpy(statement: ast.stmt | None) -> str:
    """What `.numpy` is asked of, where that is a name."""
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Attribute) and node.attr == "numpy":
            return node.value.id if isinstance(node.value, ast.Name) else "result"
    return "result"


def _path(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements around a line, outermost first."""
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            inner = (found for block in _blocks(statement) if (found := _path(block, line)))
            return [statement, *next(inner, [])]
    return []


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    parts: list[Any] = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    for owner in (statement, *parts):
        for field in _BLOCKS:
            yield getattr(owner, field, None) or []
