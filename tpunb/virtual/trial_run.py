"""Runs of a trial: the gradients of a step, and the variables after steps."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual._tensorflow import (
    ResourceVariable,
    XLAControlFlowContext,
    enclosing_tpu_context,
    pywrap_tfe,
)
from tpunb.virtual.graph.tensorflow_graphs import value_of_handle
from tpunb.virtual.patch.patch_tools import Replaced
from tpunb.virtual.replicate.scalar_constants import Edit, ScalarConstant
from tpunb.virtual.replicate.trace import ReplicaTracingContext
from tpunb.virtual.replicate.trial import Gradients, StandIn, current_trial
from tpunb.virtual.untouched import remembered


class _OfItsOwn(XLAControlFlowContext):  # type: ignore[misc]
    """A context in which functions get traces of their own, without any other effect."""

    def RequiresUniqueFunctionRetracing(self) -> bool:
        return True

    def IsXLAContext(self) -> bool:
        return False


# TensorFlow knows a context by its address: an address that is used again would find old traces.
_contexts: list[_OfItsOwn] = []


@contextlib.contextmanager
def _traced_for_itself() -> Iterator[None]:
    """Use no trace that exists, and let no later function use the traces made inside."""
    around = _OfItsOwn()
    _contexts.append(around)
    around.Enter()
    try:
        yield
    finally:
        around.Exit()


def _gradient(original: Any, tape: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
    """Return a tape's gradients, or a trial's made-up gradients of variables."""
    is_inner = _differentiating.get()
    token = _differentiating.set(True)
    try:
        gradients = original(tape, target, sources, *rest, **named)
    finally:
        _differentiating.reset(token)
    if is_inner:
        return gradients  # a part of other gradients, as of a function that is recomputed
    context = enclosing_tpu_context()
    if not isinstance(context, ReplicaTracingContext) or context.trial is None:
        return gradients
    if not pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        return gradients  # another tape differentiates these gradients
    return context.trial.taken(context, sources, gradients)


_differentiating: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tpunb_differentiating", default=False
)

_TAPES = Replaced(tf.GradientTape, "gradient", _gradient)


@dataclasses.dataclass(frozen=True)
class NumberVariable:
    """A variable of one number.

    Attributes:
        name: The variable's name; empty if the step uses it outside its replicas.
        value: The number.
        variables: The trial's variables that replace it.
    """

    name: str
    value: float
    variables: Sequence[Any]


class TrialRun:
    """A step, traced for some replicas on stand-ins of its variables.

    Args:
        step: A replica function, or a function that calls `strategy.run`.
        arguments: Arguments of the types with which it will run.
        strategy: The strategy.
        replicas: The number of replicas.
        edit: A change of constants.

    Raises:
        Exception: The function raised this error when it was traced.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        arguments: Sequence[Any],
        strategy: Any,
        replicas: int,
        edit: Edit | None = None,
    ) -> None:
        self._trial = strategy.extended.new_trial(replicas, edit)
        self._traced = self._trace(step, arguments, strategy)
        # A function that makes variables is traced twice, and only its last trace runs.
        self._trial.keep(self._traced.captured_inputs)
        self._others = self._with_others_replaced()
        self._replaced: list[tuple[NumberVariable, float]] = []

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self._trial.replicas  # type: ignore[no-any-return]

    @property
    def gradients(self) -> Sequence[Gradients]:
        """The gradients of the last run, in the order of the tapes' calls."""
        return self._trial.gradients  # type: ignore[no-any-return]

    @property
    def is_rounded(self) -> bool:
        """True if the step computes with less precision than float32."""
        return self._trial.is_rounded  # type: ignore[no-any-return]

    @property
    def constants(self) -> Sequence[ScalarConstant]:
        """The scalars by which the step multiplies or divides."""
        return self._trial.constants  # type: ignore[no-any-return]

    @property
    def variables(self) -> Sequence[StandIn]:
        """The variables that the replicas use."""
        return self._trial.stand_ins  # type: ignore[no-any-return]

    def measure(self, arguments: Sequence[Any]) -> list[list[list[np.ndarray]]]:
        """Return the gradients that a step computes from the variables' present values.

        Returns:
            For each call of a tape and each gradient, its kept elements on each replica.
        """
        self._begin([0.0] * self.replicas, with_zeros=False)
        self._run(arguments)
        return [one.values() for one in self.gradients]

    def numbers(self) -> list[NumberVariable]:
        """Return the variables of one number that no tape trains."""
        self._begin([0.0] * self.replicas, with_zeros=False)
        candidates = [
            *((one.name, one.variables) for one in self.variables if not one.is_trained),
            *(("", [variable]) for _, variable in self._others),
        ]
        return [
            NumberVariable(name, float(np.ravel(variables[0].numpy())[0]), variables)
            for name, variables in candidates
            if variables[0].shape.num_elements() == 1
            and (variables[0].dtype.is_floating or variables[0].dtype.is_integer)
        ]

    @contextlib.contextmanager
    def with_number(self, variable: NumberVariable, value: float) -> Iterator[None]:
        """Give a variable another value in the runs inside."""
        self._replaced = [(variable, value)]
        try:
            yield
        finally:
            self._replaced = []

    def respond(
        self, arguments: Sequence[Any], strengths: Sequence[float], steps: int
    ) -> list[list[np.ndarray]]:
        """Return each variable on each replica after steps with made-up gradients.

        Args:
            arguments: The step's arguments.
            strengths: The strength of the made-up gradients on each replica.
            steps: The number of steps.
        """
        self._begin(strengths, with_zeros=True)
        for _ in range(steps):
            self._run(arguments)
        return [variable.values() for variable in self.variables]

    def _begin(self, strengths: Sequence[float], *, with_zeros: bool) -> None:
        self._trial.begin(strengths, with_zeros=with_zeros)
        for handle, variable in self._others:
            variable.assign(read_handle(handle))
        for number, value in self._replaced:
            for variable in number.variables:
                variable.assign(tf.cast(tf.fill(variable.shape, value), variable.dtype))

    def _run(self, arguments: Sequence[Any]) -> None:
        self._traced(*_tensors(arguments))

    def _trace(self, step: Callable[..., Any], arguments: Sequence[Any], strategy: Any) -> Any:
        """Return the step as a concrete function of the tensors among its arguments."""
        flat = tf.nest.flatten(list(arguments), expand_composites=True)

        def filled(tensors: Sequence[Any]) -> list[Any]:
            values = iter(tensors)
            parts = [next(values) if tf.is_tensor(part) else part for part in flat]
            return tf.nest.pack_sequence_as(  # type: ignore[no-any-return]
                list(arguments), parts, expand_composites=True
            )

        def as_replica(inputs: list[Any]) -> Any:
            return strategy.run(step, args=tuple(inputs))

        def as_caller(inputs: list[Any]) -> Any:
            return step(*inputs)

        failures = []
        restore = remembered(step, arguments)
        for way in (as_replica, as_caller):

            def seeded(*tensors: Any, way: Callable[[list[Any]], Any] = way) -> Any:
                graph = tf.compat.v1.get_default_graph()
                graph.seed = 0 if graph.seed is None else graph.seed
                self._trial.forget()  # TensorFlow traces again what has made variables
                with _traced_for_itself(), _TAPES:
                    way(filled(tensors))

            token = current_trial.set(self._trial)
            try:
                return tf.function(seeded).get_concrete_function(*_tensors(arguments))
            except Exception as error:
                failures.append(error)
                restore()  # a tf.function makes variables only in its first trace
            finally:
                current_trial.reset(token)
        raise failures[0]

    def _with_others_replaced(self) -> list[tuple[Any, Any]]:
        """Replace the variables that the step uses outside its replicas.

        Returns:
            The handle of each, and the variable that replaces it.
        """
        own = {id(handle) for one in self.variables for handle in one.handles}
        own |= {id(handle) for handle in self._trial.handles}
        others, captures = [], list(self._traced.captured_inputs)
        for place, handle in enumerate(captures):
            if id(handle) not in own and has_value(handle):
                with tf.device(handle.device):
                    variable = ResourceVariable(read_handle(handle), trainable=False, name="other")
                others.append((handle, variable))
                captures[place] = variable.handle
        self._traced.set_external_captures(captures)
        return others


def _tensors(arguments: Sequence[Any]) -> list[Any]:
    flat = tf.nest.flatten(list(arguments), expand_composites=True)
    return [part for part in flat if tf.is_tensor(part)]


def has_value(handle: Any) -> bool:
    """Return whether a captured input is the handle of a variable that has a value."""
    if handle.dtype != tf.resource or value_of_handle(handle) is None:
        return False
    with tf.device(handle.device):
        return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def read_handle(handle: Any) -> Any:
    """Return the value of the variable that a captured input is the handle of."""
    kind = tf.as_dtype(value_of_handle(handle).dtype)
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind)
