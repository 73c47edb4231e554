"""Errors of a cell, traced back to the cell's lines that caused them."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tpunb._util.plain_text import plain
from tpunb.cells.source import (
    KERAS_LOOPS,
    CellSource,
    StepSource,
    blocks,
    keras_loop,
)
from tpunb.errors import CellError, did_you_mean
from tpunb.errors.code_problems import SourceLine, innermost, refusal_in_short
from tpunb.errors.jax_in_cells import JAX_IN_CELL, WAY_FOR_JAX

_NODE = re.compile(
    r"(?:{{node |\b(?:AllToAll|CollectivePermute|CrossReplicaSum) `)([^}`]+?)(?:/replica_\d+)?[}`]"
)
_REPLICA = re.compile(r"{{node [^}]+?/replica_(\d+)}}")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def mark(error: BaseException, cell: StepSource, graph: Any = None) -> None:
    """Mark an error with the lines of the cell that it came from, outermost call first.

    Set `tpunb_lines`, and `tpunb_replicas` if the message names replicas, and add a note if Python
    supports notes (3.11). Set `code` to the rule of strictness if a real TPU refuses the cell. A
    message may name only nodes. The replica function's graph tells where these nodes came from.
    """
    if hasattr(error, "tpunb_lines"):
        return
    lines = [line for name, line in _places(error) if name == cell.filename]
    lines = lines or _node_lines(error, graph, cell.filename)
    inside = range(2, len(cell.lines) + 1)  # without the generated lines around the body
    numbers = list(dict.fromkeys(cell.first_line(line) for line in lines if line in inside))
    error.tpunb_lines = numbers  # type: ignore[attr-defined]
    # Replica 0's nodes have plain names, and so have all nodes inside functions.
    replicas = {int(number) for number in _REPLICA.findall(str(error))}
    error.tpunb_replicas = sorted(replicas)  # type: ignore[attr-defined]
    if not hasattr(error, "code"):
        from tpunb.errors.explain import explain  # loads the catalogue, which is large

        known = explain(error)
        if known is not None and known.rule:
            error.code = known.rule  # type: ignore[attr-defined]
    if numbers and hasattr(error, "add_note"):
        number = numbers[-1]
        error.add_note(f"line {number} of the cell: {cell.lines[number - 1].strip()}")


def mark_step(error: BaseException, done: int, batch: str) -> None:
    """Add the number of the failed step, and a description of its batch, to an error."""
    where = f"At step {done + 1}" if done else "In the first step"
    where += f", with a batch of {batch}." if batch else "."
    error.tpunb_step = done + 1  # type: ignore[attr-defined]
    error.tpunb_where = where  # type: ignore[attr-defined]
    if hasattr(error, "add_note"):
        error.add_note(where)


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the places in the code that an error refers to, the most reliable source first."""
    # AutoGraph's frames belong to generated files. The metadata has the original places, innermost
    # first.
    metadata = getattr(error, "ag_error_metadata", None)
    stack = getattr(metadata, "translated_stack", ())
    yield from ((frame.filename, frame.lineno) for frame in reversed(stack))
    frames = traceback.extract_tb(error.__traceback__)
    yield from ((frame.filename, frame.lineno or 0) for frame in frames)
    # Errors of graphs carry the traceback of the op, and repeat it in their message.
    op = getattr(error, "op", None)
    yield from ((frame.filename, frame.lineno) for frame in getattr(op, "traceback", None) or ())
    yield from ((name, int(line)) for name, line in _FRAME.findall(str(error)))
    if error.__cause__ is not None:
        yield from _places(error.__cause__)


def _node_lines(error: BaseException, graph: Any, filename: str) -> list[int]:
    """Return the lines of the nodes that an error's message names."""
    lines: list[int] = []
    for name in dict.fromkeys(_NODE.findall(str(error))) if graph is not None else ():
        while name:
            try:
                frames = graph.get_operation_by_name(name).traceback or ()
            except (KeyError, ValueError):
                name = name.rpartition("/")[0]  # the loop or branch that contains it
                continue
            lines += [frame.lineno for frame in frames if frame.filename == filename]
            break
    return lines


