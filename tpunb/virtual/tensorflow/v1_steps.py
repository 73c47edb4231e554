"""Several steps in one call, as TensorFlow 1's training loops run them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual.tensorflow.graph.tensorflow_graphs import (
    control_flow_context,
    set_control_flow_context,
)
from tpunb.virtual.tensorflow.private_names import (
    _set_last_step_outputs,
    distribute_utils,
    input_lib,
)


def run_steps(
    fn: Callable[..., Any],
    iterator: Any,
    iterations: int,
    initial: Any,
    call_on_replicas: Callable[[Callable[..., Any], Sequence[Sequence[Any]]], list[Any]],
    replicas: int,
) -> Any:
    """Run steps on the replicas, each on the next batch.

    This is the counterpart of `TPUExtended._experimental_run_steps_on_iterator`.

    Args:
        fn: A step. It takes the context and the batch, and may set outputs in the context.
        iterator: Gives a batch for each replica.
        iterations: The number of steps to run.
        initial: The nest of the outputs' values before the first step.
        call_on_replicas: Calls a function on every replica, with each replica's arguments.
        replicas: The number of replicas.

    Returns:
        The context: `run_op` runs the steps, and `last_step_outputs` are the last step's outputs.
    """
    context = input_lib.MultiStepContext()

    def step(batch: Any) -> Any:
        result = fn(context, batch)
        outputs = tf.nest.flatten(context.last_step_outputs)
        with tf.control_dependencies([] if result is None else tf.nest.flatten(result)):
            # A step without outputs returns a number, so that waiting for the number runs the step.
            return [tf.identity(output) for output in outputs or [tf.constant(0)]]

    def steps(*_: Any) -> list[Any]:
        batch = iterator.get_next()
        inputs = [[distribute_utils.select_replica(r, batch)] for r in range(replicas)]
        return list(tf.nest.flatten(call_on_replicas(step, inputs)))

    start = tf.nest.flatten({} if initial is None else initial) or [tf.constant(0)]
    flat = steps() if iterations == 1 else _repeated(steps, iterations, start * replicas)
    context.run_op = tf.group(*flat)
    number = len(flat) // replicas if context.last_step_outputs else 0
    _set_last_step_outputs(context, [flat[k::number] for k in range(number)])
    return context


class OuterGraph:
    """The graph around the steps, as the control flow context that TensorFlow's metrics enter.

    There, metrics make the operation that gives their value, which is read after the steps, on the
    host. On a TPU everything is in one graph, and leaving a context is enough.
    """

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._context = control_flow_context(self._graph)
        self._exits: list[contextlib.ExitStack] = []

    def Enter(self) -> None:
        """Enter the graph around the steps."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._graph.as_default())
            stack.enter_context(self._graph.control_dependencies(None))
            set_control_flow_context(self._graph, self._context)
            self._exits.append(stack.pop_all())

    def Exit(self) -> None:
        """Return to the graph of the step."""
        self._exits.pop().close()


def _repeated(steps: Callable[..., list[Any]], iterations: int, start: Sequence[Any]) -> list[Any]:
    """Return the outputs of the last of several steps."""
    last: list[Any]
    _, *last = tf.while_loop(
        lambda done, *_: done < iterations,
        lambda done, *before: [done + 1, *steps(*before)],
        [tf.constant(0), *start],
        # A step reads what the step before has written.
        parallel_iterations=1,
    )
    return last
