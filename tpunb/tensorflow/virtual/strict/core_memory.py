"""Refusals of tensors that exceed a core's memory, or this machine's.

Only certain memory is counted: only the TPU's compiler knows a program's whole memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tpunb._util.units import byte_count
from tpunb.errors.code_problems import Problem
from tpunb.errors.compiler_refusals import SMALLER
from tpunb.machine.resources import measure
from tpunb.tensorflow.virtual.copies.variable_copies import value_of_handle
from tpunb.tensorflow.virtual.graph.traced_function import TracedTensor
from tpunb.tensorflow.virtual.private_names import dtypes


def beyond_a_core(
    tensors: list[TracedTensor], variables: Mapping[int, Any], memory: int, owner: str
) -> Iterator[Problem]:
    """Yield a problem for each tensor that no core can hold, and for variables that do not fit.

    Args:
        tensors: The tensors.
        variables: Handles of the replica's variables.
        memory: The memory of a replica, in bytes.
        owner: The owner of the memory, as in "a core of v5e-8".
    """
    for tensor in tensors:
        if tensor.size > memory and not tensor.hosts:
            reason = (
                f"{tensor.op} makes {tensor.text}, which takes {byte_count(tensor.size)}: {owner} "
                f"has {byte_count(memory)}."
            )
            yield Problem(
                "memory",
                reason,
                SMALLER,
                message=_message(tensor.size, memory),
                node=tensor.node,
                op=tensor.op,
            )
    total = sum(map(_size_of_variable, {id(h): h for h in variables.values()}.values()))
    if total > memory:
        reason = f"The variables take {byte_count(total)}: {owner} has {byte_count(memory)}."
        hint = "Make the model smaller, or spread it over several cores a replica."
        yield Problem("memory", reason, hint, message=_message(total, memory))


def _message(size: int, memory: int) -> str:
    return (
        f"Ran out of memory in memory space hbm. Used {_gigabytes(size)} of {_gigabytes(memory)} "
        f"hbm. Exceeded hbm capacity by {_gigabytes(size - memory)}."
    )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.2f}G"


def beyond_the_machine(
    tensors: list[TracedTensor], replicas: int, repeated: frozenset[str]
) -> tuple[TracedTensor, str] | None:
    """Find a tensor that this machine cannot hold, which would hang it or end the process.

    Args:
        tensors: The tensors.
        replicas: The number of replicas that this process runs at once.
        repeated: The outermost nodes that each replica has for itself.

    Returns:
        The largest tensor and a sentence about it, or None if it fits.
    """

    def need(tensor: TracedTensor) -> int:
        return tensor.size * (replicas if tensor.outermost in repeated else 1)

    worst = max((tensor for tensor in tensors if tensor.certain), key=need, default=None)
    available = None if worst is None else measure().available
    if worst is None or available is None or need(worst) <= available:
        return None
    each = f" on each of {replicas} replicas" if need(worst) > worst.size else ""
    takes = f"which takes {byte_count(need(worst))}: this machine has {byte_count(available)} left."
    return worst, f"{worst.op} would make {worst.text}{each}, {takes}"


def _size_of_variable(handle: Any) -> int:
    value = value_of_handle(handle)
    if value is None:
        return 0
    sizes: list[int] = [max(dimension.size, 0) for dimension in value.shape.dim]
    return math.prod(sizes) * int(dtypes.as_dtype(value.dtype).size)
