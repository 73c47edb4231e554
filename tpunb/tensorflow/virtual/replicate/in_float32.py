"""Replica functions that compute in float32 what was written for bfloat16 or float16.

In these types, a sum over a larger batch loses more digits. The gradients of two runs then differ
by more than a factor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import (
    READS,
    Library,
    has_node,
    new_node,
)
from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    FunctionDef,
    NodeDef,
    dtypes,
    tensor_util,
)

_SHORT = frozenset({tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum})
_LONG = tf.float32.as_datatype_enum

_NEEDS_ITS_TYPE = ("Bitcast", "Assign", "Resource", *READS)
"""The beginnings of the names of operations that need the type as it is."""


def is_short(function: FunctionDef, library: Library) -> bool:
    """Return whether a function computes in types with less precision than float32."""
    return has_node(function, library, lambda node: any(map(_SHORT.intersection, _types(node))))


def in_float32(function: FunctionDef, library: Library) -> tuple[FunctionDef, Library]:
    """Return a function that computes in float32, and its library.

    They stay as they are if an argument or a variable has a shorter type.

    Args:
        function: The function, its calls inlined.
        library: Finds the functions that it calls.
    """
    if any(argument.type in _SHORT for argument in function.signature.input_arg):
        return function, library
    if not is_short(function, library) or has_node(function, library, _keeps_its_type):
        return function, library

    @functools.cache
    def found(name: str) -> FunctionDef:
        body = _lengthened(library(name))
        for argument in (*body.signature.input_arg, *body.signature.output_arg):
            argument.type = _LONG if argument.type in _SHORT else argument.type
        return body

    result = _lengthened(function)
    for output in function.signature.output_arg:
        _shorten(result, output.name, output.type)
    return result, found


def _types(node: NodeDef) -> Iterator[set[int]]:
    for value in node.attr.values():
        yield {value.type, *value.list.type}


def _keeps_its_type(node: NodeDef) -> bool:
    is_bound = node.op.startswith(_NEEDS_ITS_TYPE)
    return is_bound and any(map(_SHORT.intersection, _types(node)))


def _lengthened(function: FunctionDef) -> FunctionDef:
    result = FunctionDef()
    result.CopyFrom(function)
    for node in result.node_def:
        for value in node.attr.values():
            _lengthen(value)
    return result


def _lengthen(value: Any) -> None:
    if value.type in _SHORT:
        value.type = _LONG
    elif value.tensor.dtype in _SHORT:
        numbers = tensor_util.MakeNdarray(value.tensor).astype("float32")
        value.tensor.CopyFrom(tensor_util.make_tensor_proto(numbers, dtypes.float32))
    for index, dtype in enumerate(value.list.type):
        value.list.type[index] = _LONG if dtype in _SHORT else dtype


def _shorten(function: FunctionDef, name: str, dtype: int) -> None:
    """Give a result the type that the function's callers expect."""
    if dtype not in _SHORT:
        return
    types = {"SrcT": AttrValue(type=_LONG), "DstT": AttrValue(type=dtype)}
    cast = new_node("Cast", f"shortened_{name}", [function.ret[name]], "", **types)
    function.node_def.append(cast)
    function.ret[name] = f"{cast.name}:y:0"
