"""Trials of a step: traces that run on stand-ins for all variables, and show their gradients.

A trial never reads or writes a variable of the user's while it runs. The replica functions that are
traced in it take resources of the trial's own, one for each replica, which get the variables'
values before each run.

The gradients of a trial go two ways. What a `tf.GradientTape` computes is kept, and the step gets
made-up gradients of a strength that the trial sets. So two questions are separate: which gradients
the loss has, and what the step makes of the gradients of all replicas.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.user_code import is_users_file
from tpunb.errors.code_problems import SourceLine
from tpunb.tensorflow.virtual.copies.variable_copies import eagerly, handle_of
from tpunb.tensorflow.virtual.graph.function_def import Library
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import FunctionDef, ResourceVariable
from tpunb.tensorflow.virtual.replicate.divergence import Divergence
from tpunb.tensorflow.virtual.replicate.in_float32 import in_float32, is_short
from tpunb.tensorflow.virtual.replicate.without_chance import Examples, without_chance

current_trial: contextvars.ContextVar[Trial | None] = contextvars.ContextVar(
    "tpunb_trial", default=None
)
"""The trial in which functions are traced now."""

_MOST_NUMBERS = 4096
"""The largest number of a gradient's elements that are kept."""

STRENGTH = 2.0**-20
"""The norm of made-up gradients of strength 1, which is too small for clipping."""


