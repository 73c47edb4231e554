"""Warnings before a `fit` trains: replicas without examples, variables or models outside the scope.

Keras 2 and Keras 3 pass the data of each `fit`, `evaluate` and `predict` to their strategy's
`experimental_distribute_dataset`. This module looks at the data there, so nothing of Keras is
patched. `keras_internals.py` finds the model that asked.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.units import counted
from tpunb._util.user_code import is_users_class
from tpunb.errors import TpuWarning
from tpunb.machine.keras_internals import ModelCall, metrics_of, model_call
from tpunb.tensorflow.checks.empty_shares import EMPTY, watch_shares
from tpunb.tensorflow.virtual.input.datasets import BatchSizes
from tpunb.tensorflow.virtual.runtime.tensorflow_state import default_strategy

LOST, OUTSIDE = "lost-variables", "outside-scope"
CLOSED, METRIC = "closed-connection", "metric-variable"
"""The kinds of notes, besides `EMPTY`."""

_notes: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
_warned_models: weakref.WeakSet[Any] = weakref.WeakSet()
_open: weakref.WeakSet[Any] = weakref.WeakSet()
_closed: weakref.WeakSet[Any] = weakref.WeakSet()
"""The strategies of the connections that are open, and of those that are closed."""


def notes_of(model: Any) -> dict[str, str]:
    """Return the notes of a model's last `fit`, by kind; training may add more."""
    return _notes.setdefault(model, {})


def _say(call: ModelCall, kind: str, text: str) -> None:
    """Record a note and warn, at the user's line."""
    notes_of(call.model)[kind] = text
    warnings.warn_explicit(text, TpuWarning, call.file, call.line)


def data_arrives(replicas: int, dataset: Any, distributed: Any) -> None:
    """Warn of data and variables that will ruin a `fit`, if a `fit` distributes the data.

    Args:
        replicas: The number of replicas that share each batch.
        dataset: The data.
        distributed: The same data as the strategy has distributed it.
    """
    call = model_call(sys._getframe(1))
    if call is None:
        return
    if call.trains:
        _notes[call.model] = {}
    if _open and getattr(call.model, "distribute_strategy", None) in _closed:
        _say_where_it_runs(call, replicas)
    if not call.trains:
        return
    if lost := lost_variables(call.model):
        _say(call, LOST, lost)
    for text in _metrics_of_one_replica(call.model) if replicas > 1 else ():
        _say(call, METRIC, text)
    watch_shares(
        replicas,
        dataset,
        distributed,
        lambda text: _say(call, EMPTY, text),
        _sizes_of(call.adapter),
    )


def _say_where_it_runs(call: ModelCall, replicas: int) -> None:
    """Say once that a model of a closed connection still runs on that connection's replicas."""
    if call.model in _warned_models:
        return
    _warned_models.add(call.model)
    present = next(iter(_open)).num_replicas_in_sync
    text = (
        f"The model {call.model.name} belongs to a connection that is closed: `{call.method}` runs "
        f"on its {replicas} replicas, not on the {present} replicas of the present connection. "
        "Make the model again inside of `with strategy.scope():`."
    )
    _say(call, CLOSED, text)


def _metrics_of_one_replica(model: Any) -> Iterator[str]:
    """Yield a sentence for each metric of the user's whose result is its own variable.

    Outside of the strategy's scope, where Keras 3 asks for the result, TensorFlow reads one copy of
    the variable: `DistributedVariable._get` in python/distribute/values.py, up to 2.21.
    """
    for metric in filter(lambda each: is_users_class(type(each)), metrics_of(model)):
        with contextlib.suppress(Exception):  # a result of no batches may fail
            result = metric.result()
            names = [name for name, value in vars(metric).items() if value is result]
            if names and any(result is variable for variable in metric.variables):
                own = f"self.{names[0]}"
                yield (
                    f"The metric {metric.name} returns its variable `{own}`: the result is the "
                    "value of one replica, as on a TPU. Return a tensor, which combines all "
                    f"replicas: `return {own} + 0`."
                )


