"""Runs of a trial: the gradients of a step, and the variables after steps."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.patching import Replaced
from tpunb.tensorflow.checks.untouched import remember
from tpunb.tensorflow.virtual.copies.variable_copies import value_of_handle
from tpunb.tensorflow.virtual.private_names import (
    ResourceVariable,
    XLAControlFlowContext,
    enclosing_tpu_context,
    pywrap_tfe,
)
from tpunb.tensorflow.virtual.replicate.trace import ReplicaTracingContext
from tpunb.tensorflow.virtual.replicate.trial import Trial, current_trial
from tpunb.tensorflow.virtual.strict.ignored_seeds import SEED_OF_TRIALS


class _SeparateTraces(XLAControlFlowContext):  # type: ignore[misc]
    """A context in which functions get traces of their own, without any other effect."""

    def RequiresUniqueFunctionRetracing(self) -> bool:
        return True

    def IsXLAContext(self) -> bool:
        return False


@functools.cache
def _separate_traces(key: Hashable) -> _SeparateTraces:
    del key
    return _SeparateTraces()


@contextlib.contextmanager
def traced_separately(key: Hashable) -> Iterator[None]:
    """Use only traces that were made with an equal key."""
    # TensorFlow knows a context by its address, so each must live as long as its traces. See
    # `xla_context_id` in python/eager/polymorphic_function/function_context.py, up to 2.21.
    around = _separate_traces(key)
    around.Enter()
    try:
        yield
    finally:
        around.Exit()


def traced_step(
    trace: Callable[[Callable[[Sequence[Any]], Any]], Any],
    step: Callable[..., Any],
    strategy: Any,
    restore: Callable[[], None] = lambda: None,
) -> Any:
    """Trace a step as a replica function, or else as a function that calls `strategy.run` itself.

    Args:
        trace: Traces a function that calls the step with a sequence of arguments.
        step: The step.
        strategy: The strategy.
        restore: Undoes a trace that failed.

    Returns:
        The result of `trace`.

    Raises:
        Exception: The step raised this error as a replica function, and another error otherwise.
    """

    def as_replica(inputs: Sequence[Any]) -> Any:
        return strategy.run(step, args=tuple(inputs))

    def as_caller(inputs: Sequence[Any]) -> Any:
        return step(*inputs)

    failures = []
    for call in (as_replica, as_caller):
        try:
            return trace(call)
        except Exception as error:
            failures.append(error)
            restore()
    raise failures[0]


def seed_graph() -> None:
    """Make random numbers in the graph that is being built the same in every run."""
    graph = tf.compat.v1.get_default_graph()
    graph.seed = SEED_OF_TRIALS if graph.seed is None else graph.seed


def _gradient(original: Any, tape: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
    """Return a tape's gradients, or a trial's made-up gradients of variables."""
    is_inner = _differentiating.get()
    token = _differentiating.set(True)
    try:
        gradients = original(tape, target, sources, *rest, **named)
    finally:
        _differentiating.reset(token)
    if is_inner:
        return gradients  # a part of other gradients, such as those of a recomputed function
    context = enclosing_tpu_context()
    if not isinstance(context, ReplicaTracingContext) or context.trial is None:
        return gradients
    if not pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        return gradients  # another tape differentiates these gradients
    return context.trial.taken(context, target, sources, gradients)


_differentiating: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tpunb_differentiating", default=False
)

_TAPES = Replaced(tf.GradientTape, "gradient", _gradient)


class TrialRun:
    """A step, traced for some replicas on stand-ins of its variables.

    Args:
        step: A replica function, or a function that calls `strategy.run`.
        arguments: Its arguments.
        strategy: The strategy.
        replicas: The number of replicas.
        examples: The number of a replica's examples among all replicas; None if it is not known.

    Attributes:
        trial: The trial: its gradients and stand-ins.

    Raises:
        Exception: The function raised this error when it was traced.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        arguments: Sequence[Any],
        strategy: Any,
        replicas: int,
        examples: int | None = None,
    ) -> None:
        self._arguments = arguments
        self.trial: Trial = strategy.extended.new_trial(replicas, examples)
        self._traced = self._trace(step, arguments, strategy)
        # A function that makes variables is traced twice, and only its last trace runs.
        self.trial.keep(self._traced.captured_inputs)
        self._others = self._with_others_replaced()

    def measure(self, arguments: Sequence[Any] | None = None) -> list[list[list[np.ndarray]]]:
        """Return the gradients that a step computes from the variables' present values.

        Args:
            arguments: The step's arguments; by default those that it was traced with.

        Returns:
            For each call of a tape and each gradient, its kept elements on each replica.
        """
        self._begin([0.0] * self.trial.replicas, with_zeros=False)
        self._run(self._arguments if arguments is None else arguments)
        return [one.values() for one in self.trial.gradients]

    def respond(self, strengths: Sequence[float], steps: int) -> list[list[np.ndarray]]:
        """Return each variable on each replica after steps with made-up gradients.

        Args:
            strengths: The strength of the made-up gradients on each replica.
            steps: The number of steps.
        """
        self._begin(strengths, with_zeros=True)
        for _ in range(steps):
            self._run(self._arguments)
        return [variable.values() for variable in self.trial.stand_ins]

    def _begin(self, strengths: Sequence[float], *, with_zeros: bool) -> None:
        self.trial.begin(strengths, with_zeros=with_zeros)
        for handle, variable in self._others:
            variable.assign(read_handle(handle))

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

        def traced(call: Callable[[Sequence[Any]], Any]) -> Any:
            def seeded(*tensors: Any) -> None:
                seed_graph()
                self.trial.forget()  # TensorFlow traces again what has made variables
                # No trace that exists is used, and no later function uses the traces made here.
                with traced_separately(object()), _TAPES:
                    call(filled(tensors))

            token = current_trial.set(self.trial)
            try:
                return tf.function(seeded).get_concrete_function(*_tensors(arguments))
            finally:
                current_trial.reset(token)

        # A tf.function makes variables only in its first trace.
        return traced_step(traced, step, strategy, remember(step, arguments))

    def _with_others_replaced(self) -> list[tuple[Any, Any]]:
        """Replace the variables that the step uses outside its replicas.

        Returns:
            The handle of each, and the variable that replaces it.
        """
        own = {id(handle) for one in self.trial.stand_ins for handle in one.handles}
        own |= {id(handle) for handle in self.trial.handles}
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
