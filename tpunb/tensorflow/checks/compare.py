"""Comparisons of a step: a TPU's arithmetic with float32, and all replicas with one."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import LINED, escaped, table
from tpunb._util.units import grouped
from tpunb.errors import TpunbError
from tpunb.machine.keras_internals import model_of
from tpunb.tensorflow.checks.dataset_sizes import with_batches
from tpunb.tensorflow.checks.gradient_scale import measured_scale
from tpunb.tensorflow.checks.keras_models import model_step, strategy_for
from tpunb.tensorflow.checks.replica_comparison import ReplicaComparison, order, share
from tpunb.tensorflow.checks.rule_check import parts_of_batch
from tpunb.tensorflow.checks.trial_batches import GlobalBatch
from tpunb.tensorflow.checks.trial_run import (
    has_value,
    read_handle,
    seed_graph,
    traced_separately,
    traced_step,
)
from tpunb.tensorflow.checks.untouched import untouched
from tpunb.tensorflow.virtual.strategy import VirtualTPU, current
from tpunb.virtual.arithmetic import ARITHMETICS, Arithmetic

# The suffix that TensorFlow gives the names of a distributed variable's copies.
_COPY = re.compile(r"(/replica_\d+)?(:0)?$")

_HEAD = ("result", "type", "largest value", "moves by", "relative")
_MOST_ROWS = 40
_LONGEST_NAME = 60

Results = dict[str, list[np.ndarray]]
"""The parts of a result by name, each with its value on every replica."""


class CompareError(TpunbError, ValueError):
    """A function whose results cannot be compared."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference that the arithmetic makes to one part of a result.

    Attributes:
        name: The part's name: a key or place in the function's result, or a variable.
        dtype: The part's type, such as `"float32"`.
        shape: The shape on one replica.
        largest: The largest absolute value in float32, over all replicas.
        absolute: The largest absolute difference, over all replicas.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    largest: float
    absolute: float

    @property
    def relative(self) -> float:
        """The largest difference as a share of the largest value."""
        if not self.absolute:
            return 0.0
        return self.absolute / self.largest if self.largest else math.inf


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A function's results in float32 and with a TPU's arithmetic.

    Attributes:
        results: The parts of the function's result.
        variables: The variables that the function changes.
    """

    results: tuple[Difference, ...]
    variables: tuple[Difference, ...]

    @property
    def relative(self) -> float:
        """The largest relative difference; NaN if any difference is NaN."""
        return max((difference.relative for difference in self._all), default=0.0, key=order)

    @property
    def headline(self) -> str:
        """The outcome in one line."""
        if not any(difference.absolute for difference in self._all):
            return "A TPU's arithmetic changes nothing here."
        most = max(self._all, key=lambda difference: order(difference.relative))
        return (
            f"A TPU's arithmetic moves the results by up to {share(most.relative)} "
            f"({shortened(most.name, _LONGEST_NAME)})."
        )

    @property
    def _all(self) -> tuple[Difference, ...]:
        return (*self.results, *self.variables)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for difference in self._all[:_MOST_ROWS]:
            kind = f"{difference.dtype} {list(difference.shape)}"
            numbers = (
                f"{difference.largest:.4g}",
                f"{difference.absolute:.3g}",
                share(difference.relative),
            )
            yield shortened(difference.name, _LONGEST_NAME), kind, *numbers
        if len(self._all) > _MOST_ROWS:
            yield f"and {grouped(len(self._all) - _MOST_ROWS)} more", *[""] * (len(_HEAD) - 1)

    def __str__(self) -> str:
        lines = aligned([_HEAD, *self._rows()], "  ") if self._all else []
        return plain("\n".join([self.headline, *lines]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Comparison(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        rows = list(self._rows())
        shown = table(rows, head=_HEAD, named=True, style=LINED) if rows else ""
        return f"<p><b>{escaped(self.headline)}</b></p>{shown}"


def compare(
    fn: Callable[..., Any],
    *args: Any,
    replicas: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> Comparison | ReplicaComparison:
    """Run a step in a TPU's arithmetic and in float32, or on all replicas and on one.

    See `tpunb.compare`, which calls this for TensorFlow.

    Raises:
        CompareError: The strategy is missing or not a virtual TPU's, it has one replica, or an
            argument is an iterator, from which each run would take another batch.
        Exception: The function raised this error.
    """
    if replicas not in (None, 1):
        raise CompareError(
            f"A step is compared with the step of one replica, not of {replicas!r}.",
            fix="Write replicas=1.",
        )
    if replicas == 1:
        strategy = strategy_for(fn, strategy)
        _refuse_other_strategies(strategy, "runs a step on all replicas and on one")
        return compared_with_one(fn, args, strategy)
    strategy = strategy or current()
    _refuse_other_strategies(strategy, "computes in two arithmetics")
    inputs = [_as_input(argument, strategy) for argument in args]
    exact, rounded = (_run(fn, inputs, strategy, arithmetic) for arithmetic in ARITHMETICS)
    return Comparison(*(tuple(_differences(*pair)) for pair in zip(exact, rounded, strict=True)))


def _refuse_other_strategies(strategy: Any, ability: str) -> None:
    if not isinstance(strategy, VirtualTPU):
        raise CompareError(
            f"Only a virtual TPU {ability}.", fix="Connect to one: tpunb.connect(simulate='v5e-8')."
        )


def compared_with_one(
    fn: Callable[..., Any],
    args: Sequence[Any],
    strategy: Any,
    say: Callable[[str], object] = id,
) -> ReplicaComparison:
    """Compare a step on a virtual TPU's replicas with the same step on one replica.

    Args:
        fn: The step.
        args: Its arguments.
        strategy: The virtual TPU's strategy.
        say: Receives each next phase.

    Raises:
        CompareError: The strategy has one replica, or an argument is an iterator.
        Exception: The step raised this error.
    """
    count = int(strategy.num_replicas_in_sync)
    if count == 1:
        raise CompareError(
            "The strategy has a single replica, so there is nothing to compare.",
            fix="Connect to a TPU of several cores: tpunb.connect(simulate='v5e-8').",
        )
    if strategy.extended.has_model_parallelism:
        note = "Each replica has several logical devices."
        return ReplicaComparison(count, None, note)
    with untouched(fn, args):
        step, inputs = fn, args
        if model_of(fn) is not None:
            inputs = _batch_of_model(args, strategy)
            made = model_step(fn, with_batches(args), strategy, CompareError, "tpunb.compare")
            step = made.replica_function if made is not None else fn
        inputs = [_as_input(argument, strategy) for argument in inputs]
        return measured_scale(step, GlobalBatch(inputs, count), strategy, say)


def _batch_of_model(args: Sequence[Any], strategy: Any) -> Sequence[Any]:
    """Return a replica's part of a model's batch, given a dataset or a global batch."""
    data = tuple(args) if len(args) > 1 else args[0]
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensors(data)
    return parts_of_batch(_as_input(data, strategy))


def _as_input(argument: Any, strategy: Any) -> Any:
    """Return the value that a run receives for an argument."""
    if isinstance(argument, tf.data.Dataset):
        argument = strategy.experimental_distribute_dataset(argument)
    if isinstance(argument, tf.distribute.DistributedDataset):
        return next(iter(argument))
    if hasattr(argument, "__next__"):
        raise CompareError(
            "Each of the two runs would take another batch from an iterator.",
            fix="Pass a batch, next(iterator), or the dataset.",
        )
    # TensorFlow makes an array within a graph a constant, even a very large array.
    return tf.nest.map_structure(
        lambda leaf: tf.constant(leaf) if isinstance(leaf, np.ndarray) else leaf, argument
    )


def _run(
    fn: Callable[..., Any], inputs: Sequence[Any], strategy: Any, arithmetic: Arithmetic
) -> tuple[Results, Results]:
    """Run a function; return its result and the changed variables, whose values are restored."""
    with strategy.extended.computing(arithmetic):
        concrete = _traced(fn, inputs, strategy)
    handles = [handle for handle in concrete.captured_inputs if has_value(handle)]
    before = [(handle, read_handle(handle)) for handle in handles]
    try:
        results = dict(_parts(concrete(), strategy))
        return results, _changed(before)
    finally:
        for handle, value in before:
            with tf.device(handle.device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _changed(before: Sequence[tuple[Any, Any]]) -> Results:
    """Return the present values of the variables that have changed, copy by copy, by name.

    Args:
        before: The handles of the variables, one for each copy, with their former values.
    """
    copies_by_name: Results = {}
    changed = set()
    for handle, value in before:
        name = _COPY.sub("", str(handle._name))
        now = _values_of(read_handle(handle))
        copies_by_name.setdefault(name, []).append(now)
        if not np.array_equal(now, _values_of(value)):
            changed.add(name)
    return {name: values for name, values in copies_by_name.items() if name in changed}


def _values_of(tensor: Any) -> np.ndarray:
    """Return a tensor's numbers, in a dtype that NumPy knows."""
    values = np.asarray(tensor)
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def _traced(fn: Callable[..., Any], inputs: Sequence[Any], strategy: Any) -> Any:
    """Return the traced function without arguments: a replica's, or a caller of `run`."""
    rounds = tf.config.experimental.tensor_float_32_execution_enabled()

    def traced(call: Callable[[Sequence[Any]], Any]) -> Any:
        def seeded() -> Any:
            seed_graph()
            with traced_separately((strategy.extended.arithmetic, rounds)):
                result = call(inputs)
            return None if isinstance(result, tf.Operation) else result

        return tf.function(seeded).get_concrete_function()

    return traced_step(traced, fn, strategy)


