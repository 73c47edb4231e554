"""What would make a function faster on a TPU, with figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb.virtual._tensorflow import dtypes
from tpunb.virtual.strict.diagnostics import Diagnostic
from tpunb.virtual.strict.examination import Examination, Located
from tpunb.virtual.strict.memory import LANES, ROWS, Product, products, wasted

# Below this many multiply-adds there is nothing to gain: a core makes them in no time.
_WORTH_WHILE = 1 << 18
_MUCH_WASTE = 0.3


def advice(examination: Examination) -> Iterator[Located]:
    """Looks for what the compiler accepts and a TPU is slow at.

    Args:
        examination: Of a replica function.

    Yields:
        Findings of the rules padding, small-batch, float32 and last-batch.
    """
    found = sorted(products(examination.graph), key=lambda one: one.padded, reverse=True)
    work = sum(product.work for product in found)
    advised = []
    if work >= _WORTH_WHILE:
        advised += [_small_batch(found), _padding(found), _float32(found, work)]
    advised.append(_last_batch(examination.graph))
    for diagnostic in advised:
        if diagnostic is not None:
            yield examination.located(diagnostic)


def _padding(found: list[Product]) -> Diagnostic | None:
    share = wasted(found)
    if share < _MUCH_WASTE:
        return None
    worst = max(found, key=lambda one: one.padded - one.work)
    reason = (
        f"Padding to tiles wastes {share:.0%} of the multiply-adds, most of it in the {worst.op} "
        f"of {worst.sizes}: {1 - worst.work / worst.padded:.0%}."
    )
    fix = (
        f"Make the batch of a core a multiple of {ROWS} and numbers of features multiples of "
        f"{LANES} (or {LANES} and {ROWS})."
    )
    return _advice("padding", worst, reason, fix, "padding to tiles")


def _small_batch(found: list[Product]) -> Diagnostic | None:
    small = [product for product in found if product.batch < ROWS]
    if 2 * sum(product.padded for product in small) < sum(product.padded for product in found):
        return None
    worst = small[0]
    reason = (
        f"The batch of a core is {worst.batch}, which fills {worst.batch / ROWS:.0%} of the {ROWS} "
        "rows that are computed."
    )
    fix = f"Make the global batch at least {ROWS}, better {LANES}, times the number of replicas."
    return _advice("small-batch", worst, reason, fix, "small batch")


def _float32(found: list[Product], work: int) -> Diagnostic | None:
    single = [product for product in found if product.dtype is dtypes.float32]
    share = sum(product.work for product in single) / work
    if share < 0.5:
        return None
    reason = (
        f"{share:.0%} of the {work / 1e6:.1f} million multiply-adds take float32 factors: bfloat16 "
        "would halve the memory that they read."
    )
    fix = "Use `keras.mixed_precision.set_global_policy('mixed_bfloat16')`, or cast to bfloat16."
    return _advice("float32", single[0], reason, fix, "float32 everywhere")


def _last_batch(graph: Any) -> Diagnostic | None:
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
    return Diagnostic("last-batch", "", "", reason, fix, "recompiling on an odd last batch")


def _advice(rule: str, product: Product, reason: str, fix: str, message: str) -> Diagnostic:
    return Diagnostic(rule, product.node, product.op, reason, fix, message)