@dataclasses.dataclass
class StandIn:
    """The trial's own resources, which replace a variable.

    Attributes:
        key: A value that tells the variable from others.
        originals: The variable's copies, one for each replica of the trial.
        variables: A variable of the trial's own for each replica.
        is_trained: Whether a tape computes gradients of the variable.
    """

    key: str
    originals: Sequence[Any]
    variables: Sequence[Any]
    is_trained: bool = False

    @property
    def handles(self) -> list[Any]:
        """The resource on each replica."""
        return [variable.handle for variable in self.variables]

    def begin(self, *, with_zeros: bool) -> None:
        """Assign the variable's present values.

        Args:
            with_zeros: Whether the elements of arrays are zero instead. A change is then exact,
                however small it is.
        """
        for original, variable in zip(self.originals, self.variables, strict=True):
            value = _value_of(original)
            if not variable.shape.is_compatible_with(value.shape):
                # A copy that became separate before its first value has none.
                value = _value_of(self.originals[0])
            if with_zeros and value.dtype.is_floating and value.shape.rank:
                value = tf.zeros_like(value)
            variable.assign(value)

    def values(self) -> list[np.ndarray]:
        """Return the value on each replica."""
        return [_numbers(variable.read_value()) for variable in self.variables]


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients that one call of a tape computes.

    Attributes:
        names: The names of the variables.
        shapes: The shapes of the variables.
        sizes: The number of elements that are kept of each gradient.
        variables: A variable for each replica that keeps the elements.
        lines: The lines of the user's code that led to the loss, innermost first.
    """

    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    sizes: Sequence[int]
    variables: Sequence[Any]
    lines: Sequence[SourceLine]

    def values(self) -> list[list[np.ndarray]]:
        """Return the kept elements of each gradient, on each replica."""
        columns = [_numbers(variable.read_value()) for variable in self.variables]
        cuts = np.cumsum(self.sizes)[:-1]
        parts = [np.split(column, cuts) for column in columns]
        return [list(each) for each in zip(*parts, strict=True)]


class Trial:
    """A trace of a step for some number of replicas.

    Args:
        strategy: The strategy whose replicas these are.
        devices: The device of each replica of the trial.
        examples: The batch's examples.

    Attributes:
        strategy: The strategy.
        divergence: The trial's own record of copies; no copy belongs to the user.
        gradients: What tapes computed, in the order of their calls.
        stand_ins: The variables' stand-ins.
        functions: The replica functions.
        is_rounded: Whether the functions that were traced compute with less precision than float32.
    """

    def __init__(self, strategy: Any, devices: Sequence[str], examples: Examples) -> None:
        self.strategy = strategy
        self._examples = examples
        self.divergence = Divergence()
        self.gradients: list[Gradients] = []
        self.functions: list[TracedFunction] = []
        self.is_rounded = False
        self._devices = devices
        self._stand_ins: dict[str, StandIn] = {}
        self._weights = self._variables(tf.zeros([]), "weight")

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return len(self._devices)

    @property
    def stand_ins(self) -> list[StandIn]:
        """The variables' stand-ins."""
        return list(self._stand_ins.values())

    @property
    def handles(self) -> list[Any]:
        """The handles of the trial's variables, apart from the stand-ins."""
        kept = [variable for one in self.gradients for variable in one.variables]
        return [variable.handle for variable in (*self._weights, *kept)]

    def keep(self, captures: Sequence[Any]) -> None:
        """Keep only the gradients of functions that run.

        Args:
            captures: The resources that these functions use.
        """
        used = {id(capture) for capture in captures}
        self.gradients = [one for one in self.gradients if id(one.variables[0].handle) in used]

    def forget(self) -> None:
        """Forget a trace that failed."""
        self.gradients.clear()
        self.functions.clear()
        self._stand_ins.clear()

    def stand_in(self, key: str, name: str, copies: Sequence[Any]) -> StandIn:
        """Return the stand-in for a variable.

        Args:
            key: A value that tells the variable from others.
            name: The variable's name.
            copies: The variable's copies.
        """
        if key not in self._stand_ins:
            first = copies[0]
            zeros = tf.TensorShape([size or 0 for size in first.shape])
            with eagerly():
                variables = self._variables(tf.zeros(zeros, first.dtype), name, first.shape)
            self._stand_ins[key] = StandIn(key, copies[: self.replicas], variables)
        return self._stand_ins[key]

    def begin(self, strengths: Sequence[float], *, with_zeros: bool) -> None:
        """Prepare a run.

        Args:
            strengths: The strength of the made-up gradients on each replica.
            with_zeros: Whether variables are zero; see `StandIn.begin`.
        """
        for stand_in in self.stand_ins:
            stand_in.begin(with_zeros=with_zeros)
        for weight, strength in zip(self._weights, strengths, strict=True):
            weight.assign(strength)

    def rewritten(self, traced: TracedFunction) -> tuple[FunctionDef, Library]:
        """Return a replica function with fixed random numbers in float32, and its library."""
        self.functions.append(traced)
        fixed = without_chance(traced.definition, traced.library, self._examples)
        definition, library = in_float32(*fixed)
        self.is_rounded |= is_short(definition, library)
        return definition, library

    def taken(self, context: Any, target: Any, sources: Any, gradients: Any) -> Any:
        """Keep the gradients that a tape has computed, and return made-up gradients.

        Args:
            context: The context in which the replica function is traced.
            target: The loss.
            sources: The sources of the gradients.
            gradients: The gradients.
        """
        flat = tf.nest.flatten(gradients)
        pairs = [
            (index, source, gradient)
            for index, (source, gradient) in enumerate(
                zip(tf.nest.flatten(sources), flat, strict=True)
            )
            if gradient is not None and _is_variable(source) and _is_kept(source, gradient)
        ]
        if not pairs:
            return gradients
        shapes = [tuple(source.shape) for _, source, _ in pairs]
        sketches = [_sketch(gradient) for _, _, gradient in pairs]
        sizes = [sketch.shape[0] for sketch in sketches]
        with eagerly():
            kept = self._variables(tf.zeros([sum(sizes)]), "gradients")
        handle = _handle(context, kept, f"gradients_{len(self.gradients)}")
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.concat(sketches, 0))
        names = [_name_of(source) for _, source, _ in pairs]
        self.gradients.append(Gradients(names, shapes, sizes, kept, _lines(target)))
        handle = _handle(context, self._weights, f"weights_{len(self.gradients)}")
        weight = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        weight = tf.ensure_shape(weight, [])
        weight *= STRENGTH / math.sqrt(max(1, sum(map(math.prod, shapes))))
        for index, source, gradient in pairs:
            flat[index] = _made_up(gradient, tuple(source.shape), weight)
            self._note_trained(source, context)
        return tf.nest.pack_sequence_as(gradients, flat)

    def _note_trained(self, source: Any, context: Any) -> None:
        """Note that a tape computes gradients of a variable."""
        variable = context.variables.get(id(source.handle))
        if variable is not None and variable.key in self._stand_ins:
            self._stand_ins[variable.key].is_trained = True

    def _variables(self, value: Any, name: str, shape: Any = None) -> list[Any]:
        made = []
        for device in self._devices:
            with tf.device(device):
                made.append(ResourceVariable(value, trainable=False, name=name, shape=shape))
        return made


