"""TensorFlow stays unchanged: a strategy replaces nothing for longer than a call.

Even a strategy that is never closed leaves TensorFlow unchanged. `install` replaces names until
`uninstall`; `patch/test_install.py` tests that.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local, strategy_of

import tpunb

LIBRARIES = ("tensorflow.", "keras.", "tf_keras.")


def functions_and_classes() -> dict[str, object]:
    """The definitions in TensorFlow's and Keras's modules, with the methods of their classes."""
    return dict(_named())


def _named() -> Iterator[tuple[str, object]]:
    for name, module in list(sys.modules.items()):
        if not name.startswith(LIBRARIES) or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if not callable(value):
                continue
            yield f"{name}.{key}", value
            if isinstance(value, type) and value.__module__ == name:
                for method, function in list(vars(value).items()):
                    if callable(function) or hasattr(function, "__get__"):
                        yield f"{name}.{key}.{method}", function


def of_several_hosts(tpu: Any) -> None:
    """Train on data from files and from a generator, which hosts read in different ways."""
    strategy = strategy_of("v5e-16")
    batches = tf.data.Dataset.range(64).shuffle(8).batch(32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    for dataset in (batches, batches.with_options(options)):
        batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
        tf.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))(batch)
    del tpu


def of_tensorflow_1(tpu: Any) -> None:
    """Create TensorFlow 1's iterators."""
    with tf.Graph().as_default(), tpu.scope():
        tpu.extended._make_dataset_iterator(tf.data.Dataset.range(8).batch(8))
        tpu.extended._make_input_fn_iterator(lambda _: tf.data.Dataset.range(8).batch(8))


def of_variables(tpu: Any) -> None:
    """Update variables together, then a single copy."""
    with tpu.scope():
        variable = tf.Variable([1.0, 2.0])
    tf.function(lambda: tpu.run(lambda: variable.assign_add([1.0, 1.0])))()
    variable.values[1].assign([0.0, 0.0])
    assert local(tpu, variable)[1].tolist() == [0.0, 0.0]


def of_checks(tpu: Any) -> None:
    """Check functions against a TPU's rules."""
    tpunb.check(lambda x: tf.py_function(lambda y: y, [x], tf.float32), tf.zeros([2]))
    tpunb.check(lambda x: x + 1.0, tf.zeros([2]), strategy=tpu)
    tpunb.compare(lambda x: tf.matmul(x, x), tf.zeros([2, 2]), strategy=tpu)


def of_keras(tpu: Any) -> None:
    """Train a model."""
    import keras

    with tpu.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(np.ones([16, 2]), np.ones([16, 1]), batch_size=8, verbose=0)


USES = [of_several_hosts, of_tensorflow_1, of_variables, of_checks, of_keras]


# TensorFlow itself warns when it asks for options in a graph.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_strategy_restores_what_it_replaces(use: Callable[[Any], None]) -> None:
    before = functions_and_classes()
    use(strategy_of(4))
    now = functions_and_classes()
    assert [name for name, value in before.items() if now.get(name) is not value] == []


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
def test_a_closed_connection_leaves_nothing() -> None:
    before = functions_and_classes()
    with tpunb.connect(simulate="4", patch=True) as connection:
        assert tf.distribute.cluster_resolver.TPUClusterResolver("local")
        of_tensorflow_1(connection.strategy)
        open_ = functions_and_classes()
        assert any(open_.get(name) is not value for name, value in before.items())
    now = functions_and_classes()
    assert [name for name, value in before.items() if now.get(name) is not value] == []
