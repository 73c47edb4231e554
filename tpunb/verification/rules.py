"""Claims about what a TPU refuses: one for each rule of strictness."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from tpunb.errors import TpuWarning
from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import refused, runs
from tpunb.virtual.strict.diagnostics import UNCHECKED
from tpunb.virtual.strict.rules import RULES

__all__ = ["REFUSED", "RULE_CLAIMS"]

_TEBIBYTE = (2**19, 2**19)  # of float32, which no core holds


def _printing(x: Any) -> Any:
    import tensorflow as tf

    return tf.strings.length(tf.strings.as_string(x))


def _worded(x: Any) -> Any:
    import tensorflow as tf

    del x
    return tf.constant("text")


def _masking(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.boolean_mask(x, x > 1.0))


def _counting(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.range(tf.cast(x[0], tf.int32) + 2))


def _growing(x: Any) -> Any:
    import tensorflow as tf

    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x)
    return array.stack()


def _product_of_int64(x: Any) -> Any:
    import tensorflow as tf

    whole = tf.cast(x, tf.int64)
    return tf.tensordot(whole, whole, 1)


def _loop_that_changes_a_shape(x: Any) -> Any:
    import tensorflow as tf

    _, grown = tf.while_loop(
        lambda i, _: i < 2,
        lambda i, y: (i + 1, tf.concat([y, y], 0)),
        (0, x),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
    )
    return tf.reduce_sum(grown)


def _too_large(x: Any) -> Any:
    import tensorflow as tf

    # A result, which no compiler can do without.
    return tf.fill(_TEBIBYTE, x[0])


def _on_each(function: Callable[[Any], Any]) -> Callable[[Bench], Any]:
    """Runs a function of two numbers on every replica."""

    def call(bench: Bench) -> Any:
        return bench.run(
            function, bench.each(np.tile(np.array([1.0, 2.0], np.float32), [bench.replicas, 1]))
        )

    return call


def _eagerly(bench: Bench) -> Any:
    return bench.strategy.run(lambda x: x + 1.0, args=(bench.each(bench.ranks),))


def _out_of_scope(bench: Bench) -> Any:
    import tensorflow as tf

    variable = tf.Variable(2.0)
    return bench.on_ranks(lambda x: variable.assign(x))


def _of_unknown_rank(bench: Bench) -> Any:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec(None)])  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        return bench.strategy.run(lambda y: y * 2.0, args=(x,))

    return bench.local(step(tf.constant(3.0)))


def _of_unequal_shapes(bench: Bench) -> Any:
    bench.need_replicas()
    shapes = [np.ones([replica + 1], np.float32) for replica in range(bench.replicas)]
    return bench.strategy.gather(bench.each(shapes), axis=0)


REFUSED: Mapping[str, tuple[Callable[[Bench], Any], str | None]] = MappingProxyType(
    {
        "eager-run": (_eagerly, "32"),
        "unsupported-op": (_on_each(_printing), "22"),
        "unsupported-type": (_on_each(_worded), "24"),
        "constant-size": (_on_each(_counting), "27"),
        "list-size": (_on_each(_growing), "29"),
        "compile": (_on_each(_loop_that_changes_a_shape), None),
        "x64-op": (_on_each(_product_of_int64), "25"),
        "memory": (_on_each(_too_large), "30"),
        "scope": (_out_of_scope, "34"),
        "unknown-rank": (_of_unknown_rank, None),
        "gather-shapes": (_of_unequal_shapes, "40"),
    }
)
"""Rules that refuse: what breaks each, and the known error that it ends with."""


def _with_warning(bench: Bench, call: Callable[[], Any], expected: Any) -> Observation:
    """Something that runs on a TPU, and that a virtual one warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = runs(call, expected, bench.tolerance())
    warned = any(issubclass(one.category, TpuWarning) for one in caught)
    if warned or not (bench.is_virtual and seen.holds):
        return seen
    return Observation(False, f"{seen.expected}; a warning", f"{seen.found}; no warning")


def _host_op(bench: Bench) -> Observation:
    import tensorflow as tf

    def step(x: Any) -> Any:
        return tf.strings.length(tf.strings.as_string(tf.cast(x, tf.int32)))

    with _soft_placement():
        expected = [len(str(int(rank))) for rank in bench.ranks]
        return _with_warning(bench, lambda: bench.on_ranks(step), expected)


@contextmanager
def _soft_placement() -> Iterator[None]:
    """Soft device placement, which is unset afterwards if it was: a TPU tells that from unset."""
    import tensorflow as tf

    from tpunb.virtual._tensorflow import context

    before = context.context()._soft_device_placement
    tf.config.set_soft_device_placement(True)
    try:
        yield
    finally:
        tf.config.set_soft_device_placement(bool(before))
        context.context()._soft_device_placement = before


def _dynamic(bench: Bench) -> Observation:
    masking = _on_each(_masking)
    return _with_warning(bench, lambda: masking(bench), np.full(bench.replicas, 2.0))


def _bounded(bench: Bench) -> Observation:
    import tensorflow as tf

    def step(x: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.reduce_sum(x[replica : replica + 1])

    row = np.tile(bench.ranks, [bench.replicas, 1])
    return _with_warning(bench, lambda: bench.run(step, bench.each(row)), bench.ranks)


def _float64(bench: Bench) -> Observation:
    values = [np.float64(1.0) + rank for rank in range(bench.replicas)]
    return _with_warning(
        bench, lambda: bench.run(lambda x: x * 2.0, bench.each(values)), bench.ranks * 2.0
    )


def _unchecked(bench: Bench) -> Observation:
    del bench
    raise NotRunError("it is about a crash of TensorFlow's compiler, which nothing provokes")


_WARNED: Mapping[str, Callable[[Bench], Observation]] = MappingProxyType(
    {
        "host-op": _host_op,
        "dynamic-shape": _dynamic,
        "bounded-shape": _bounded,
        "unchecked": _unchecked,
        "float64": _float64,
    }
)
"""Rules that warn."""

RULE_CLAIMS = Claims("rules")


def _refusal(rule: str) -> Callable[[Bench], Observation]:
    call, code = REFUSED[rule]

    def observe(bench: Bench) -> Observation:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen = refused(lambda: call(bench), code)
        unknown = next((str(one.message) for one in caught if UNCHECKED in str(one.message)), "")
        if unknown and not seen.holds:
            raise NotRunError(unknown)
        return seen

    return observe


for _rule in RULES:
    RULE_CLAIMS.claim(_rule.name, _rule.on_tpu.rstrip("."))(
        _refusal(_rule.name) if _rule.refuses else _WARNED[_rule.name]
    )