def line_in(cell: StepSource, places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """Return the innermost line of the cell that led to a place, or else the place itself."""
    inside = range(2, len(cell.lines) + 1)
    for place in places:
        if place.file == cell.filename and place.line in inside:
            return "", cell.first_line(place.line)
    return innermost(places)


def line_of_user(cell: StepSource, places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """Return the innermost line that led to a place, in the cell or in a function it calls."""
    return line_in(cell, places[:1])


def original(error: Exception, failure: BaseException | None) -> BaseException:
    """Return the cell's own exception if AutoGraph could not keep its type."""
    if type(error).__name__ == "StagingError" and failure is not None:
        return failure
    return error


_USER_CODE = "in user code:"
_GRAPH_ERROR = "Graph execution error:"
_HEAD = re.compile(
    rf'{_GRAPH_ERROR}|Detected at node |  File ".*", line \d+, in |<stack traces unavailable>'
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NODE_IN_FULL = re.compile(r"'{{node [^}]*}} = (\w+)\[[^\n]*?\]\([^)\n]*\)'")
_KERAS_CALL = re.compile(
    r"Exception encountered when calling ([\w.]+\(\))\.\s+(.*?)\s+Arguments received by ", re.DOTALL
)
_ROOT = re.compile(r"^  \(\d+\) (?=[A-Z_]+:)", re.MULTILINE)
_TAIL = re.compile(r"^\t \[\[|^Traceback \(most recent call last\):| \[Op:\w+\]\Z", re.MULTILINE)
_CONTEXT = 2


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type and its message's first line."""
    return _message(error)[0]


def essence(error: BaseException) -> str:
    """Return an error's message without the traces that TensorFlow puts into it."""
    text = _NODE_IN_FULL.sub(r"\1", _COLOUR.sub("", str(error).strip()))
    if text.startswith(_USER_CODE):
        text = textwrap.dedent(text.rpartition("\n\n")[2]).strip()
        text = text.removeprefix(f"{type(error).__name__}:").strip()
    if by_keras := _KERAS_CALL.match(text):
        return f"{by_keras[2]} (in {by_keras[1]})"
    if text.startswith(_GRAPH_ERROR):
        lines = text.split("\n")
        begin = next((i for i, line in enumerate(lines) if line and not _HEAD.match(line)), 0)
        message = "\n".join(lines[begin:])
        # When one replica fails, the others are cancelled. Take the first error that is a cause.
        roots = [part for part in _ROOT.split(message)[1:] if not part.startswith("CANCELLED:")]
        if roots:
            message = roots[0].partition(":")[2]
        return _TAIL.split(message, maxsplit=1)[0].strip()
    return text


def show_shortly(error: BaseException, source: str) -> None:
    """Make IPython show an error by the lines of its cell, whose body begins on line 2."""
    lines = getattr(error, "tpunb_lines", None)
    if not lines:
        return
    replicas = list(getattr(error, "tpunb_replicas", ()))
    where = [
        f"On {replicas_text(replicas)}." if replicas else "",
        getattr(error, "tpunb_where", ""),
    ]
    number, rows = lines[-1], ["", *source.split("\n")]  # the magic's own line comes first
    around = range(max(2, number - _CONTEXT), min(len(rows), number + _CONTEXT) + 1)
    excerpt = [
        f"{'---->' if line == number else '     '} {line:>3} {rows[line - 1]}"
        for line in around
        if rows[line - 1].strip() or line == number
    ]
    text = [f"In the cell, line {number}:", "", *excerpt, "", *_message(error)]
    text += filter(None, where)
    shown = [plain(line) for line in text]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def replicas_text(replicas: Sequence[int]) -> str:
    """Return replicas as text, with at most four of their numbers."""
    named = ", ".join(map(str, replicas[:4]))
    more = f" and {len(replicas) - 4} more" if len(replicas) > 4 else ""
    return f"replica{'s' if len(replicas) > 1 else ''} {named}{more}"


def syntax_error(error: SyntaxError) -> CellError:
    """Return a cell's syntax error with its place, but without the traceback."""
    place = "".join(traceback.format_exception_only(error)).rstrip().split("\n")[1:-1]
    message = "\n".join([f"Line {error.lineno}: {error.msg}", *place])
    fix = "Fix the line; the magic's own line is line 1."
    if "keyword argument" in str(error.msg):
        fix = f"To compare two values, write `==`. {fix}"
    return CellError(message, fix=fix)


def _message(error: BaseException) -> list[str]:
    name, message = type(error).__name__, essence(error)
    message = refusal_in_short(message) or message
    return f"{name}: {message}".split("\n") if message else [name]


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
_OF_NUMPY = {
    **dict.fromkeys(("mean", "sum", "max", "min", "prod", "any", "all"), "tf.reduce_{}(x)"),
    **dict.fromkeys(("round", "argmax", "argmin"), "tf.{}(x)"),
    "reshape": "tf.reshape(x, [2, -1])",
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
_NEEDS_VALUE = "Python needs the value of a tensor here, which comes after the cell is traced."
_LONGEST = 60


def _calls_method(*names: str) -> Callable[[list[ast.AST]], bool]:
    """Return a check whether a statement mentions a method with one of these names."""
    return lambda nodes: any(isinstance(n, ast.Attribute) and n.attr in names for n in nodes)


_updates = _calls_method("apply_gradients", "apply", "gradient", "assign", "assign_sub")


def _has_mean(nodes: list[ast.AST]) -> bool:
    """Return whether a statement calls `all_reduce` with the reduction "mean"."""
    calls = (n for n in nodes if isinstance(n, ast.Call) and _name_of(n.func) == "all_reduce")
    words = (argument for call in calls for argument in call.args[:1])
    return any(isinstance(w, ast.Constant) and str(w.value).lower() == "mean" for w in words)


def _is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@dataclass(frozen=True)
class _Mistake:
    """A mistake that an error shows, and the code to write instead.

    Attributes:
        kinds: The error's types.
        pattern: A pattern that the error's message matches.
        cause: The mistake; `_words` fills the fields in braces.
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
        lambda nodes: bool(_quoted_value(nodes)),
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
        lambda nodes: any(_operands(n, None) or _operands(n, ast.Call) for n in nodes),
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
        rf"\w*Tensor'? object has no attribute '(?:{'|'.join(_OF_NUMPY)})'",
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
        words = _words(error, nodes, replicas)
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
            f"Write `ok = {_shown(statement.test)}`, and in the next cell `assert {every}`.",
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
    test = _shown(around.test)
    failed = test
    if not any(inner is statement for block in around.body for inner in ast.walk(block)):
        failed = f"not ({test})"
    anywhere = "any(failed.values)" if replicas > 1 else "failed"
    return (
        f"Both branches of `if {test}` are traced, so `{word}` runs at once for any value.",
        f"Write `failed = {failed}`, and in the next cell `if {anywhere}: raise …`.",
    )


def _shown(test: ast.expr) -> str:
    text = ast.unparse(test)
    return text if len(text) <= _LONGEST else "…"


def _words(error: BaseException, nodes: list[ast.AST], replicas: int) -> dict[str, str]:
    """Return the cell's own names, for the fields of a mistake."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    asked = next((node.value for node in attributes if node.attr == "numpy"), None)
    local = next((node.value for node in attributes if node.attr == "values"), None)
    indexed = next((node.value for node in nodes if isinstance(node, ast.Subscript)), None)
    owner = asked.id if isinstance(asked, ast.Name) else "result"
    types, cast = _of_mixed_types(str(error), nodes)
    value, reduction = _of_all_reduce(nodes)
    missing = re.search(r"has no attribute '(\w+)'", str(error))
    attribute = missing[1] if missing else ""
    gathered, of_a_list = _of_all_gather(nodes)
    compared = next((n for n in nodes if isinstance(n, ast.Compare)), None)
    calls = ("minimize", "apply_gradients")
    optimizer = next((node.value for node in attributes if node.attr in calls), None)
    return {
        "reduced": _ordered_reduction(nodes),
        "row": gathered,
        "of_a_list": " A list means several tensors." if of_a_list else "",
        "of_truth": f" Cast truth values: `tf.cast({_shown(compared)}, tf.float32)`."
        if compared is not None
        else "",
        "comparison": _shown(compared) if compared is not None else "x",
        "optimizer": _shown(optimizer) if optimizer is not None else "optimizer",
        "quoted": _quoted_value(nodes),
        "in_the_next_cell": f"{owner}.values[0].numpy()" if replicas > 1 else f"{owner}.numpy()",
        "local": ast.unparse(local) if local is not None else "x",
        "indexed": _shown(indexed) if indexed is not None else "x",
        "types": types,
        "cast": cast,
        "value": value,
        "reduction": reduction,
        "attribute": attribute,
        "tensorflow": _OF_NUMPY.get(attribute, "").format(attribute),
        "loop": next((n.attr for n in attributes if n.attr in KERAS_LOOPS), ""),
    }


_TWO_TYPES = re.compile(
    r"Input '\w+' of '\w+' Op has type (?P<right>\w+) that does not match type (?P<left>\w+)"
)
_TWO_DTYPES = re.compile(r"same dtype, got (?:tf\.)?(?P<left>\w+) != (?:tf\.)?(?P<right>\w+)")
_ARRAY_DTYPES = re.compile(r"would turn the (\w+) array on the (left|right) into (\w+),")
_OP = re.compile(r"of (?:op )?'(\w+)'")
_TENSORS_TYPE = re.compile(r"Expected (\w+)\b")
_OPERATORS: dict[str, type[ast.AST]] = {
    "AddV2": ast.Add,
    "FloorDiv": ast.FloorDiv,
    "FloorMod": ast.Mod,
    "Mul": ast.Mult,
    "Pow": ast.Pow,
    "SelectV2": ast.Call,
    "Sub": ast.Sub,
}


def _of_mixed_types(message: str, nodes: list[ast.AST]) -> tuple[str, str]:
    """Return the types that TensorFlow did not mix, and a cast of one operand to the other."""
    match = _TWO_TYPES.search(message) or _TWO_DTYPES.search(message)
    of_array = _ARRAY_DTYPES.search(message)
    named = _OP.search(message)
    operator = _OPERATORS.get(named[1]) if named else None
    pairs = [pair for node in nodes if (pair := _operands(node, operator)) is not None]
    left, right = pairs[0] if len(pairs) == 1 else (ast.Name("x"), ast.Name("x"))
    types: tuple[str, str]
    if of_array is not None:
        types, operands = (of_array[1], of_array[3]), (left, right)
        types = types if of_array[2] == "left" else types[::-1]
    elif match is None:  # a tensor and a Python number
        kind = _TENSORS_TYPE.search(message)
        types = (kind[1] if kind else "int32", "float32")
        operands = (right, left) if isinstance(left, ast.Constant) else (left, right)
    else:
        types, operands = (match["left"], match["right"]), (left, right)
    changed = 0 if _rank(types[0]) < _rank(types[1]) else 1
    mixed = " and ".join(types)
    if any(map(_is_integer, types)) and not all(map(_is_integer, types)):
        mixed = "integers do not become floats"
    return mixed, f"tf.cast({_shown(operands[changed])}, tf.{types[1 - changed]})"


def _is_integer(kind: str) -> bool:
    return kind.startswith(("int", "uint", "bool"))


def _rank(kind: str) -> int:
    """Return the rank of a type. The operand with the lower rank is cast, as int32 to float32."""
    return (0 if _is_integer(kind) else 2) + (not kind.endswith("64"))


def _operands(node: ast.AST, operator: type[ast.AST] | None) -> tuple[ast.expr, ast.expr] | None:
    """Return both sides of an operation, or the values of a `tf.where`; None for other nodes."""
    if operator is ast.Call:
        is_where = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "where"
        values = node.args[1:] if is_where else []  # type: ignore[attr-defined]
        return (values[0], values[1]) if len(values) == 2 else None
    if isinstance(node, ast.Compare):
        return None if operator else (node.left, node.comparators[0])
    if not isinstance(node, ast.BinOp | ast.AugAssign):
        return None
    if operator is not None and not isinstance(node.op, operator):
        return None
    return (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)


_REDUCTIONS = {
    **dict.fromkeys(("max", "maximum"), "max"),
    **dict.fromkeys(("min", "minimum"), "min"),
    **dict.fromkeys(("prod", "product", "mul"), "prod"),
    **dict.fromkeys(("any", "or"), "any"),
    **dict.fromkeys(("all", "and"), "all"),
}


def _of_all_reduce(nodes: list[ast.AST]) -> tuple[str, str]:
    """Return the value that a cell reduces over the replicas, and the code that reduces it."""
    calls = (node for node in nodes if isinstance(node, ast.Call))
    call = next((call for call in calls if getattr(call.func, "attr", "") == "all_reduce"), None)
    named = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    first, second = [*(call.args if call else []), None, None][:2]
    operation, argument = first or named.get("reduce_op"), second or named.get("value")
    value = _shown(argument) if argument is not None else "x"
    name = str(operation.value).lower() if isinstance(operation, ast.Constant) else "max"
    if (function := _REDUCTIONS.get(name)) is None:
        return value, f"ctx.all_reduce('mean', {value})"
    if isinstance(argument, ast.BinOp | ast.UnaryOp | ast.Compare | ast.IfExp):
        value = f"({value})"
    rows = f"{value}[tf.newaxis]"
    if not isinstance(argument, ast.Name | ast.Call | ast.Attribute | ast.Subscript | ast.BinOp):
        rows = f"tf.stack([{_shown(argument)}])" if argument is not None else "x[tf.newaxis]"
    return value, f"tf.reduce_{function}(ctx.all_gather({rows}, axis=0), axis=0)"


def _reduced(nodes: list[ast.AST]) -> tuple[list[str], list[str]]:
    """Return the texts, and the code of the other arguments, of a call of `all_reduce`."""
    calls = (n for n in nodes if isinstance(n, ast.Call) and _name_of(n.func) == "all_reduce")
    call = next(calls, None)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)] if call else []
    words = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return words, [_shown(a) for a in arguments if not isinstance(a, ast.Constant)]


def _ordered_reduction(nodes: list[ast.AST]) -> str:
    """Return a call of `all_reduce` with its own arguments in the right order."""
    words, values = _reduced(nodes)
    word, value = next(iter(words), "sum"), next(iter([*values, *words[1:]]), "x")
    return f"ctx.all_reduce({word!r}, {value})"


def _quoted_value(nodes: list[ast.AST]) -> str:
    """Return the value of an `all_reduce` if it is a text; else an empty text."""
    words, _ = _reduced(nodes)
    return words[1] if len(words) > 1 else ""


def _of_all_gather(nodes: list[ast.AST]) -> tuple[str, bool]:
    """Return a gathered number as a tensor with an axis, and whether it was in a list."""
    calls = (n for n in nodes if isinstance(n, ast.Call) and _name_of(n.func) == "all_gather")
    call = next(calls, None)
    value = call.args[0] if call is not None and call.args else None
    if isinstance(value, (ast.List, ast.Tuple)):
        return f"tf.stack({_shown(value)})", True
    return f"tf.reshape({_shown(value) if value is not None else 'x'}, [1])", False


def _path(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements around a line, outermost first."""
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            inner = (path for block in blocks(statement) if (path := _path(block, line)))
            return [statement, *next(inner, [])]
    return []