def lost_variables(model: Any) -> str:
    """Return a sentence that variables of a model are NaN already; empty if none is NaN."""
    if not getattr(model, "built", False):
        return ""
    with tf.init_scope():
        named = {
            getattr(variable, "path", variable.name): _tensor(variable)
            for variable in model.weights
        }
        floats = {name: tensor for name, tensor in named.items() if tensor.dtype.is_floating}
        flags = [tf.reduce_any(tf.math.is_nan(tensor)) for tensor in floats.values()]
        lost = list(itertools.compress(floats, tf.stack(flags).numpy())) if flags else []
    if not lost:
        return ""
    return (
        f"{counted(len(lost), 'variable')} of the model {model.name} held NaN before the first "
        f"step ({lost[0]} is one), so its loss is NaN. Make the model again, or load its weights."
    )


def _tensor(variable: Any) -> tf.Tensor:
    value = getattr(variable, "value", variable)
    source = variable if callable(value) else value
    copies = getattr(source, "values", ())
    if copies and source.synchronization != tf.VariableSynchronization.ON_READ:
        # The first copy has the value of all copies, and is read in a tenth of the time.
        source = copies[0]
    return tf.convert_to_tensor(source)


def _sizes_of(adapter: Any) -> BatchSizes | None:
    """Return the sizes of the batches that Keras makes from arrays; None if it makes none."""
    names = (("batch_size",), ("partial_batch_size",), ("num_batches", "get_size"))
    full, last, count = (_first_integer(adapter, attributes) for attributes in names)
    if not full:
        return None
    return BatchSizes(full, last, count and full * count - (full - last if last else 0))


def _first_integer(adapter: Any, names: Sequence[str]) -> int | None:
    for name in names:
        try:
            value = getattr(adapter, name, None)
            value = value() if callable(value) else value
        except NotImplementedError:  # the adapter's batches are not Keras's
            value = None
        if isinstance(value, int):
            return value
    return None


def opened(strategy: Any) -> None:
    """Watch, until `closed`, the data of models that were made outside a strategy's scope."""
    _open.add(strategy)
    _default()._experimental_distribute_dataset = _unchanged
    # A virtual TPU's strategy looks at the data itself.
    if not hasattr(strategy.extended, "strictness"):
        distribute = strategy.extended._experimental_distribute_dataset

        def distributed(dataset: Any, options: Any) -> Any:
            result = distribute(dataset, options)
            data_arrives(strategy.num_replicas_in_sync, dataset, result)
            return result

        strategy.extended._experimental_distribute_dataset = distributed


def closed(strategy: Any) -> None:
    """Undo `opened`."""
    _open.discard(strategy)
    _closed.add(strategy)
    vars(strategy.extended).pop("_experimental_distribute_dataset", None)
    if not _open:
        vars(_default()).pop("_experimental_distribute_dataset", None)
        _notes.clear()
        _warned_models.clear()


def any_is_closed() -> bool:
    """Return whether a strategy exists whose connection is closed."""
    return bool(_closed)


def is_closed(strategy: Any) -> bool:
    """Return whether the connection of a strategy is closed."""
    return strategy is not None and strategy in _closed


def _default() -> Any:
    return default_strategy().extended


def _unchanged(dataset: Any, options: Any) -> Any:
    """Distribute as the default strategy does: return the dataset unchanged."""
    del options
    strategy = next(iter(_open), None)
    call = model_call(sys._getframe(1)) if strategy is not None else None
    if strategy is None or call is None:
        return dataset
    text = (
        f"The model {call.model.name} was made outside of the strategy's scope: `{call.method}` "
        f"runs on one CPU, not on the {strategy.num_replicas_in_sync} replicas. Make and compile "
        "the model inside of `with strategy.scope():`."
    )
    if call.model in _warned_models:
        _notes[call.model] = {OUTSIDE: text}
    else:
        _warned_models.add(call.model)
        _notes[call.model] = {}
        _say(call, OUTSIDE, text)
    return dataset
