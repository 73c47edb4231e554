"""The numbers in a step's code that may be the number of replicas, with their lines.

A graph does not say what a constant means, and neither does a Python number. So the names,
attributes and items that the step's code reads count. If a name is given the value that it would
have on one replica, a trial shows whether the gradients depend on it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import linecache
import math
import operator
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.functions import closed_over, nested_codes, wrapped
from tpunb._util.user_code import is_users_class, is_users_code, is_users_module
from tpunb.virtual.tensorflow.private_names import distribute_lib

_LARGEST = 1e300
_MOST_ELEMENTS = 4096
_PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic)
_FIRST_BUILT = frozenset({"__init__", "build", "get_config"})


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place in which code finds a value: a name, an attribute, an item or a default.

    Attributes:
        held: The value.
        put: Replaces the value; None if that is not possible.
        key: Tells the place from others.
    """

    held: Any
    put: Callable[[Any], object] | None
    key: Hashable


@dataclasses.dataclass(frozen=True)
class Number:
    """A number that a step's code reads.

    Attributes:
        text: Its source text, such as `n` or `config.n`.
        line: The line that reads it.
        value: The number.
        place: The place that holds it; None for a literal or a constant.
    """

    text: str
    line: int
    value: float
    place: _Place | None = None

    @property
    def where(self) -> str:
        """The number and its line in a phrase."""
        return f"`{self.text}` on line {self.line}"

    @contextlib.contextmanager
    def rebound(self, value: float) -> Iterator[bool]:
        """Give the name another value inside the block; yield False if it takes none."""
        if self.place is None or self.place.put is None:
            yield False
            return
        self.place.put(_of_the_same_type(self.place.held, value))
        try:
            yield True
        finally:
            self.place.put(self.place.held)


