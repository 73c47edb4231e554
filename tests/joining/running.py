"""Cases on the virtual TPU, joined, against one replica at a time in plain eager TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from joining.cases import SUMMED, Case, cases_of
from support.joined import analyses
from support.strategies import all_reduce

from tpunb.virtual import VirtualTPUStrategy
from tpunb.virtual.graph.function_def import FRESH

REPLICAS = 3
TOLERANCES = {tf.float16: 2e-2, tf.bfloat16: 1e-1, tf.float64: 1e-8, tf.complex128: 1e-8}
AT_ONCE = 50
"""How many cases are traced as one function."""
_REFUSED = (tf.errors.OpError, ValueError, TypeError, LookupError, NotImplementedError)


@dataclasses.dataclass
class Findings:
    """What a run of cases finds.

    Attributes:
        valid: How many cases of each operation were compared.
        refused: How many TensorFlow refuses.
        joined: In how many of each operation its node was joined.
        wrong: What differs, or raises when joined alone.
    """

    valid: Counter[str] = dataclasses.field(default_factory=Counter)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    joined: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Prepared:
    """A case with its values, and what it gives on each replica."""

    case: Case
    columns: list[list[Any]]
    expected: list[list[Any]]


def _made(case: Case, inputs: Sequence[Any]) -> Any:
    """What an operation gives, of lists the tensors of their elements."""
    ops, function, rows = tf.raw_ops, getattr(tf.raw_ops, case.op), inputs[0]
    if case.slots[0].elements:
        size, *sizes = case.slots[0].shape
        values = ops.TensorListFromTensor(tensor=rows, element_shape=sizes or np.zeros(0, int))
        if case.op in FRESH:  # for elements of the same shape
            values = ops.TensorListElementShape(input_handle=values, shape_type=tf.int32)
        inputs = [values, *inputs[1:]]
    names = list(inspect.signature(function).parameters)
    positions = [inputs[: case.listed], *inputs[case.listed :]] if case.listed else inputs
    by_name = dict(zip(names, positions, strict=False))
    by_name |= {key: kind for key, kind in case.types.items() if key in names}
    if case.op == "TensorListStack":
        by_name["num_elements"] = size
    made = function(**by_name, **case.attributes)
    if not case.op.startswith("TensorList") and case.op not in FRESH:
        return made
    shape, kind = case.slots[0].shape[1:], rows.dtype
    if case.op == "TensorListElementShape":
        made = ops.TensorListReserve(element_shape=made, num_elements=size, element_dtype=kind)
    if case.op == "EmptyTensorList":
        made = ops.TensorListPushBack(input_handle=made, tensor=rows[0])
    length = case.slots[0].shape[0] + _LONGER.get(case.op, 0)
    length = 1 if case.op == "EmptyTensorList" else length
    return [
        ops.TensorListStack(
            input_handle=one,
            element_shape=shape or np.zeros(0, np.int32),
            element_dtype=kind,
            num_elements=length,
        )
        if one.dtype == tf.variant
        else one
        for one in tf.nest.flatten(made if isinstance(made, tf.Tensor) else list(made))
    ]


_LONGER = {"TensorListPopBack": -1, "TensorListPushBack": 1}
"""How many elements a list has more than before."""


def _result(case: Case, inputs: Sequence[Any], all_reduce: Any) -> list[Any]:
    """What a case gives: the outputs and the gradients by the inputs, or the sums of them."""
    continuous = [one for one in inputs if one.dtype.is_floating or one.dtype.is_complex]
    with tf.GradientTape() as tape:
        tape.watch(continuous)
        # An identity that waits for nothing is left out.
        waits = [tf.no_op()] if case.op == "Identity" and not tf.executing_eagerly() else []
        with tf.control_dependencies(waits):
            made = _made(case, inputs)
        outputs = [tf.convert_to_tensor(one) for one in tf.nest.flatten(made)]
        losses = [
            tf.reduce_sum(one * tf.cast(_weights(one), one.dtype))
            for one in outputs
            if one.dtype.is_floating or one.dtype.is_complex
        ]
    gradients: list[Any] = []
    if losses and continuous:
        with contextlib.suppress(LookupError):  # it has none
            gradients = tape.gradient(losses, continuous)
    gradients = [tf.convert_to_tensor(one) for one in gradients if one is not None]
    if case.summed:
        return [all_reduce(one) for one in (*outputs, *gradients)]
    return [*outputs, *gradients]


def _weights(value: Any) -> Any:
    """Numbers of a tensor's shape, none like the others."""
    if value.shape.is_fully_defined():
        return np.cos(np.arange(value.shape.num_elements()).reshape(value.shape))
    numbers = tf.cos(tf.range(tf.cast(tf.size(value), tf.float64)))
    return tf.reshape(numbers, tf.shape(value))


def _prepared(case: Case, findings: Findings) -> _Prepared | None:
    """A case with what it gives in plain TensorFlow; None if that refuses it."""
    columns = case.values(REPLICAS)
    try:
        each = []
        for replica in range(REPLICAS):
            inputs = [column[replica] for column in columns]
            if case.slots[0].variable:
                inputs[0] = tf.Variable(inputs[0]).handle
            each.append(_result(case, inputs, lambda value: value))
    except _REFUSED:
        findings.refused[case.op] += 1
        return None
    if case.summed:
        if any(one.dtype not in SUMMED for one in each[0]):
            findings.refused[case.op] += 1
            return None
        total = [tf.add_n(parts) for parts in zip(*each, strict=True)]
        each = [total] * REPLICAS
    findings.valid[case.op] += 1
    return _Prepared(case, columns, each)


