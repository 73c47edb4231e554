"""Mistakes in a cell that its error shows, each with the code to write instead."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tpunb.cells.reading.mistake_words import (
    OF_NUMPY,
    call_of,
    quoted_value,
    shown,
    sides_of,
    words_of,
)
from tpunb.cells.reading.source import KERAS_LOOPS, CellSource, StepSource, blocks, keras_loop
from tpunb.errors import CellError, did_you_mean
from tpunb.errors.jax_in_cells import JAX_IN_CELL, WAY_FOR_JAX

_AUTOGRAPH = re.compile(r"tensorflow/python/autograph/operators/control_flow\.py$")
_AS_ROWS = r"Iterating over a symbolic `?tf\.Tensor`?"
_AS_BOOL = r"symbolic `?tf\.Tensor`? as a Python `?bool`?"
_MIXED = (
    r"parameter '[xy]' of op '\w+', got \S+ of type '(?:float|int|bool)"
    r"|\bExpected \w+, but got \S+ of type '(?:float|int|bool)"
    r"|type (?!string)\w+ that does not match type (?!string)\w+ of argument '[txy]'"
    r"|`x` and `y` must have the same dtype"
    r"|TensorFlow would turn the \w+ array "
)
_AS_NUMBER = (
    r"\b(?:list|tuple|string|bytes|range) ind(?:ices|ex) must be [^\n]*, not \w*Tensor"
    r"|\bTensor is unhashable\b"
    r"|must be real number, not \w*Tensor"
    r"|expected a sequence of integers or a single integer"
    r"|\w*Tensor' object cannot be interpreted as an integer"
    r"|multiply sequence by non-int of type '\w*Tensor|cannot convert '\w*Tensor' object to bytes"
    r"|argument must be [^\n]*, not '?\w*Tensor"
)
_NEEDS_VALUE = "Python needs the value of a tensor here, which comes after the cell is traced."


def _calls_method(*names: str) -> Callable[[list[ast.AST]], bool]:
    """Return a check whether a statement mentions a method with one of these names."""
    return lambda nodes: any(isinstance(n, ast.Attribute) and n.attr in names for n in nodes)


_updates = _calls_method("apply_gradients", "apply", "gradient", "assign", "assign_sub")


def _has_mean(nodes: list[ast.AST]) -> bool:
    """Return whether a statement calls `all_reduce` with the reduction "mean"."""
    call = call_of(nodes, "all_reduce")
    word = call.args[0] if call is not None and call.args else None
    return isinstance(word, ast.Constant) and str(word.value).lower() == "mean"


def _is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


@dataclass(frozen=True)
class _Mistake:
    """A mistake that an error shows, and the code to write instead.

    Attributes:
        kinds: The error's types.
        pattern: A pattern that the error's message matches.
        cause: The mistake; `words_of` fills the fields in braces.
        fix: The code to write.
        applies: Checks whether the nodes of the statement fit.
    """

    kinds: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str
    cause: str
    fix: str
    applies: Callable[[list[ast.AST]], bool] = lambda _: True


_MISTAKES = (
    _Mistake(
        Exception,
        rf"{JAX_IN_CELL}|as an abstract array\b|is not a valid JAX (?:array )?type",
        f"JAX cannot compute with TensorFlow's tensors. {JAX_IN_CELL}",
        WAY_FOR_JAX,
    ),
    _Mistake(
        Exception,
        r"'(?:Symbolic|Eager)?Tensor' object has no attribute 'numpy'",
        "A tensor gets its value after the cell is traced: `.numpy()` cannot be used inside it.",
        "Leave it out here, and write `{in_the_next_cell}` in the next cell.",
    ),
    _Mistake(
        Exception,
        _AS_BOOL,
        _NEEDS_VALUE,
        "Use an operation of TensorFlow: `tf.where`, `tf.maximum`, `tf.reduce_any`, ….",
    ),
    _Mistake(
        Exception,
        rf"{_AS_ROWS}|attribute '_unique_id'|apply_gradients\(\) takes 2 positional",
        "`apply_gradients` takes a list of pairs: a gradient, and its variable.",
        "Write `{optimizer}.apply_gradients([(gradient, variable)])`.",
        _calls_method("apply_gradients"),
    ),
    _Mistake(
        Exception,
        _AS_ROWS,
        "Python needs the number of a tensor's rows here, and the cell is only traced.",
        "Use `tf.unstack(x)`, a `for` statement, or an operation on the whole tensor.",
    ),
    _Mistake(
        Exception,
        r"Cannot convert a symbolic (?:tf\.)?Tensor[^\n]{0,200} to a numpy array",
        "NumPy needs the value of a tensor, which comes after the cell is traced.",
        "Use TensorFlow's functions, such as `tf.reduce_mean(x)` instead of `np.mean(x)`."
        "{of_truth}",
    ),
    _Mistake(
        TypeError,
        _AS_NUMBER,
        _NEEDS_VALUE,
        "Look it up with `tf.gather([10, 20, 30], replica_id)`, or use TensorFlow's function.",
    ),
    _Mistake(
        TypeError,
        r"unsupported format string passed to \w*Tensor\."
        r"|format: a \w+ number is required, not \w*Tensor",
        "Text cannot hold the value of a tensor, which comes after the cell is traced.",
        "Show it with `print('x', x)`, or format it in the next cell.",
    ),
    _Mistake(
        Exception,
        r"got <ReduceOp\.\w+|of type 'ReduceOp'|all_reduce\(\) missing 1 required",
        "`all_reduce` takes the reduction first, 'sum' or 'mean', and then the value.",
        "Write `{reduced}`.",
        _calls_method("all_reduce"),
    ),
    _Mistake(
        TypeError,
        r"all_gather\(\) missing 1 required",
        "`all_gather` takes a value, and the axis along which the values are joined.",
        "Write `ctx.all_gather(x, axis=0)`.",
        _calls_method("all_gather"),
    ),
    _Mistake(
        ValueError,
        r"all_gather cannot gather a scalar",
        "`all_gather` joins tensors along an axis, and a single number has no axis.{of_a_list}",
        "Write `ctx.all_gather({row}, axis=0)`.",
        _calls_method("all_gather"),
    ),
    _Mistake(
        Exception,
        rf"{_MIXED}|'str'|string|Cast",
        "'{quoted}' is a text, and not the tensor of this name.",
        "Leave out the quotes: `{reduced}`.",
        lambda nodes: bool(quoted_value(nodes)),
    ),
    _Mistake(
        ValueError,
        r"No gradients provided for any variable",
        "The gradient is None: the tape has not seen how the loss comes from the variables.",
        "Compute the whole loss inside `with tf.GradientTape() as tape:`, also a division, and by "
        "operations that have a gradient, such as `/` and not `//`.",
        _calls_method("apply_gradients", "apply"),
    ),
    _Mistake(
        (TypeError, ValueError),
        _MIXED,
        "The mean of integers is not an integer.",
        "Write `ctx.all_reduce('mean', tf.cast({value}, tf.float32))`.",
        lambda nodes: _has_mean(nodes) and not any(_is_float(node) for node in nodes),
    ),
    _Mistake(
        TypeError,
        r"has DataType bool not in list of allowed values|has type bool that does not match",
        "TensorFlow does not compute with truth values.",
        "Cast them to numbers: `tf.cast({comparison}, tf.float32)`, or `tf.int32`.",
    ),
    _Mistake(
        ValueError,
        r"x and y must both be non-None or both be None",
        "`tf.where` takes a condition and both values: where it holds, and elsewhere.",
        "Write `tf.where(condition, x, 0)`.",
    ),
    _Mistake(
        ValueError,
        r"rank 1 but is rank 0 for '?{{node [^}]*StatelessRandomGetKeyCounter",
        "A seed of a stateless random operation is a pair of integers.",
        "Write it as a list, such as `seed=[7, replica_id]`.",
    ),
    _Mistake(
        ValueError,
        r"rank 1 but is rank 0 for '?{{node [^}]*StatelessRandom",
        "The shape of random numbers is a list.",
        "Write `[3]` for three numbers, and `[]` for one number.",
    ),
    _Mistake(
        TypeError,
        r"'NoneType' and '(?:int|float)'|'(?:int|float)' and 'NoneType'"
        r"|must be a string or a real number, not 'NoneType'",
        "The size of this batch is not fixed, because another batch or replica has fewer examples. "
        "So its `shape` has None.",
        "Read the size while the cell runs: `tf.shape(x)[0]`, or `tf.size(x)` for all numbers.",
        _calls_method("shape"),
    ),
    _Mistake(
        AttributeError,
        r"has no attribute 'minimize'",
        "Optimizers of Keras 3 have no `minimize`.",
        "Take the gradient yourself: `with tf.GradientTape() as tape: loss = …`, then "
        "`{optimizer}.apply_gradients([(tape.gradient(loss, weights), weights)])`.",
        _calls_method("minimize"),
    ),
    _Mistake(
        Exception,
        _MIXED,
        "TensorFlow does not mix types in arithmetic: {types}.",
        "Cast to one type first: `{cast}`.",
        lambda nodes: any(sides_of(n, None) or sides_of(n, ast.Call) for n in nodes),
    ),
    _Mistake(
        TypeError,
        r"'(?:Symbolic|Eager)?Tensor' object does not support item assignment",
        "A tensor cannot be changed in place.",
        "Make another: `tf.tensor_scatter_nd_update(x, [[0]], [5])`, or one with `tf.where`.",
    ),
    _Mistake(
        AttributeError,
        r"\w*Tensor'? object has no attribute 'assign(?:_add|_sub)?'",
        "A tensor cannot be changed in place; a `tf.Variable` can.",
        "Assign the new value to a name: `x = …`. It comes back to the notebook.",
    ),
    _Mistake(
        (TypeError, ValueError),
        r"is not a valid ReduceOp",
        "`all_reduce` takes 'sum' or 'mean'.",
        "Write `{reduction}`.",
        _calls_method("all_reduce"),
    ),
    _Mistake(
        AttributeError,
        r"\w*Tensor'? object has no attribute 'astype'",
        "Python's `round` does not round a tensor.",
        "Write `tf.round(x)`.",
        lambda nodes: any(isinstance(n, ast.Name) and n.id == "round" for n in nodes),
    ),
    _Mistake(
        ValueError,
        r"Attempting to slice scalar input|Index out of range using input dim 0; input has only 0",
        "Inside the cell, `{indexed}` is this replica's value, a single number.",
        "Write `{indexed}`. On every replica, the value of replica 0 is "
        "`ctx.all_gather({indexed}[tf.newaxis], axis=0)[0]`.",
        lambda nodes: any(isinstance(n, ast.Subscript) for n in nodes),
    ),
    _Mistake(
        AttributeError,
        r"\w*Tensor'? object has no attribute 'values'",
        "Inside the cell, `{local}` is this replica's value and has no `.values`.",
        "Write `{local}`. On every replica, the value of replica 0 is "
        "`ctx.all_gather({local}[tf.newaxis], axis=0)[0]`.",
    ),
    _Mistake(
        AttributeError,
        rf"\w*Tensor'? object has no attribute '(?:{'|'.join(OF_NUMPY)})'",
        "`{attribute}` is NumPy's, and a tensor has no such attribute.",
        "Write `{tensorflow}` instead of `x.{attribute}`.",
    ),
    _Mistake(
        Exception,
        r"should be called from outside of replica_fn",
        *keras_loop("{loop}"),
        _calls_method(*KERAS_LOOPS),
    ),
    _Mistake(
        RuntimeError,
        r"requires (?:being in )?cross-replica context",
        "The cell runs on every replica already. `strategy.scope()` is for cells without a magic, "
        "which make models and variables.",
        "Delete the line `with strategy.scope():`, and move its block to the left.",
        lambda nodes: _calls_method("scope")(nodes) and _updates(nodes),
    ),
    _Mistake(
        RuntimeError,
        r"requires (?:being in )?cross-replica context",
        "Models and variables are made once, outside the cell.",
        "Move `with strategy.scope():` with its whole block to a cell without a magic.",
        _calls_method("scope"),
    ),
    _Mistake(
        RuntimeError,
        r"requires (?:being in )?cross-replica context",
        "The cell itself runs on every replica, and the strategy's methods belong outside it.",
        "Leave `strategy.run` out; `ctx.all_reduce('sum', x)` and `ctx.all_gather(x, axis=0)` "
        "combine the replicas' values, and so do `-r NAME=mean` and `-g NAME`.",
    ),
)


def is_traced_in_branch(frames: TracebackType | None) -> bool:
    """Return whether an error comes from a branch or loop over tensors, which is only traced."""
    while frames is not None:
        code = frames.tb_frame.f_code
        is_stage = code.co_name.startswith("_tf_") or code.co_name.endswith("_for_stmt")
        if is_stage and _AUTOGRAPH.search(code.co_filename.replace("\\", "/")):
            return True
        frames = frames.tb_next
    return False


def mistake(
    error: BaseException, cell: StepSource, *, in_branch: bool, replicas: int
) -> CellError | None:
    """Explain what to write instead of the code that raised an error; None if that is clear.

    Args:
        error: An error of the cell, with `tpunb_lines`.
        cell: The cell.
        in_branch: Whether the error came from a place where both branches of a condition are
            traced.
        replicas: The number of replicas.
    """
    lines = getattr(error, "tpunb_lines", ())
    if not isinstance(cell, CellSource) or not lines:
        return None
    path = _path(cell.body, lines[-1])
    nodes = list(ast.walk(path[-1])) if path else []
    beside = cell.unconvertible
    texts = _checked(error, path, in_branch, replicas) if path else None
    texts = texts or _misspelled(error)
    if beside is not None and re.search(rf"{_AS_BOOL}|{_AS_ROWS}", str(error)):
        # In a cell with `:=` or `match`, AutoGraph does not convert `if`, `while` and `for` on a
        # tensor.
        word, fix = ":=", "Assign on a line of its own instead."
        if isinstance(beside, ast.Match):
            word, fix = "match", "Write `if` and `elif` instead."
        cause = f"TensorFlow does not convert a cell that has `{word}` (line {beside.lineno}), so"
        texts = f"{cause} Python needs the value of a tensor here.", fix
    if texts is None:
        fits = (
            known
            for known in _MISTAKES
            if isinstance(error, known.kinds)
            and re.search(known.pattern, str(error))
            and known.applies(nodes)
        )
        if (fitting := next(fits, None)) is None:
            return None
        words = words_of(error, nodes, replicas)
        texts = fitting.cause.format_map(words), fitting.fix.format_map(words)
    explained = CellError(texts[0], fix=texts[1])
    for name in ("tpunb_lines", "tpunb_replicas", "code"):
        if hasattr(error, name):
            setattr(explained, name, getattr(error, name))
    return explained


_NO_ATTRIBUTE = re.compile(
    r"(?:module '(?P<module>tensorflow[\w.]*)'|'\w*ReplicaContext' object) has no attribute"
    r" '(?P<name>\w+)'"
)


def _misspelled(error: BaseException) -> tuple[str, str] | None:
    """Return cause and fix for `ctx.allreduce` and `tf.reduce_maen`."""
    match = _NO_ATTRIBUTE.search(str(error)) if isinstance(error, AttributeError) else None
    if match is None:
        return None
    if module := match["module"]:
        owner, shown = sys.modules.get(module), re.sub(r"^tensorflow(\._api\.v2)?", "tf", module)
    else:
        owner, shown = sys.modules["tensorflow"].distribute.ReplicaContext, "ctx"
    of_ctx = "" if module else "It has `all_reduce` and `all_gather`."
    choices = (name for name in dir(owner) if not name.startswith("_"))
    fix = did_you_mean(match["name"], choices, of_ctx)
    return (f"`{shown}` has no attribute `{match['name']}`.", fix) if fix else None


def _checked(
    error: BaseException, path: list[ast.stmt], in_branch: bool, replicas: int
) -> tuple[str, str] | None:
    """Return cause and fix for `if replica_id == 3: raise ValueError` and `assert x > 0`."""
    statement = path[-1]
    if isinstance(statement, ast.Assert) and re.search(_AS_BOOL, str(error)):
        every = "all(ok.values)" if replicas > 1 else "ok"
        return (
            "`assert` needs a value, and a tensor gets its value after the cell is traced.",
            f"Write `ok = {shown(statement.test)}`, and in the next cell `assert {every}`.",
        )
    asserted = isinstance(statement, ast.Assert) and isinstance(error, AssertionError)
    if not in_branch or not (asserted or isinstance(statement, ast.Raise)):
        return None
    word = "assert" if asserted else "raise"
    around = next((outer for outer in reversed(path[:-1]) if isinstance(outer, ast.If)), None)
    if around is None:
        return (
            f"A loop over tensors is traced, so `{word}` runs once for any values.",
            "Assign the values that you want to check, and look at them in the next cell.",
        )
    test = shown(around.test)
    failed = test
    if not any(inner is statement for block in around.body for inner in ast.walk(block)):
        failed = f"not ({test})"
    anywhere = "any(failed.values)" if replicas > 1 else "failed"
    return (
        f"Both branches of `if {test}` are traced, so `{word}` runs at once for any value.",
        f"Write `failed = {failed}`, and in the next cell `if {anywhere}: raise …`.",
    )


def _path(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements around a line, outermost first."""
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            inner = (path for block in blocks(statement) if (path := _path(block, line)))
            return [statement, *next(inner, [])]
    return []
