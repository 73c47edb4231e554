"""Run a program on the virtual TPU."""

from __future__ import annotations

import functools
import logging
from typing import Any

import tensorflow as tf
from differential.generator import Program
from differential.names import common, compiled, start_of

from tpunb.virtual import VirtualTPUStrategy


def start() -> None:
    """Create logical devices for eight replicas."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 17
    tf.config.set_logical_device_configuration(cpu, devices)
    tf.config.threading.set_inter_op_parallelism_threads(16)
    tf.get_logger().setLevel(logging.ERROR)


@functools.cache
def strategy_of(replicas: int, strict: bool) -> Any:
    """The strategy that all programs with this number of replicas share."""
    return VirtualTPUStrategy(replicas, strict={"float64": False} if strict else False)


def run(program: Program, *, strict: bool = False) -> list[list[Any]]:
    """Run a program.

    Args:
        program: The program.
        strict: Whether to refuse what a TPU refuses.

    Returns:
        For each call, the results of each replica; last, the copies of each variable.
    """
    strategy = strategy_of(program.replicas, strict)
    with strategy.scope():
        variables = [
            tf.Variable(
                start_of(k),
                synchronization=tf.VariableSynchronization[when],
                aggregation=tf.VariableAggregation[aggregation],
                trainable=when == "ON_WRITE",
            )
            for k, (when, aggregation) in enumerate(program.variables)
        ]
    context = tf.distribute.get_replica_context
    names = {
        **common(program),
        **{f"v{k}": variable for k, variable in enumerate(variables)},
        "replica_id": lambda: context().replica_id_in_sync_group + 0,
        "all_reduce": lambda how, x: context().all_reduce(how, x),
        "all_gather": lambda x: context().all_gather(x, 0),
        "nested": functools.partial(tf.function, autograph=program.autograph),
        "gradient": lambda tape, y, x: tape.gradient(y, x, unconnected_gradients="zero"),
    }
    functions = compiled(program, names)
    steps = {name: _step(strategy, each, program) for name, each in functions.items()}
    results = []
    for number, call in enumerate(program.calls):
        arguments = [
            strategy.experimental_distribute_values_from_function(
                lambda ctx, column=column: column[ctx.replica_id_in_sync_group]
            )
            for column in zip(*names["inputs"](number), strict=True)
        ]
        parts = [strategy.experimental_local_results(part) for part in steps[call](*arguments)]
        results.append([list(replica) for replica in zip(*parts, strict=True)])
    results.append([[copy.read_value() for copy in variable.values] for variable in variables])
    return results


def _step(strategy: Any, function: Any, program: Program) -> Any:
    @tf.function(reduce_retracing=True, autograph=program.autograph)
    def step(*arguments: Any) -> Any:
        return strategy.run(function, args=arguments)

    return step