def _value_of(copy: Any) -> Any:
    """Return the present value of a copy of a variable."""
    handle = handle_of(copy)
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=copy.dtype)


def _numbers(tensor: Any) -> np.ndarray:
    if tensor.dtype.is_floating:
        tensor = tf.cast(tensor, tf.float64)
    return np.asarray(tensor)


def _lines(target: Any) -> list[SourceLine]:
    """Return the lines of the user's code that led to a loss, innermost first."""
    tensors = [each for each in tf.nest.flatten(target) if hasattr(each, "op")]
    frames = tensors[0].op.traceback if tensors else ()
    lines = [SourceLine(frame.filename, frame.lineno) for frame in frames]
    return [line for line in lines[::-1] if is_users_file(line.file)]


def _handle(context: Any, variables: Sequence[Any], key: str) -> Any:
    return context.on_replicas([variable.handle for variable in variables], key)


def _is_variable(source: Any) -> bool:
    return hasattr(source, "assign") and hasattr(source, "shape")


def _is_kept(source: Any, gradient: Any) -> bool:
    return tf.TensorShape(source.shape).is_fully_defined() and bool(gradient.dtype.is_floating)


def _name_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name).partition(":")[0]


def _sketch(gradient: Any) -> tf.Tensor:
    """Return some thousand elements of a gradient, or of a sum of its slices."""
    if isinstance(gradient, tf.IndexedSlices):
        # Each index has a weight of its own, so that gradients of other rows give another sum.
        weights = 1 + tf.cast(gradient.indices * 7919 % 13, tf.float32) / 13
        values = tf.cast(gradient.values, tf.float32)
        size = math.prod(values.shape[1:])
        gradient = tf.linalg.matvec(tf.reshape(values, [-1, size]), weights, transpose_a=True)
        gradient.set_shape([size])
    flat = tf.reshape(tf.cast(gradient, tf.float32), [-1])
    return flat[:: max(1, -(-(flat.shape[0] or 1) // _MOST_NUMBERS))]


def _made_up(gradient: Any, shape: tuple[int, ...], weight: Any) -> Any:
    """Return a made-up gradient of the same type and shape."""
    if isinstance(gradient, tf.IndexedSlices):
        values = _pattern((1, *shape[1:])) * weight
        index = tf.zeros([1], gradient.indices.dtype)
        return tf.IndexedSlices(tf.cast(values, gradient.dtype), index, gradient.dense_shape)
    return tf.cast(_pattern(shape) * weight, gradient.dtype)


def _pattern(shape: Sequence[int]) -> Any:
    """Return numbers of both signs, whose norm is about the root of their count."""
    count = math.prod(shape)
    return tf.reshape(tf.cast(tf.range(count) % 5, tf.float32) * 0.75 - 1.0, shape)


@functools.cache
def shares(replicas: int) -> tuple[float, ...]:
    """Return strengths for the replicas that differ, and whose mean is exactly 1."""
    pairs = [0.5, 1.5] * (replicas // 2)
    return tuple(pairs if replicas % 2 == 0 else [*pairs, 1.0])
