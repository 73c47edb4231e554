"""What a replica function needs of memory at the least, and what the matrix unit pads.

Only what is sure is counted. Only the TPU's compiler knows a program's whole memory.

A TPU multiplies tiles: the batch is filled up to a multiple of 8 and the features to
one of 128, or the other way round. What is filled up is computed for nothing.
Source: Cloud TPU performance guide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpunb.machine.resources import measure
from tpunb.virtual._tensorflow import dtypes
from tpunb.virtual.graph.traced_function import Made
from tpunb.virtual.strict.diagnostics import Diagnostic

ROWS = 8
LANES = 128

_MATRICES = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_CONVOLUTIONS = frozenset({"Conv1D", "Conv2D", "Conv3D"})
# The gradients multiply the same sizes once more: they add no information.
_GRADIENTS = ("gradient_tape/", "gradients/")


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A matrix product or a convolution, as the matrix unit sees it.

    Attributes:
        node: Its operation's name.
        op: Its operation's type.
        times: How often it multiplies matrices of the following sizes.
        batch: Rows: examples, or whatever stands in the place of the batch.
        inner: Features that are summed over.
        outer: Features of the result.
        dtype: The type of the factors.
    """

    node: str
    op: str
    times: int
    batch: int
    inner: int
    outer: int
    dtype: dtypes.DType

    @property
    def work(self) -> int:
        """Multiply-adds that are wanted."""
        return self.times * self.batch * self.inner * self.outer

    @property
    def padded(self) -> int:
        """Multiply-adds that are made, in the better of the two layouts."""
        return self.times * min(
            _up(self.batch, rows) * _up(self.inner, lanes) * _up(self.outer, lanes)
            for rows, lanes in ((ROWS, LANES), (LANES, ROWS))
        )

    @property
    def sizes(self) -> str:
        """The sizes for a reader."""
        return f"[{self.batch}, {self.inner}] × [{self.inner}, {self.outer}]"


def wasted(found: Iterable[Product]) -> float:
    """The share of the multiply-adds that padding adds, between 0 and 1."""
    listed = list(found)
    padded = sum(product.padded for product in listed)
    return 1 - sum(product.work for product in listed) / padded if padded else 0.0


def products(graph: Any) -> Iterator[Product]:
    """The products of a traced function, without those of its gradients.

    Args:
        graph: The function's graph. Products of unknown sizes are left out.
    """
    for operation in graph.get_operations():
        if operation.name.startswith(_GRADIENTS):
            continue
        if operation.type in _MATRICES:
            product = _matrices(operation)
        elif operation.type in _CONVOLUTIONS:
            product = _convolution(operation)
        else:
            continue
        if product is not None:
            yield product


def _matrices(operation: Any) -> Product | None:
    left, right = (tensor.shape for tensor in operation.inputs)
    result = operation.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in (left, right, result)):
        return None
    transposed = any(
        operation.get_attr(name) for name in ("transpose_a", "adj_x") if _has(operation, name)
    )
    *around, batch, outer = result.as_list()
    inner = left[-2 if transposed else -1]
    times = math.prod(around)
    return Product(
        operation.name, operation.type, times, batch, inner, outer, operation.inputs[0].dtype
    )


def _convolution(operation: Any) -> Product | None:
    image, kernel = (tensor.shape for tensor in operation.inputs)
    result = operation.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in (image, kernel, result)):
        return None
    *window, inner, outer = kernel.as_list()
    batch = image[0]
    times = math.prod(window) * (result.num_elements() // max(batch * outer, 1))
    return Product(
        operation.name, operation.type, times, batch, inner, outer, operation.inputs[0].dtype
    )


def _has(operation: Any, name: str) -> bool:
    return name in operation.node_def.attr


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_HINT = "Make the batch smaller, use more cores, or a smaller type such as bfloat16."


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