@functools.cache
def start(joined: bool = True) -> Any:
    """The strategy of all cases, which has to be there before TensorFlow computes anything."""
    return VirtualTPUStrategy(REPLICAS, joined=joined, strict=False)


def _run(
    batch: Sequence[_Prepared], findings: Findings | None = None, *, joined: bool = True
) -> list[list[list[Any]]]:
    """What each of some cases gives on each replica, joined or not; notes which were."""
    strategy = start(joined)
    values, variables = [], {}
    for number, one in enumerate(batch):
        for column, varies in zip(one.columns, one.case.varies, strict=True):
            if varies:
                values.append(
                    strategy.experimental_distribute_values_from_function(
                        lambda context, c=column: c[context.replica_id_in_sync_group]
                    )
                )
            elif not _is_constant(one.case, column):
                values.append(column[0])
        if one.case.slots[0].variable:
            with strategy.scope():
                variables[number] = tf.Variable(one.columns[0][0])

    def replica(*given: Any) -> list[list[Any]]:
        pending, results = iter(given), []
        for number, one in enumerate(batch):
            pairs = zip(one.columns, one.case.varies, strict=True)
            inputs = [
                tf.constant(column[0].numpy())
                if not varies and _is_constant(one.case, column)
                else next(pending)
                for column, varies in pairs
            ]
            if number in variables:
                inputs[0] = variables[number].handle
            with tf.name_scope(f"case{number}"):
                results.append(_result(one.case, inputs, all_reduce))
        return results

    with analyses(costs=False) as found:
        made = tf.function(lambda *args: strategy.run(replica, args=args), autograph=False)(*values)
    names = {node.name: node.op for one in found for node in one.order if node.name in one.plans}
    for number, one in enumerate(batch if findings else []):
        own = [op for name, op in names.items() if name.startswith(f"case{number}/")]
        findings.joined[one.case.op] += one.case.op in own
    return [
        [[strategy.experimental_local_results(part)[k] for part in one] for k in range(REPLICAS)]
        for one in made
    ]


def _is_constant(case: Case, column: Sequence[Any]) -> bool:
    """Whether an input is written as a constant; nothing is joined that takes empty arguments."""
    return case.constant or 0 in column[0].shape


def check(operations: Iterable[str], count: int, seed: int = 0, rounds: int = 1) -> Findings:
    """Compares cases of operations.

    Args:
        operations: The operations.
        count: How many cases of each are to be compared; at most eight times as many are tried.
        seed: Which cases.
        rounds: How often to go on, with twice as many cases, where none was joined.

    Returns:
        What is found.
    """
    findings = Findings()
    cases = {op: cases_of(op, seed) for op in operations}
    for number in range(rounds):
        more = count * 2**number
        valid = itertools.chain.from_iterable(
            _valid(itertools.islice(endless, 8 * more), more, findings)
            for op, endless in cases.items()
            if not findings.joined[op]
        )
        while batch := list(itertools.islice(valid, AT_ONCE)):
            _compare(batch, findings)
    return findings


def _valid(cases: Iterable[Case], count: int, findings: Findings) -> Iterator[_Prepared]:
    prepared = (_prepared(case, findings) for case in cases)
    return itertools.islice((one for one in prepared if one is not None), count)


def _compare(batch: Sequence[_Prepared], findings: Findings) -> None:
    try:
        found = _run(batch, findings)
    except Exception as error:
        if len(batch) == 1 and _is_refused_apart(batch[0]):
            findings.refused[batch[0].case.op] += 1
        elif len(batch) == 1:
            findings.wrong.append(
                f"{batch[0].case}\n    {type(error).__name__}: {str(error)[:300]}"
            )
        else:
            half = len(batch) // 2
            _compare(batch[:half], findings)
            _compare(batch[half:], findings)
        return
    for one, result in zip(batch, found, strict=True):
        if not _difference(one.expected, result):
            continue
        # TensorFlow's graphs may differ from what it does eagerly.
        (apart,) = _run([one], joined=False)
        (alone,) = _run([one])
        if difference := _difference(apart, alone):
            findings.wrong.append(f"{one.case}\n    {difference}")


def _is_refused_apart(one: _Prepared) -> bool:
    """Whether replicas cannot do in a graph what TensorFlow does eagerly, joined or not."""
    try:
        _run([one], joined=False)
    except _REFUSED:
        return True
    return False


def _difference(expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> str:
    """Says where results differ; nothing if they do not."""
    for replica, (one, other) in enumerate(zip(expected, found, strict=True)):
        if len(one) != len(other):
            return f"{len(other)} results, not {len(one)}"
        for place, (wanted, got) in enumerate(zip(one, other, strict=True)):
            if wanted.dtype != got.dtype or wanted.shape != got.shape:
                return f"result {place}: {_described(got)}, not {_described(wanted)}"
            tolerance = TOLERANCES.get(wanted.dtype, 1e-4)
            a, b = (_comparable(part) for part in (wanted, got))
            finite = np.abs(a[np.isfinite(a)])
            scale = 1.0 + (float(finite.max()) if finite.size else 0.0)
            exact = not (wanted.dtype.is_floating or wanted.dtype.is_complex)
            close = np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            same = np.array_equal(a, b) if exact else bool(np.all(close))
            if not same:
                return f"replica {replica}, result {place}: {b.tolist()}, not {a.tolist()}"[:500]
    return ""


def _described(value: Any) -> str:
    return f"{value.dtype.name}{value.shape}"


def _comparable(value: Any) -> np.ndarray:
    array = value.numpy()
    return array.astype(np.float32) if value.dtype in {tf.bfloat16, tf.float16} else array
