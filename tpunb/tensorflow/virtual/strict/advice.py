"""Advice on code that makes a function slow on a TPU, with figures, or that may hang there.

A TPU multiplies tiles. The batch is padded to a multiple of 8 and the features to a multiple of
128, or vice versa. The padding is computed for nothing. Source: Cloud TPU performance guide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.virtual.private_names import dtypes
from tpunb.tensorflow.virtual.strict.collective_branches import uncertain_branches
from tpunb.tensorflow.virtual.strict.examination import Examination

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
        node: The operation's name.
        op: The operation's type.
        times: The number of multiplications of matrices of the following sizes.
        batch: The rows: examples, or another axis at the batch's place.
        inner: The features that are summed over.
        outer: The features of the result.
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
        """The multiply-adds that are needed."""
        return self.times * self.batch * self.inner * self.outer

    @property
    def padded(self) -> int:
        """The multiply-adds that are computed, in the better of the two layouts."""
        return self.times * min(
            _up(self.batch, rows) * _up(self.inner, lanes) * _up(self.outer, lanes)
            for rows, lanes in ((ROWS, LANES), (LANES, ROWS))
        )

    @property
    def sizes(self) -> str:
        """The sizes for a reader."""
        return f"[{self.batch}, {self.inner}] × [{self.inner}, {self.outer}]"


def wasted(multiplications: Iterable[Product]) -> float:
    """Return the share of the multiply-adds that padding adds, between 0 and 1."""
    listed = list(multiplications)
    padded = sum(product.padded for product in listed)
    return 1 - sum(product.work for product in listed) / padded if padded else 0.0


def products(graph: Any) -> Iterator[Product]:
    """Yield the products of a traced function, without its gradients' products.

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
        operation.get_attr(name)
        for name in ("transpose_a", "adj_x")
        if name in operation.node_def.attr
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


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# Below this many multiply-adds there is nothing to gain: a core computes them in no time.
_WORTH_WHILE = 1 << 18
_MUCH_WASTE = 0.3


def advice(examination: Examination) -> Iterator[Problem]:
    """Yield findings about code that the compiler accepts and that is slow or may hang.

    Args:
        examination: The examination of a replica function.

    Yields:
        Findings of the rules padding, small-batch, float32, last-batch and collective-condition.
    """
    by_padding = sorted(
        products(examination.graph), key=lambda product: product.padded, reverse=True
    )
    work = sum(product.work for product in by_padding)
    advised = []
    if work >= _WORTH_WHILE:
        advised += [_small_batch(by_padding), _padding(by_padding), _float32(by_padding, work)]
    advised.append(_last_batch(examination.traced.graph))
    advised += uncertain_branches(examination.traced)
    for problem in advised:
        if problem is not None:
            yield examination.located(problem)


def _padding(multiplications: list[Product]) -> Problem | None:
    share = wasted(multiplications)
    if share < _MUCH_WASTE:
        return None
    worst = max(multiplications, key=lambda product: product.padded - product.work)
    reason = (
        f"Padding to tiles wastes {share:.0%} of the multiply-adds, most of it in the {worst.op} "
        f"of {worst.sizes}: {1 - worst.work / worst.padded:.0%}."
    )
    fix = (
        f"Make the batch of a core a multiple of {ROWS} and numbers of features multiples of "
        f"{LANES} (or {LANES} and {ROWS})."
    )
    return _advice("padding", worst, reason, fix, "padding to tiles")


def _small_batch(multiplications: list[Product]) -> Problem | None:
    small = [product for product in multiplications if product.batch < ROWS]
    if 2 * sum(product.padded for product in small) < sum(
        product.padded for product in multiplications
    ):
        return None
    worst = small[0]
    reason = (
        f"The batch of a core is {worst.batch}, which fills {worst.batch / ROWS:.0%} of the {ROWS} "
        "rows that are computed."
    )
    fix = f"Make the global batch at least {ROWS}, better {LANES}, times the number of replicas."
    return _advice("small-batch", worst, reason, fix, "small batch")


def _float32(multiplications: list[Product], work: int) -> Problem | None:
    single = [product for product in multiplications if product.dtype is dtypes.float32]
    share = sum(product.work for product in single) / work
    if share < 0.5:
        return None
    reason = (
        f"{share:.0%} of the {work / 1e6:.1f} million multiply-adds take float32 factors: bfloat16 "
        "would halve the memory that they read."
    )
    fix = "Use `keras.mixed_precision.set_global_policy('mixed_bfloat16')`, or cast to bfloat16."
    return _advice("float32", single[0], reason, fix, "float32 everywhere")


def _last_batch(graph: Any) -> Problem | None:
    open_ended = [
        tensor.shape
        for tensor in graph.inputs
        if tensor.dtype not in {dtypes.resource, dtypes.variant}
        and tensor.shape.rank
        and tensor.shape[0] is None
    ]
    if not open_ended:
        return None
    reason = (
        f"{len(open_ended)} of the inputs, of shape {open_ended[0]}, may have another batch size "
        "in another step, such as the last one: each new size compiles a program of its own."
    )
    fix = "Use `dataset.batch(n, drop_remainder=True)`."
    return Problem("last-batch", reason, fix, message="recompiling on an odd last batch")


def _advice(rule: str, product: Product, reason: str, fix: str, message: str) -> Problem:
    return Problem(rule, reason, fix, message=message, node=product.node, op=product.op)
