"""Replica functions without chance and without output, so that two runs can be compared.

A random number becomes a number that depends on its position only: the operation's name and the
indices. All replicas of a trial have the same examples, and a single replica has them in turn. So
the position is counted within the examples of one replica, and each example gets the same numbers
in both runs. A constant would not do: batch normalization of equal values is a rounding error.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import LOOPS, Library, called_functions
from tpunb.tensorflow.virtual.graph.rewrite import inlined
from tpunb.tensorflow.virtual.private_names import AttrValue, FunctionDef, NodeDef, op_def_registry

_PRINTS = "PrintV2"

_PRIME = 46337
"""A prime whose square fits into 32 bits; cubing permutes the numbers below it."""

_AXES = (7919, 104, 31337, 1933, 20011, 509)
"""A factor for the index in each axis. Further axes count as part of the last."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a trial's batch.

    Attributes:
        each: The number of a replica's examples; None if it is not known.
        replicas: The number of replicas that the single replica's batch is made of.
    """

    each: int | None
    replicas: int

    def uniform(self, shape: Any, salt: int) -> Any:
        """Return numbers between 0 and 1 that are the same for each replica's examples."""
        padded = tf.concat([shape, tf.ones([len(_AXES)], tf.int32)], 0)
        sizes = [padded[axis] for axis in range(len(_AXES))]
        sizes[-1] *= tf.reduce_prod(shape[len(_AXES) :])
        number = tf.constant(salt, tf.int32)
        for axis, (size, factor) in enumerate(zip(sizes, _AXES, strict=True)):
            index = tf.range(size) % self._period(size, axis) % _PRIME * factor % _PRIME
            number += tf.reshape(index, [-1 if other == axis else 1 for other in range(len(_AXES))])
        number %= _PRIME
        number = number * number % _PRIME * number % _PRIME
        return tf.reshape((tf.cast(number, tf.float32) + 0.5) / _PRIME, shape)

    def _period(self, size: Any, axis: int) -> Any:
        """Return the number of an axis's first positions that are repeated."""
        if not self.each:
            return tf.maximum(size, 1)
        if axis == 0:
            is_batch = size % self.each == 0
        else:
            is_batch = (size == self.each) | (size == self.each * self.replicas)
        return tf.where(is_batch, self.each, tf.maximum(size, 1))


def _truncated(uniform: Any) -> Any:
    return tf.math.ndtri(0.0228 + 0.9544 * uniform)


def _whole(uniform: Any, low: Any, high: Any) -> Any:
    return low + tf.cast(uniform * tf.cast(high - low, tf.float32), low.dtype)


def _any_whole(uniform: Any) -> Any:
    return uniform * 2.0**31


def _below_one(uniform: Any) -> Any:
    return 0.99 * uniform  # types of less precision would round it to 1


_SHAPED: dict[str, Callable[..., Any]] = {
    "RandomUniform": _below_one,
    "StatelessRandomUniform": _below_one,
    "RandomStandardNormal": tf.math.ndtri,
    "StatelessRandomNormal": tf.math.ndtri,
    "TruncatedNormal": _truncated,
    "StatelessTruncatedNormal": _truncated,
    "StatelessRandomUniformFullInt": _any_whole,
}
"""Operations that take a shape first, with a function of numbers between 0 and 1."""

_WHOLE = frozenset({"RandomUniformInt", "StatelessRandomUniformInt"})
"""Operations that take a shape first, and the limits last."""

_CLASSES = frozenset({"Multinomial", "StatelessMultinomial"})


def _drawn(op: str, inputs: Sequence[Any], examples: Examples, salt: int) -> Any:
    """Return the numbers that replace an operation's random numbers."""
    if op == "RandomShuffle":
        return tf.roll(inputs[0], 1, 0)  # keeps the order of a replica's examples
    if op in _CLASSES:
        shape = tf.stack([tf.shape(inputs[0])[0], inputs[1]])
        sums = tf.cumsum(tf.nn.softmax(tf.cast(inputs[0], tf.float32)), 1)
        # The last sum may be less than 1 by rounding.
        below = sums[:, None, :-1] < examples.uniform(shape, salt)[:, :, None]
        return tf.reduce_sum(tf.cast(below, tf.int32), 2)
    uniform = examples.uniform(tf.cast(inputs[0], tf.int32), salt)
    return _whole(uniform, *inputs[-2:]) if op in _WHOLE else _SHAPED[op](uniform)


def _operation(node: NodeDef) -> str:
    return str(node.op).removesuffix("V2")


def _draws(node: NodeDef) -> bool:
    return _operation(node) in {*_SHAPED, *_WHOLE, *_CLASSES, "RandomShuffle"}


def without_chance(
    function: FunctionDef, library: Library, examples: Examples
) -> tuple[FunctionDef, Library]:
    """Return a function that always draws the same numbers, and prints nothing.

    Loops stay as they are: a loop may end only because its random numbers vary.

    Args:
        function: The function, its calls inlined.
        library: Finds the functions that it calls.
        examples: The batch's examples.

    Returns:
        The function, and its library.
    """
    changed = set(_outside_loops(function, library))

    @functools.cache
    def found(name: str) -> FunctionDef:
        body = library(name)
        return _replaced(body, library, examples) if name in changed else body

    return _replaced(function, library, examples), found


def _outside_loops(function: FunctionDef, library: Library) -> Iterator[str]:
    for node in function.node_def:
        if node.op not in LOOPS:
            for name in called_functions(node):
                yield name
                yield from _outside_loops(library(name), library)


def _replaced(function: FunctionDef, library: Library, examples: Examples) -> FunctionDef:
    if not any(_draws(node) or node.op == _PRINTS for node in function.node_def):
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    made: dict[str, FunctionDef] = {}
    for node in result.node_def:
        if _draws(node):
            _call(node, made, examples)
        elif node.op == _PRINTS:
            _only_wait(node)
    return inlined(result, lambda name: made.get(name) or library(name))


def _only_wait(node: NodeDef) -> None:
    """Turn a node without outputs into a node that does nothing."""
    waits = [text for text in node.input if text.startswith("^")]
    node.op = "NoOp"
    del node.input[:]
    node.input.extend(waits)
    node.attr.clear()


def _call(node: NodeDef, made: dict[str, FunctionDef], examples: Examples) -> None:
    """Turn a node that draws into a call of a function that computes the numbers."""
    operation, definition = _operation(node), op_def_registry.get(node.op)
    types = [_type(argument, node) for argument in definition.input_arg]
    output = _type(definition.output_arg[0], node)
    salt = zlib.crc32(node.name.encode()) % _PRIME

    def drawn(*inputs: Any) -> Any:
        return tf.cast(_drawn(operation, inputs, examples, salt), output)

    specs = [tf.TensorSpec(None, each) for each in types]
    body = tf.function(drawn, autograph=False).get_concrete_function(*specs).function_def
    made[body.signature.name] = body
    node.op = "PartitionedCall"
    node.attr.clear()
    node.attr["f"].func.name = body.signature.name
    node.attr["Tin"].CopyFrom(AttrValue(list=AttrValue.ListValue(type=_numbers(types))))
    node.attr["Tout"].CopyFrom(AttrValue(list=AttrValue.ListValue(type=_numbers([output]))))


def _type(argument: Any, node: NodeDef) -> tf.DType:
    return tf.as_dtype(node.attr[argument.type_attr].type if argument.type_attr else argument.type)


def _numbers(types: Sequence[tf.DType]) -> list[int]:
    return [each.as_datatype_enum for each in types]
