"""Run joined cases on the virtual TPU, and one replica at a time in plain eager TensorFlow."""

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

from tpunb.tensorflow.virtual.graph.function_def import FRESH
from tpunb.virtual import VirtualTPUStrategy

REPLICAS = 3
TOLERANCES = {tf.float16: 2e-2, tf.bfloat16: 1e-1, tf.float64: 1e-8, tf.complex128: 1e-8}
AT_ONCE = 50
"""How many cases are traced as one function."""
_REFUSED = (tf.errors.OpError, ValueError, TypeError, LookupError, NotImplementedError)


@dataclasses.dataclass
class Findings:
    """The outcome of a run of cases.

    Attributes:
        valid: How many cases of each operation were compared.
        refused: How many cases of each operation TensorFlow refused.
        joined: In how many cases of each operation its node was joined.
        wrong: The cases that differ or raise only when joined.
    """

    valid: Counter[str] = dataclasses.field(default_factory=Counter)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    joined: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Prepared:
    """A case with its inputs and its expected results on each replica."""

    case: Case
    columns: list[list[Any]]
    expected: list[list[Any]]


def _outputs(case: Case, inputs: Sequence[Any]) -> Any:
    """Run the operation; of tensor lists, return the elements as a tensor."""
    ops, function, rows = tf.raw_ops, getattr(tf.raw_ops, case.op), inputs[0]
    if case.slots[0].elements:
        size, *sizes = case.slots[0].shape
        values = ops.TensorListFromTensor(tensor=rows, element_shape=sizes or np.zeros(0, int))
        if case.op in FRESH:  # their result is a list of elements of the same shape
            values = ops.TensorListElementShape(input_handle=values, shape_type=tf.int32)
        inputs = [values, *inputs[1:]]
    names = list(inspect.signature(function).parameters)
    positions = [inputs[: case.listed], *inputs[case.listed :]] if case.listed else inputs
    by_name = dict(zip(names, positions, strict=False))
    by_name |= {key: kind for key, kind in case.types.items() if key in names}
    if case.op == "TensorListStack":
        by_name["num_elements"] = size
    result = function(**by_name, **case.attributes)
    if not case.op.startswith("TensorList") and case.op not in FRESH:
        return result
    shape, kind = case.slots[0].shape[1:], rows.dtype
    if case.op == "TensorListElementShape":
        result = ops.TensorListReserve(element_shape=result, num_elements=size, element_dtype=kind)
    if case.op == "EmptyTensorList":
        result = ops.TensorListPushBack(input_handle=result, tensor=rows[0])
    length = case.slots[0].shape[0] + _ADDED.get(case.op, 0)
    length = 1 if case.op == "EmptyTensorList" else length
    return [
        ops.TensorListStack(
            input_handle=output,
            element_shape=shape or np.zeros(0, np.int32),
            element_dtype=kind,
            num_elements=length,
        )
        if output.dtype == tf.variant
        else output
        for output in tf.nest.flatten(result if isinstance(result, tf.Tensor) else list(result))
    ]


_ADDED = {"TensorListPopBack": -1, "TensorListPushBack": 1}
"""How many elements the operation adds to a list."""


def _result(case: Case, inputs: Sequence[Any], all_reduce: Any) -> list[Any]:
    """The outputs and their gradients by the inputs, or the sums of these over the replicas."""
    continuous = [value for value in inputs if value.dtype.is_floating or value.dtype.is_complex]
    with tf.GradientTape() as tape:
        tape.watch(continuous)
        # The optimizer removes an identity that waits for nothing.
        waits = [tf.no_op()] if case.op == "Identity" and not tf.executing_eagerly() else []
        with tf.control_dependencies(waits):
            result = _outputs(case, inputs)
        outputs = [tf.convert_to_tensor(output) for output in tf.nest.flatten(result)]
        losses = [
            tf.reduce_sum(output * tf.cast(_weights(output), output.dtype))
            for output in outputs
            if output.dtype.is_floating or output.dtype.is_complex
        ]
    gradients: list[Any] = []
    if losses and continuous:
        with contextlib.suppress(LookupError):  # the operation has no gradient
            gradients = tape.gradient(losses, continuous)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if case.summed:
        return [all_reduce(value) for value in (*outputs, *gradients)]
    return [*outputs, *gradients]


def _weights(value: Any) -> Any:
    """Different numbers in a tensor's shape."""
    if value.shape.is_fully_defined():
        return np.cos(np.arange(value.shape.num_elements()).reshape(value.shape))
    numbers = tf.cos(tf.range(tf.cast(tf.size(value), tf.float64)))
    return tf.reshape(numbers, tf.shape(value))


