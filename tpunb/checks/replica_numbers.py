"""The numbers in a step's code that may be the number of replicas, with their lines.

A graph does not say what a constant means, and neither does a Python number. So every number that
the step's code reads counts: names, attributes, items and literals. If a name is given the value
that it would have on one replica, a trial shows whether the gradients depend on it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import linecache
import math
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.user_code import is_users_class, is_users_code, is_users_module
from tpunb.virtual.tensorflow.private_names import distribute_lib

_NOT_A_SCALE = frozenset(
    {"axis", "seed", "name", "num_or_size_splits", "depth", "dtype", "rate", "maxlen", "k"}
    | {"shape", "perm", "batch_size"}
)
"""Keyword arguments whose value scales nothing."""

_SHAPES = frozenset(
    ["range", "one_hot", "reshape", "split", "repeat", "tile", "top_k", "transpose", "expand_dims"]
)
"""Functions whose numbers are sizes and axes."""

_ARRAYS = frozenset({"constant", "array", "asarray", "convert_to_tensor"})
"""Functions that make an array of their numbers."""

_LARGEST = 1e300
_MOST_ELEMENTS = 4096
_PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic)
_FIRST_BUILT = frozenset({"__init__", "build", "get_config"})


@dataclasses.dataclass(frozen=True)
class Number:
    """A number that a step's code reads.

    Attributes:
        text: Its source text, such as `n` or `config.n`.
        line: The line that reads it; 0 if it is an argument of the step.
        value: The number.
        held: The Python number, tensor or variable.
        holder: The mapping or list that holds it; None for a literal.
        key: The key in the holder.
    """

    text: str
    line: int
    value: float
    held: Any
    holder: Any = None
    key: Any = None

    @property
    def where(self) -> str:
        """The number and its line in a phrase."""
        return f"`{self.text}` on line {self.line}" if self.line else f"The argument {self.text}"

    @contextlib.contextmanager
    def rebound(self, value: float) -> Iterator[None]:
        """Give the name another value inside the block."""
        self.holder[self.key] = _of_the_same_type(self.held, value)
        try:
            yield
        finally:
            self.holder[self.key] = self.held


@dataclasses.dataclass(frozen=True)
class Code:
    """Code with the names that it reads.

    Attributes:
        nodes: The code.
        scopes: The mappings in which names are looked up, in order.
    """

    nodes: Sequence[ast.AST]
    scopes: Sequence[Any]


def numbers_of(roots: Sequence[Any], matters: Callable[[float], bool]) -> list[Number]:
    """Return the numbers that code reads, without repetition, in the order of their discovery.

    Args:
        roots: The step and its arguments, or a cell's code.
        matters: Whether a number may depend on the number of replicas.
    """
    found: dict[Any, Number] = {}
    for number in _Search().numbers(roots):
        if matters(number.value):
            is_literal = number.holder is None
            key = (number.line, number.text) if is_literal else (id(number.holder), number.key)
            found.setdefault(key, number)
    return list(found.values())


class _Search:
    """A walk through the code that a step reaches."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._waiting: list[Any] = []

    def numbers(self, roots: Sequence[Any]) -> Iterator[Number]:
        self._waiting = list(roots)[::-1]
        while self._waiting:
            value = self._waiting.pop()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            yield from self._in(value)

    def _in(self, value: Any) -> Iterator[Number]:
        if isinstance(value, Code):
            yield from self._read(value)
        elif isinstance(value, types.FunctionType):
            self._waiting += _attached(value)
            if is_users_code(value.__code__):
                yield from self._read(_code_of(value))
        elif isinstance(value, types.MethodType):
            self._waiting += [value.__self__, value.__func__]
        elif isinstance(value, functools.partial):
            passed = (*value.args, *value.keywords.values())
            yield from map(_argument, filter(_is_plain, passed))
            self._waiting += [value.func, passed]
        elif isinstance(value, (list, tuple, set, dict)):
            items = value.values() if isinstance(value, dict) else value
            self._waiting += [item for item in items if not isinstance(item, _PLAIN)]
        elif hasattr(value, "python_function"):
            self._waiting.append(value.python_function)
        elif _is_looked_into(value):
            self._waiting += [v for v in vars(value).values() if _number(v) is None]
            self._waiting += _methods(value)

    def _read(self, code: Code) -> Iterator[Number]:
        for node in code.nodes:
            yield from self._read_node(node, code.scopes, scales=True)

    def _read_node(self, node: ast.AST, scopes: Sequence[Any], *, scales: bool) -> Iterator[Number]:
        if isinstance(node, ast.Constant):
            value = _number(node.value)
            if scales and value is not None:
                yield Number(repr(node.value), node.lineno, value, node.value)
            return
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            with contextlib.suppress(LookupError, TypeError):
                holder, key = _place(node, scopes)
                held = holder[key]
                value = _number(held)
                if value is None:
                    self._waiting.append(held)
                else:
                    yield Number(ast.unparse(node), node.lineno, value, held, holder, key)
        for child, child_scales in _children(node):
            yield from self._read_node(child, scopes, scales=scales and child_scales)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the parts of a node, each with whether a literal in it may scale a tensor."""
    is_shape = _is_list_of_sizes(node)
    is_shape = is_shape or (isinstance(node, ast.Call) and _called(node) in _SHAPES)
    is_array = isinstance(node, ast.Call) and _called(node) in _ARRAYS
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if not isinstance(child, ast.AST):
                continue
            if is_array and _is_list_of_sizes(child):
                yield from ((number, True) for number in ast.iter_child_nodes(child))
                continue
            is_index = (isinstance(node, ast.Subscript) and name == "slice") or (
                isinstance(child, ast.keyword) and child.arg in _NOT_A_SCALE
            )
            yield child, not (is_shape or is_index or isinstance(node, ast.Compare))


def _is_list_of_sizes(node: ast.AST) -> bool:
    """Return whether a list or tuple is a shape, as far as its literals tell."""
    if not isinstance(node, (ast.List, ast.Tuple)) or len(node.elts) < 2:
        return False
    return not any(isinstance(getattr(each, "value", None), float) for each in node.elts)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _place(node: ast.AST, scopes: Sequence[Any]) -> tuple[Any, Any]:
    """Return the mapping or list that holds what an expression reads, and the key.

    Raises:
        LookupError: The expression is not a name, or an attribute or item of one.
    """
    if isinstance(node, ast.Name):
        for scope in scopes:
            if node.id in scope:
                return scope, node.id
    elif isinstance(node, ast.Attribute):
        value = _value(node.value, scopes)
        if _is_looked_into(value) and node.attr in vars(value):
            return vars(value), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        value = _value(node.value, scopes)
        if isinstance(value, (dict, list, tuple)):
            return value, node.slice.value
    raise LookupError


def _value(node: ast.AST, scopes: Sequence[Any]) -> Any:
    holder, key = _place(node, scopes)
    return holder[key]


class _Closure(MutableMapping):  # type: ignore[type-arg]
    """The names that a function closes over."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )

    def __getitem__(self, name: str) -> Any:
        with contextlib.suppress(ValueError):  # the cell is empty
            return self._cells[name].cell_contents
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class _Defaults(_Closure):
    """The defaults of a function's parameters."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        self._names = names[len(names) - len(defaults) :]

    def _all(self) -> dict[str, Any]:
        values = dict(zip(self._names, self._function.__defaults__ or (), strict=True))
        return {**values, **(self._function.__kwdefaults__ or {})}

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        values = {**self._all(), name: value}
        if self._names:
            self._function.__defaults__ = tuple(values[key] for key in self._names)
        if self._function.__kwdefaults__:
            self._function.__kwdefaults__ = {k: values[k] for k in self._function.__kwdefaults__}

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _code_of(function: types.FunctionType) -> Code:
    """Return a function's code; all numbers of its bytecode if there is no source."""
    defaults = _Defaults(function)
    scopes = (defaults, _Closure(function), function.__globals__)
    nodes = _nodes(function.__code__)
    # A default is read wherever the function is called.
    first = function.__code__.co_firstlineno
    read = [ast.Name(name, ast.Load(), lineno=first, col_offset=0) for name in defaults]
    return Code([*read, *nodes], scopes)