@dataclasses.dataclass(frozen=True)
class Code:
    """Code with the names that it reads.

    Attributes:
        nodes: The code.
        scopes: The mappings in which names are looked up, in order.
        places: The places of the names that are looked up first.
    """

    nodes: Sequence[ast.AST]
    scopes: Sequence[Any]
    places: Mapping[str, _Place] = dataclasses.field(default_factory=dict)

    def place(self, node: ast.AST) -> _Place | None:
        """Return the place that an expression reads; None if it is none, or not known."""
        if isinstance(node, ast.Name):
            if node.id in self.places:
                return self.places[node.id]
            return next((_item(each, node.id) for each in self.scopes if node.id in each), None)
        inner = self.place(node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else None
        if inner is None:
            return None
        if isinstance(node, ast.Attribute):
            return _attribute(inner.held, node.attr)
        index = getattr(node, "slice", None)
        return _item(inner.held, index.value) if isinstance(index, ast.Constant) else None


def _item(holder: Any, key: Any) -> _Place | None:
    """Return the place of an item; None if there is none."""
    if tf.is_tensor(holder):
        return None
    can_be_set = hasattr(holder, "__setitem__")  # as opposed to a tuple or a class
    put = functools.partial(operator.setitem, holder, key) if can_be_set else None
    with contextlib.suppress(Exception):
        return _Place(holder[key], put, (id(holder), key))
    return None


def _attribute(owner: Any, name: str) -> _Place | None:
    """Return the place of an attribute that is a user's; None if there is none."""
    if isinstance(owner, type):
        return _item(vars(owner), name) if is_users_class(owner) else None
    # Keras tracks what its objects' attributes are set to.
    return _item(vars(owner), name) if _is_looked_into(owner) else None


def numbers_of(roots: Sequence[Any]) -> tuple[list[Number], set[float]]:
    """Return the numbers that code reads by names, without repetition, and its literals.

    Args:
        roots: The step and its arguments, or a cell's code.
    """
    found: dict[Hashable, Number] = {}
    literals: set[float] = set()
    for number in _Search(roots).numbers():
        if number.place is None:
            literals.add(number.value)
        else:
            found.setdefault(number.place.key, number)
    return list(found.values()), literals


class _Search:
    """A walk through the code that a step reaches."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._seen: dict[int, Any] = {}
        self._waiting = list(roots)[::-1]

    def numbers(self) -> Iterator[Number]:
        while self._waiting:
            value = self._waiting.pop()
            if id(value) not in self._seen and not isinstance(value, _PLAIN):
                self._seen[id(value)] = value
                yield from self._in(value)

    def _in(self, value: Any) -> Iterator[Number]:
        if isinstance(value, Code):
            for node in itertools.chain.from_iterable(map(ast.walk, value.nodes)):
                yield from self._read(node, value)
        elif isinstance(value, types.FunctionType):
            # A library's wrapper closes over the user's function.
            self._waiting += [v for v in closed_over(value).values() if number_in(v) is None]
            if is_users_code(value.__code__):
                yield from self._in(_code_of(value))
        elif isinstance(value, functools.partial):
            self._waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, (list, tuple, set)):
            self._waiting.extend(value)  # Keras wraps tuples
        elif isinstance(value, dict):
            self._waiting += value.values()
        elif hasattr(value, "python_function"):
            self._waiting.append(value.python_function)
        elif inner := wrapped(value):
            self._waiting += inner[::-1]
        elif _is_looked_into(value):
            self._waiting += [v for v in vars(value).values() if number_in(v) is None]
            self._waiting += _methods(value)

    def _read(self, node: ast.AST, code: Code) -> Iterator[Number]:
        if isinstance(node, ast.Constant):
            value = number_in(node.value)
            if value is not None:
                yield Number(repr(node.value), node.lineno, value)
        elif (place := code.place(node)) is not None:
            value = number_in(place.held)
            if value is not None:
                yield Number(ast.unparse(node), getattr(node, "lineno", 0), value, place)
            self._waiting.append(place.held)


def _code_of(function: types.FunctionType, own: Mapping[str, Any] | None = None) -> Code:
    """Return a function's code.

    Args:
        function: The function.
        own: The values of parameters.
    """
    code, defaults = function.__code__, dict(_defaults(function))
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: place for name, cell in cells if (place := _in_cell(cell)) is not None}
    # A default is read wherever the function is called.
    read = [ast.Name(name, ast.Load(), lineno=code.co_firstlineno) for name in defaults]
    nodes = [*read, *_nodes(code)]
    return Code(nodes, (own or {}, function.__globals__), {**closed, **defaults})


def _in_cell(cell: types.CellType) -> _Place | None:
    with contextlib.suppress(ValueError):  # the cell is empty
        return _Place(
            cell.cell_contents, functools.partial(setattr, cell, "cell_contents"), id(cell)
        )
    return None


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, _Place]]:
    """Yield the parameters that have defaults, each with the place of the default."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for index, name in enumerate(names[len(names) - len(values) :]):
        put = functools.partial(_put_default, function, index)
        yield name, _Place(values[index], put, (id(function), index))
    for name, value in (function.__kwdefaults__ or {}).items():
        put = functools.partial(operator.setitem, function.__kwdefaults__, name)
        yield name, _Place(value, put, (id(function), name))


def _put_default(function: types.FunctionType, index: int, value: Any) -> None:
    values = list(function.__defaults__ or ())
    values[index] = value
    function.__defaults__ = tuple(values)


def _nodes(code: types.CodeType) -> list[ast.AST]:
    """Return the syntax of functions with this code; without source, its numbers and names."""
    with contextlib.suppress(SyntaxError):
        tree = _parsed("".join(linecache.getlines(code.co_filename)))
        if found := [node for node in ast.walk(tree) if _is_of(node, code)]:
            return found
    made: list[ast.AST] = []
    for inner in nested_codes(code):
        line = inner.co_firstlineno
        made += [ast.Constant(each, lineno=line) for each in inner.co_consts]
        names = (*inner.co_names, *inner.co_freevars)
        made += [ast.Name(name, ast.Load(), lineno=line) for name in names]
    return made


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


def _methods(value: Any) -> list[Code]:
    """Return the methods of a user's class, with the object under the name of its parameter."""
    made = []
    for kind in filter(is_users_class, type(value).__mro__):
        for name, method in vars(kind).items():
            method = getattr(method, "fget", getattr(method, "python_function", method))
            if isinstance(method, types.FunctionType) and name not in _FIRST_BUILT:
                own = dict.fromkeys(method.__code__.co_varnames[:1], value)
                made.append(_code_of(method, own))
    return made


def _is_looked_into(value: Any) -> bool:
    if isinstance(value, (type, tf.Variable, distribute_lib.StrategyBase)) or tf.is_tensor(value):
        return False
    if isinstance(value, types.ModuleType):
        return is_users_module(value)
    top = type(value).__module__.partition(".")[0]
    is_open = is_users_class(type(value)) or top in {"keras", "tf_keras", "types", "argparse"}
    return is_open and hasattr(value, "__dict__")


def number_in(value: Any) -> float | None:
    """Return the number that a Python number is, or each element of an array or a variable.

    It has the digits of float32, so that a name, a literal and a constant of the graph are equal.
    """
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, float)):
        return float(f"{value:.7g}") if abs(value) < _LARGEST else None
    if not isinstance(value, (np.generic, np.ndarray)) and not tf.is_tensor(value):
        return None  # Keras's and TensorFlow's variables are tensors
    size = math.prod(size or 0 for size in value.shape)
    if not 0 < size <= _MOST_ELEMENTS or getattr(value, "trainable", False):
        return None
    with contextlib.suppress(Exception):  # a symbolic tensor, or text
        elements = np.ravel(value.numpy() if hasattr(value, "numpy") else value)
        return float(f"{elements[0]:.7g}") if (elements == elements[0]).all() else None
    return None


def _of_the_same_type(held: Any, value: float) -> Any:
    if isinstance(held, (int, float)):
        return type(held)(value)
    if isinstance(held, (np.generic, np.ndarray)):
        return np.full_like(held, value)[()]
    return tf.fill(held.shape, tf.cast(value, held.dtype))
