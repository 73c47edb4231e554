"""From a replica function to functions that TensorFlow's runtime knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tpunb.tensorflow.virtual.private_names import ops
from tpunb.tensorflow.virtual.replicate.divergence import Divergence
from tpunb.tensorflow.virtual.replicate.expansion import Expansion, expand
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.rewritable_function import (
    RegisteredFunction,
    RewritableFunction,
)
from tpunb.tensorflow.virtual.replicate.variance import Arguments


@dataclasses.dataclass(frozen=True)
class PreparedCall:
    """A function for all replicas, and the values that a call passes.

    Attributes:
        values: The values passed for each of the replica function's arguments, by its name.
        expansion: The function.
        functions: The function as it is registered, after the functions that it calls.
    """

    values: Mapping[str, Sequence[Any]]
    expansion: Expansion
    functions: Sequence[RegisteredFunction]


def register(
    function: ReplicaFunction,
    arguments: Arguments,
    values: Mapping[str, Sequence[Any]],
    traced: Any,
    divergence: Divergence,
) -> PreparedCall | None:
    """Write a replica function for all replicas, and keep it right from then on.

    Args:
        function: The replica function.
        arguments: Its arguments.
        values: The values that are passed for each argument, by its name.
        traced: The traced function, whose nodes know the user's code.
        divergence: The record of copies.

    Returns:
        The call. None if copies of variables had to become separate for it, because it then has
        other arguments.

    Raises:
        FailedPreconditionError: The function gives copies different values, but a running
            function relies on one value.
    """
    # A TensorFlow 1 session has its own copy of its graph, which later changes do not reach.
    assume_equal = ops.executing_eagerly_outside_functions()
    with divergence.lock:
        expansion = expand(function, divergence.known(arguments), assume_equal=assume_equal)
        if not divergence.settle(arguments, expansion):
            return None
        rewritable = RewritableFunction(function, arguments, expansion)
        if assume_equal:
            rewritable.equal = rewritable.variables - divergence.variables
        divergence.watch(rewritable)
        functions = [RegisteredFunction(body, None, rewritable) for body in expansion.bodies]
        functions.append(RegisteredFunction(expansion.definition, traced, rewritable))
    return PreparedCall(values, expansion, functions)
