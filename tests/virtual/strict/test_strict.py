"""Steps that a TPU refuses are refused when they run; each rule can be switched off."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from counterparts.children import output_of
from support.checked_functions import REFUSED, X
from support.keras_models import squares_lessened
from support.strategies import (
    each,
    gradient_of,
    local,
    run,
    stepper,
    strategy_of,
    strategy_of_parts,
)

from tpunb import explain
from tpunb.errors import TpuWarning
from tpunb.virtual.strictness import REFUSED as REFUSED_RULES
from tpunb.virtual.strictness import RULES, RuleError, Strictness

NONE = dict.fromkeys(RULES, False)


def only(rule: str) -> dict[str, bool]:
    """All rules off except this one."""
    return {**NONE, rule: True}


@pytest.fixture(scope="module")
def four() -> Any:
    return strategy_of(4, strict=True)


def table() -> Any:
    rows = tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20])
    return tf.lookup.StaticHashTable(rows, -1)


@pytest.mark.parametrize("rule", REFUSED)
def test_a_rule_refuses_names_the_line_and_can_be_switched_off(four: Any, rule: str) -> None:
    function, message, number = REFUSED[rule]
    values = each(four, [np.ones(X.shape, np.float32)] * 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as refused:
        run(four, function, values)
    known = explain(refused.value)
    assert (known and known.number) == number
    code = function.__code__
    places = [f'File "{code.co_filename}", line {code.co_firstlineno + k}\n' for k in range(1, 9)]
    assert any(place in str(refused.value) for place in places)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(strategy_of(4, strict=only(rule)), function, values)
    lenient = strategy_of(4, strict=NONE)
    assert len(run(lenient, function, each(lenient, [np.ones(X.shape, np.float32)] * 4))) == 4


def test_data_dependent_sizes_give_a_warning(four: Any) -> None:
    def masked(x: Any) -> Any:
        return tf.reduce_sum(tf.boolean_mask(x, x > 1.0))

    with pytest.warns(TpuWarning, match="pads it to its bound"):
        assert run(four, masked, each(four, [[1.0, 2.0]] * 4)) == [2.0] * 4
    lenient = strategy_of(4, strict={"dynamic-shape": False})
    run(lenient, masked, each(lenient, [[1.0, 2.0]] * 4))


def test_variables_created_outside_of_the_scope(four: Any) -> None:
    stray = tf.Variable(2.0)
    assert run(four, lambda x: x * stray, each(four, [1.0] * 4)) == [2.0] * 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource") as error:
        run(four, lambda x: stray.assign(x), each(four, [2.0] * 4))
    assert explain(error.value).number == 34
    metric = keras.metrics.Mean()
    with pytest.raises(tf.errors.InvalidArgumentError, match="scope"):
        run(four, lambda x: metric.update_state(x), each(four, [1.0] * 4))
    lenient = strategy_of(4, strict={"scope": False})
    assert run(lenient, lambda x: stray.assign(x), each(lenient, [2.0] * 4)) == [2.0] * 4


@pytest.mark.parametrize("replica", [0, 2])
def test_one_copy_in_a_replica_function(four: Any, replica: int) -> None:
    with four.scope():
        variable = tf.Variable(2.0)
    copy = variable.values[replica]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the copy of one replica") as error:
        run(four, lambda x: copy.assign_add(x), each(four, [1.0] * 4))
    assert explain(error.value) is None
    assert [float(value) for value in variable.values] == [2.0] * 4


def test_pure_eager_execution(four: Any) -> None:
    with pytest.raises(NotImplementedError, match="pure eager"):
        four.run(lambda x: x + 1.0, args=(each(four, [1.0] * 4),))
    lenient = strategy_of(4, strict={"eager-run": False})
    traced = []

    def count(x: Any) -> Any:
        traced.append(x)
        return x + 1.0

    for _ in range(2):
        assert local(lenient, lenient.run(count, args=(each(lenient, [1.0] * 4),))) == [2.0] * 4
    assert len(traced) == 1


def test_inputs_of_unknown_rank(four: Any) -> None:
    def call(strategy: Any) -> Any:
        @tf.function(input_signature=[tf.TensorSpec(None)])
        def step(x: Any) -> Any:
            return strategy.run(lambda y: y * 2.0, args=(x,))

        return local(strategy, step(tf.constant(3.0)))

    with pytest.raises(ValueError, match="unknown rank"):
        call(four)
    assert call(strategy_of(4, strict={"unknown-rank": False})) == [6.0] * 4


def test_gather_of_unequal_shapes(four: Any) -> None:
    shapes = [np.ones([k + 1, 2], np.float32) for k in range(4)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch") as error:
        four.gather(each(four, shapes), axis=0)
    assert explain(error.value).number == 40

    assert four.gather(each(four, [np.ones([2, 2])] * 4), axis=0).shape == [8, 2]
    lenient = strategy_of(4, strict={"gather-shapes": False})
    assert lenient.gather(each(lenient, shapes), axis=0).shape == [10, 2]


def test_gather_of_shapes_known_only_at_run_time() -> None:
    strategy = strategy_of(4, strict=only("gather-shapes"))

    @tf.function
    def gathered(values: Any, least: Any) -> Any:
        kept = strategy.run(lambda x: tf.boolean_mask(x, x > least), args=(values,))
        return strategy.gather(kept, axis=0)

    values = each(strategy, [np.arange(3.0) + k for k in range(4)])
    assert gathered(values, -1.0).shape == [12]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch in the collective"):
        gathered(values, 1.0)


def test_soft_placement_runs_host_operations_with_a_warning(place_softly: Any) -> None:
    place_softly(True)
    strategy = strategy_of(4, strict=True)
    lookup = table()

    def step(x: Any) -> Any:
        return lookup.lookup(x) * 2

    with pytest.warns(TpuWarning, match="LookupTableFindV2 looks up a table") as caught:
        assert run(strategy, step, each(strategy, [1, 2, 3, 1])) == [20, 40, -2, 20]
    assert caught[0].filename == __file__
    lenient = strategy_of(4, strict={"host-op": False})
    assert run(lenient, lambda x: lookup.lookup(x), each(lenient, [1, 2, 3, 1])) == [10, 20, -1, 10]


def test_soft_placement_also_applies_in_compiled_functions(
    place_softly: Any,
) -> None:
    place_softly(True)
    strategy = strategy_of(4, strict=True)

    @tf.function(jit_compile=True)
    def length(x: Any) -> Any:
        return tf.strings.length(tf.strings.as_string(x, precision=1))

    def step(x: Any) -> Any:
        size = length(x)
        for _ in tf.range(2):
            size += length(x)
        return size

    with pytest.warns(TpuWarning, match="works on strings"):
        assert run(strategy, step, each(strategy, [1.0, 10.0, 100.0, 1.0])) == [9, 12, 15, 9]


def test_gradients_that_only_tpus_compile_run_in_a_compiled_function(four: Any) -> None:
    @tf.function(jit_compile=True)
    def gradient(x: Any) -> Any:
        return gradient_of(lambda x: tf.image.resize(x, [4, 4]), x)

    results = run(four, gradient, each(four, [np.ones([1, 2, 2, 1], np.float32)] * 4))
    np.testing.assert_allclose(results[0], np.full([1, 2, 2, 1], 4.0), rtol=1e-6)


def test_outside_compilation_runs_on_the_host(four: Any) -> None:
    outside = tf.compat.v1.tpu.outside_compilation

    def step(x: Any) -> Any:
        size = outside(lambda y: tf.strings.length(tf.strings.as_string(y, precision=1)), x)
        for _ in tf.range(2):
            size += 1
        return size

    assert run(four, step, each(four, [1.0, 10.0, 100.0, 1.0])) == [5, 6, 7, 5]


def test_a_slice_with_a_bounded_size_gives_a_warning() -> None:
    strategy = strategy_of(4, strict=True)

    def step(x: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.reduce_sum(x[replica : replica + 1])

    with pytest.warns(TpuWarning, match="The size of a slice depends on the data"):
        assert run(strategy, step, tf.range(4)) == [0, 1, 2, 3]


def test_float64_gives_a_warning_once_a_line() -> None:
    strategy = strategy_of(4, strict=True)

    def step(x: Any) -> Any:
        return x * 2.0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            run(strategy, step, each(strategy, [np.float64(1.0)] * 4))
    assert [str(warning.message)[:27] for warning in caught] == ["Mul is computed in float64,"]


def test_unbuilt_models_and_optimizers_are_fine(four: Any) -> None:
    with four.scope():
        model = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
        model.build((None, 2))
        optimizer.build(model.trainable_variables)

    step = functools.partial(squares_lessened, model, optimizer)
    assert np.isfinite(run(four, step, each(four, [np.ones([2, 2], np.float32)] * 4))).all()


def test_unknown_sizes_alone_are_not_refused(four: Any) -> None:
    def replica(y: Any) -> Any:
        # This works only for 6 elements.
        total = tf.reshape(y, [2, 3])
        for _ in tf.range(2):
            total += 1.0
        return total

    step = tf.function(
        lambda x: four.run(replica, args=(x,)), input_signature=[tf.TensorSpec([None, None])]
    )
    assert local(four, step(tf.zeros([3, 2])))[0].tolist() == [[2.0] * 3] * 2


def test_variables_of_other_logical_devices_and_loops() -> None:
    strategy = strategy_of_parts(4, strict=True)
    with strategy.scope():
        with strategy.extended.experimental_logical_device(1):
            far = tf.Variable(2.0)
        near = tf.Variable(3.0)

    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = x * far + near
        return x

    assert run(strategy, step, each(strategy, [1.0] * 4)) == [29.0] * 4


@pytest.mark.parametrize(
    ("strict", "holds"), [(True, True), (False, False), ({"scope": False}, False), ({}, True)]
)
def test_strictness(strict: Any, holds: bool) -> None:
    assert Strictness.of(strict).holds("scope") is holds
    assert Strictness.of(strict).any is not (strict is False)


def test_an_unknown_rule() -> None:
    with pytest.raises(RuleError, match="no rule 'float46'") as error:
        Strictness.of({"float46": False})
    assert "'float64'" in error.value.fix


def test_only_the_first_step_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpunb.tensorflow.virtual import replica_call as call

    looked: list[Any] = []
    enforce = call.enforce
    monkeypatch.setattr(call, "enforce", lambda *a: (looked.append(a), enforce(*a)))
    strategy = strategy_of(2)

    step = stepper(strategy, lambda y: y + 1.0)
    for _ in range(3):
        step(tf.constant(1.0))
    assert len(looked) == 1


def test_the_rules_do_not_import_tensorflow() -> None:
    code = "import sys, tpunb.virtual.strictness; assert 'tensorflow' not in sys.modules"
    assert output_of(code) == ""


def test_the_page_lists_the_rules() -> None:
    page = (Path(__file__).parents[3] / "docs" / "strictness.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {'refused' if name in REFUSED_RULES else 'warning'} | {on_tpu} |"
        for name, on_tpu in RULES.items()
    ]
    assert "\n".join(rows) in page