def _parts(result: Any, strategy: Any, name: str = "") -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield the tensors of a result, each with the path that leads to it."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from _parts(value, strategy, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(result, (list, tuple)):
        for place, value in enumerate(result):
            yield from _parts(value, strategy, f"{name or 'result'}[{place}]")
    elif result is not None:
        local = strategy.experimental_local_results(result)
        flat = [tf.nest.flatten(local_value, expand_composites=True) for local_value in local]
        for place, column in enumerate(zip(*flat, strict=True)):
            part = name or "result"
            yield part if len(flat[0]) == 1 else f"{part}[{place}]", list(map(_values_of, column))


def _differences(exact: Results, rounded: Results) -> Iterator[Difference]:
    for name, values in exact.items():
        others = rounded.get(name, [])
        pairs = [
            (own, other)
            for own, other in zip(values, others, strict=False)
            if own.dtype.kind in "biufV" and own.shape == other.shape
        ]
        if pairs:
            first = pairs[0][0]
            largest = max((_largest(np.abs(_wide(own))) for own, _ in pairs), key=order)
            absolute = max((_distance(_wide(own), _wide(other)) for own, other in pairs), key=order)
            yield Difference(name, first.dtype.name, first.shape, largest, absolute)


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def _distance(exact: np.ndarray, rounded: np.ndarray) -> float:
    """Return the largest absolute difference; two NaNs, or two equal infinities, do not differ."""
    same = (exact == rounded) | (np.isnan(exact) & np.isnan(rounded))
    with np.errstate(invalid="ignore"):
        return _largest(np.where(same, 0.0, np.abs(exact - rounded)))


def _largest(values: np.ndarray) -> float:
    return float(values.max()) if values.size else 0.0
