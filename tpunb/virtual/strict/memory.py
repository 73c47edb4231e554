"""What a replica function needs of memory at the least: a core's, and this machine's.

Only what is sure is counted: tensors whose sizes are known when the function is traced
and that are really made. Only the TPU's compiler knows a program's whole memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tpunb.machine.memory import measure
from tpunb.virtual._tensorflow import FuncGraph, FunctionDef, dtypes
from tpunb.virtual.replicate.graphs import (
    BRANCHES,
    CALLS,
    OUTSIDE,
    Library,
    called_functions,
    needed,
)
from tpunb.virtual.replicate.inline import inlined
from tpunb.virtual.replicate.static_tensors import body_of
from tpunb.virtual.strict.diagnostics import Diagnostic

__all__ = ["Made", "beyond_a_core", "beyond_the_machine", "tensors_made"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_NO_TENSORS = frozenset({dtypes.resource, dtypes.variant, dtypes.string})
# They ask for a shape, which is known: TensorFlow's optimizer does not make the tensor for them.
_ASK_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
# They stand for a tensor that something else has made.
_PASSED_ON = frozenset({"Placeholder", "Identity", "IdentityN", "Reshape"}) | CALLS
_HINT = "Make the batch smaller, use more cores, or a smaller type such as bfloat16."


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that a replica function makes.

    Attributes:
        node: Its node's name, with those of the calls around it.
        outermost: The name of the node in the replica function that it belongs to, all
            calls written out.
        op: Its operation's type.
        dtype: Its type.
        sizes: Its shape.
        certain: Whether it is made in every step, and not in a branch that may not be taken.
        hosts: Whether the host makes it, which was asked to, and no core.
    """

    node: str
    outermost: str
    op: str
    dtype: dtypes.DType
    sizes: tuple[int, ...]
    certain: bool = True
    hosts: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.sizes) * int(self.dtype.size)

    @property
    def text(self) -> str:
        """Its type and shape for a reader."""
        return f"{self.dtype.name}{list(self.sizes)}"


def tensors_made(graph: FuncGraph, definition: FunctionDef, library: Library) -> list[Made]:
    """The tensors of known size, of loops, branches and calls too, that are really made.

    Args:
        graph: The traced replica function.
        definition: The same, its calls written out.
        library: Finds the functions of its loops and branches.
    """
    return list(_made(graph, "", needed(definition, without=_ASK_SHAPES), library))


def _made(
    graph: FuncGraph, path: str, used: set[str], library: Library, *, hosts: bool = False
) -> Iterator[Made]:
    """Goes through a graph.

    Args:
        graph: The graph.
        path: The calls around it, as a prefix.
        used: The nodes whose tensors are made, all calls written out.
        library: Finds the functions of loops and branches.
        hosts: Whether all of it runs on the host.
    """
    for operation in graph.get_operations():
        name, op = path + operation.name, operation.type
        node = operation.node_def
        callees = list(called_functions(node))
        here = hosts or OUTSIDE in node.attr
        if op in CALLS:
            body = body_of(graph, callees[0])
            if body is not None:
                yield from _made(body, f"{name}/", used, library, hosts=here)
        elif name in used and op not in _PASSED_ON:
            yield from _outputs(operation, name, hosts=here)
            for callee in callees:
                for made in _made_in_a_body(body_of(graph, callee), callee, library):
                    yield dataclasses.replace(
                        made,
                        node=f"{name}/{made.node}",
                        outermost=name,
                        certain=made.certain and op not in BRANCHES,
                        hosts=made.hosts or here,
                    )


def _made_in_a_body(body: FuncGraph | None, name: str, library: Library) -> Iterator[Made]:
    """The tensors of a loop's or a branch's body."""
    if body is not None:
        yield from _made(
            body, "", needed(inlined(library(name), library), without=_ASK_SHAPES), library
        )


def _outputs(operation: Any, node: str, *, hosts: bool) -> Iterator[Made]:
    for tensor in operation.outputs:
        if tensor.dtype not in _NO_TENSORS and tensor.shape.is_fully_defined():
            sizes = tuple(tensor.shape.as_list())
            yield Made(node, node, operation.type, tensor.dtype, sizes, hosts=hosts)


def beyond_a_core(
    made: list[Made], variables: Mapping[int, Any], memory: int, whose: str
) -> Iterator[Diagnostic]:
    """Finds what no core can hold.

    Args:
        made: The tensors.
        variables: Handles of the replica's variables.
        memory: Of a replica, in bytes.
        whose: What has it, as in "a core of v5e-8".
    """
    for one in made:
        if one.size > memory and not one.hosts:
            reason = (
                f"{one.op} makes {one.text}, which takes {_shown(one.size)}: {whose} has "
                f"{_shown(memory)}."
            )
            yield Diagnostic("memory", one.node, one.op, reason, _HINT, _message(one.size, memory))
    total = sum(map(_size_of_variable, {id(h): h for h in variables.values()}.values()))
    if total > memory:
        reason = f"The variables take {_shown(total)}: {whose} has {_shown(memory)}."
        hint = "Make the model smaller, or spread it over several cores a replica."
        yield Diagnostic("memory", "", "", reason, hint, _message(total, memory))


def _message(size: int, memory: int) -> str:
    return (
        f"Ran out of memory in memory space hbm. Used {_gigabytes(size)} of {_gigabytes(memory)} "
        f"hbm. Exceeded hbm capacity by {_gigabytes(size - memory)}."
    )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.2f}G"


def beyond_the_machine(
    made: list[Made], replicas: int, repeated: frozenset[str]
) -> tuple[Made, str] | None:
    """Finds what this machine cannot hold, which would hang it or end the process.

    Args:
        made: The tensors.
        replicas: How many replicas this process runs at once.
        repeated: The outermost nodes of which each replica has its own.

    Returns:
        The largest tensor and a sentence about it, or None if that fits.
    """

    def need(one: Made) -> int:
        return one.size * (replicas if one.outermost in repeated else 1)

    worst = max((one for one in made if one.certain), key=need, default=None)
    available = None if worst is None else measure().available
    if worst is None or available is None or need(worst) <= available:
        return None
    each = f" on each of {replicas} replicas" if need(worst) > worst.size else ""
    takes = f"which takes {_shown(need(worst))}: this machine has {_shown(available)} left."
    return worst, f"{worst.op} would make {worst.text}{each}, {takes}"


def _size_of_variable(handle: Any) -> int:
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.shape_and_type:
        return 0
    held = data.shape_and_type[0]
    size = int(dtypes.as_dtype(held.dtype).size)
    for dimension in held.shape.dim:
        size *= max(dimension.size, 0)
    return size


def _shown(size: int) -> str:
    number = float(size)
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"