def _prepare(case: Case, findings: Findings) -> _Prepared | None:
    """Run a case in plain TensorFlow; return None if TensorFlow refuses it."""
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
        if any(value.dtype not in SUMMED for value in each[0]):
            findings.refused[case.op] += 1
            return None
        total = [tf.add_n(parts) for parts in zip(*each, strict=True)]
        each = [total] * REPLICAS
    findings.valid[case.op] += 1
    return _Prepared(case, columns, each)


@functools.cache
def start(joined: bool = True) -> Any:
    """The strategy of all cases; call this before TensorFlow computes anything."""
    return VirtualTPUStrategy(REPLICAS, joined=joined, strict=False)


def _run(
    batch: Sequence[_Prepared], findings: Findings | None = None, *, joined: bool = True
) -> list[list[list[Any]]]:
    """Run cases on the virtual TPU and count the joined ones; return their results by replica."""
    strategy = start(joined)
    values, variables = [], {}
    for number, prepared in enumerate(batch):
        for column, varies in zip(prepared.columns, prepared.case.varies, strict=True):
            if varies:
                values.append(
                    strategy.experimental_distribute_values_from_function(
                        lambda context, c=column: c[context.replica_id_in_sync_group]
                    )
                )
            elif not _is_constant(prepared.case, column):
                values.append(column[0])
        if prepared.case.slots[0].variable:
            with strategy.scope():
                variables[number] = tf.Variable(prepared.columns[0][0])

    def replica(*arguments: Any) -> list[list[Any]]:
        pending, results = iter(arguments), []
        for number, prepared in enumerate(batch):
            pairs = zip(prepared.columns, prepared.case.varies, strict=True)
            inputs = [
                tf.constant(column[0].numpy())
                if not varies and _is_constant(prepared.case, column)
                else next(pending)
                for column, varies in pairs
            ]
            if number in variables:
                inputs[0] = variables[number].handle
            with tf.name_scope(f"case{number}"):
                results.append(_result(prepared.case, inputs, all_reduce))
        return results

    with analyses(costs=False) as found:
        results = tf.function(lambda *args: strategy.run(replica, args=args), autograph=False)(
            *values
        )
    names = {
        node.name: node.op
        for analysis in found
        for node in analysis.order
        if node.name in analysis.plans
    }
    for number, prepared in enumerate(batch if findings else []):
        joined_ops = [op for name, op in names.items() if name.startswith(f"case{number}/")]
        findings.joined[prepared.case.op] += prepared.case.op in joined_ops
    return [
        [[strategy.experimental_local_results(part)[k] for part in parts] for k in range(REPLICAS)]
        for parts in results
    ]


def _is_constant(case: Case, column: Sequence[Any]) -> bool:
    """Whether an input is a constant; an operation with an empty argument is never joined."""
    return case.constant or 0 in column[0].shape


def check(operations: Iterable[str], count: int, seed: int = 0, rounds: int = 1) -> Findings:
    """Compare cases of operations.

    Args:
        operations: The operations.
        count: How many cases of each to compare; tries at most eight times as many.
        seed: The seed of the cases.
        rounds: How often to try twice as many cases of the operations that were never joined.

    Returns:
        The outcome.
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
    prepared = (_prepare(case, findings) for case in cases)
    return itertools.islice((case for case in prepared if case is not None), count)


def _compare(batch: Sequence[_Prepared], findings: Findings) -> None:
    try:
        results = _run(batch, findings)
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
    for prepared, result in zip(batch, results, strict=True):
        if not _difference(prepared.expected, result):
            continue
        # TensorFlow's results in a graph may differ from its eager results.
        (apart,) = _run([prepared], joined=False)
        (together,) = _run([prepared])
        if difference := _difference(apart, together):
            findings.wrong.append(f"{prepared.case}\n    {difference}")


def _is_refused_apart(prepared: _Prepared) -> bool:
    """Whether TensorFlow refuses the case in a graph, joined or not."""
    try:
        _run([prepared], joined=False)
    except _REFUSED:
        return True
    return False


def _difference(expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]]) -> str:
    """Say where results differ; return an empty text if they agree."""
    for replica, (expected_values, actual_values) in enumerate(zip(expected, actual, strict=True)):
        if len(expected_values) != len(actual_values):
            return f"{len(actual_values)} results, not {len(expected_values)}"
        for place, (wanted, got) in enumerate(zip(expected_values, actual_values, strict=True)):
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
