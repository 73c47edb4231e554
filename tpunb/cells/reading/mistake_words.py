"""The cell's own names and code, for the sentences about its mistakes."""

from __future__ import annotations

import ast
import re

from tpunb.cells.reading.source import KERAS_LOOPS

OF_NUMPY = {
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
_LONGEST = 60


def shown(node: ast.AST | None, missing: str = "x") -> str:
    """Return the code of a node unless it is long, or a word for a node that is missing."""
    text = ast.unparse(node) if node is not None else missing
    return text if len(text) <= _LONGEST else "…"


def call_of(nodes: list[ast.AST], name: str) -> ast.Call | None:
    """Return the first call of a function or method of this name."""
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return next((call for call in calls if name in vars(call.func).values()), None)


def words_of(error: BaseException, nodes: list[ast.AST], replicas: int) -> dict[str, str]:
    """Return the cell's own names, for the fields of a mistake."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    owners = {node.attr: node.value for node in reversed(attributes)}
    asked = owners.get("numpy")
    owner = asked.id if isinstance(asked, ast.Name) else "result"
    compared = next((node for node in nodes if isinstance(node, ast.Compare)), None)
    types, cast = _of_mixed_types(str(error), nodes)
    value, reduction = _of_all_reduce(nodes)
    missing = re.search(r"has no attribute '(\w+)'", str(error))
    attribute = missing[1] if missing else ""
    gathered, of_a_list = _of_all_gather(nodes)
    of_truth = f" Cast truth values: `tf.cast({shown(compared)}, tf.float32)`."
    return {
        "reduced": _ordered_reduction(nodes),
        "row": gathered,
        "of_a_list": " A list means several tensors." if of_a_list else "",
        "of_truth": of_truth if compared is not None else "",
        "comparison": shown(compared),
        "optimizer": shown(
            owners.get("apply_gradients") or owners.get("minimize"), missing="optimizer"
        ),
        "quoted": quoted_value(nodes),
        "in_the_next_cell": f"{owner}.values[0].numpy()" if replicas > 1 else f"{owner}.numpy()",
        "local": shown(owners.get("values")),
        "indexed": shown(next((n.value for n in nodes if isinstance(n, ast.Subscript)), None)),
        "types": types,
        "cast": cast,
        "value": value,
        "reduction": reduction,
        "attribute": attribute,
        "tensorflow": OF_NUMPY.get(attribute, "").format(attribute),
        "loop": next((node.attr for node in attributes if node.attr in KERAS_LOOPS), ""),
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
    pairs = [pair for node in nodes if (pair := sides_of(node, operator)) is not None]
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
    return mixed, f"tf.cast({shown(operands[changed])}, tf.{types[1 - changed]})"


def _is_integer(kind: str) -> bool:
    return kind.startswith(("int", "uint", "bool"))


def _rank(kind: str) -> int:
    """Return the rank of a type. The operand with the lower rank is cast, as int32 to float32."""
    return (0 if _is_integer(kind) else 2) + (not kind.endswith("64"))


def sides_of(node: ast.AST, operator: type[ast.AST] | None) -> tuple[ast.expr, ast.expr] | None:
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
    call = call_of(nodes, "all_reduce")
    named = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    first, second = [*(call.args if call else []), None, None][:2]
    operation, argument = first or named.get("reduce_op"), second or named.get("value")
    value = shown(argument)
    name = str(operation.value).lower() if isinstance(operation, ast.Constant) else "max"
    if (function := _REDUCTIONS.get(name)) is None:
        return value, f"ctx.all_reduce('mean', {value})"
    if isinstance(argument, ast.BinOp | ast.UnaryOp | ast.Compare | ast.IfExp):
        value = f"({value})"
    rows = f"{value}[tf.newaxis]"
    if not isinstance(argument, ast.Name | ast.Call | ast.Attribute | ast.Subscript | ast.BinOp):
        rows = f"tf.stack([{shown(argument)}])" if argument is not None else "x[tf.newaxis]"
    return value, f"tf.reduce_{function}(ctx.all_gather({rows}, axis=0), axis=0)"


def _reduced(nodes: list[ast.AST]) -> tuple[list[str], list[str]]:
    """Return the texts, and the code of the other arguments, of a call of `all_reduce`."""
    call = call_of(nodes, "all_reduce")
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)] if call else []
    words = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return words, [shown(a) for a in arguments if not isinstance(a, ast.Constant)]


def _ordered_reduction(nodes: list[ast.AST]) -> str:
    """Return a call of `all_reduce` with its own arguments in the right order."""
    words, values = _reduced(nodes)
    word, value = next(iter(words), "sum"), next(iter([*values, *words[1:]]), "x")
    return f"ctx.all_reduce({word!r}, {value})"


def quoted_value(nodes: list[ast.AST]) -> str:
    """Return the value of an `all_reduce` if it is a text; else an empty text."""
    words, _ = _reduced(nodes)
    return words[1] if len(words) > 1 else ""


def _of_all_gather(nodes: list[ast.AST]) -> tuple[str, bool]:
    """Return a gathered number as a tensor with an axis, and whether it was in a list."""
    call = call_of(nodes, "all_gather")
    value = call.args[0] if call is not None and call.args else None
    if isinstance(value, (ast.List, ast.Tuple)):
        return f"tf.stack({shown(value)})", True
    return f"tf.reshape({shown(value)}, [1])", False