def _nodes(code: types.CodeType) -> list[ast.AST]:
    line = code.co_firstlineno
    with contextlib.suppress(SyntaxError):
        tree = _parsed("".join(linecache.getlines(code.co_filename)))
        found = [node for node in ast.walk(tree) if _is_of(node, code)]
        if found:
            return found
    made: list[ast.AST] = [ast.Constant(one) for one in code.co_consts if _number(one) is not None]
    made += [ast.Name(name, ast.Load()) for name in (*code.co_names, *code.co_freevars)]
    for node in made:
        node.lineno = line  # type: ignore[attr-defined]
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return made + [node for one in inner for node in _nodes(one)]


def _is_of(node: ast.AST, code: types.CodeType) -> bool:
    """Return whether a node defines a function with this code."""
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return False
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _attached(function: types.FunctionType) -> list[Any]:
    """Return the values that a function, such as a library's wrapper, closes over."""
    return [value for value in _Closure(function).values() if _number(value) is None]


def _methods(value: Any) -> list[Code]:
    """Return the methods of a user's class, with the object under the name of its parameter."""
    made = []
    for kind in type(value).__mro__:
        if not is_users_class(kind) or kind is object:
            continue
        for name, method in vars(kind).items():
            method = getattr(method, "fget", getattr(method, "python_function", method))
            if isinstance(method, types.FunctionType) and name not in _FIRST_BUILT:
                own = method.__code__.co_varnames[:1]
                code = _code_of(method)
                made.append(Code(code.nodes, (dict.fromkeys(own, value), *code.scopes)))
    return made


def _is_looked_into(value: Any) -> bool:
    if isinstance(value, (type, tf.Variable, distribute_lib.StrategyBase)) or tf.is_tensor(value):
        return False
    if isinstance(value, types.ModuleType):
        return is_users_module(value)
    top = type(value).__module__.partition(".")[0]
    is_open = is_users_class(type(value)) or top in {"keras", "tf_keras", "types", "argparse"}
    return is_open and hasattr(value, "__dict__")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic)) and _number(value) is not None


def _argument(value: Any) -> Number:
    return Number(f"{value!r:.20}", 0, float(value), value)


def _number(value: Any) -> float | None:
    """Return the number that a Python number is, or each element of an array or a variable."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < _LARGEST else None
    if not isinstance(value, (np.generic, np.ndarray, tf.Tensor, tf.Variable)):
        return None
    size = math.prod(size or 0 for size in value.shape)
    if not 0 < size <= _MOST_ELEMENTS or getattr(value, "trainable", False):
        return None
    with contextlib.suppress(Exception):  # a symbolic tensor, or text
        elements = np.ravel(value.numpy() if hasattr(value, "numpy") else value)
        return float(elements[0]) if (elements == elements[0]).all() else None
    return None


def _of_the_same_type(held: Any, value: float) -> Any:
    if isinstance(held, (int, float)):
        return type(held)(value)
    if isinstance(held, (np.generic, np.ndarray)):
        return np.full_like(held, value)[()]
    return tf.fill(held.shape, tf.cast(value, held.dtype))
