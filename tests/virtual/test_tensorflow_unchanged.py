"""TensorFlow is as it was: strategies replace nothing for longer than a call takes.

Not even a strategy that is never closed changes it. What `install` replaces, which is until
`uninstall`, is tested in `patch/test_install.py`.
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
    """What the modules of TensorFlow and Keras define, and the methods of their classes."""
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
    """Trains on files' data and on a generator's, which hosts get each in their own way."""
    strategy = strategy_of("v5e-16")
    batches = tf.data.Dataset.range(64).shuffle(8).batch(32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    for dataset in (batches, batches.with_options(options)):
        batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
        tf.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))(batch)
    del tpu


def of_tensorflow_1(tpu: Any) -> None:
    """Makes the iterators of TensorFlow 1."""
    with tf.Graph().as_default(), tpu.scope():
        tpu.extended._make_dataset_iterator(tf.data.Dataset.range(8).batch(8))
        tpu.extended._make_input_fn_iterator(lambda _: tf.data.Dataset.range(8).batch(8))


def of_variables(tpu: Any) -> None:
    """Updates variables, together and one copy on its own."""
    with tpu.scope():
        variable = tf.Variable([1.0, 2.0])
    tf.function(lambda: tpu.run(lambda: variable.assign_add([1.0, 1.0])))()
    variable.values[1].assign([0.0, 0.0])
    assert local(tpu, variable)[1].tolist() == [0.0, 0.0]


def of_checks(tpu: Any) -> None:
    """Has functions looked at, as a TPU would refuse them."""
    tpunb.check(lambda x: tf.py_function(lambda y: y, [x], tf.float32), tf.zeros([2]))
    tpunb.check(lambda x: x + 1.0, tf.zeros([2]), strategy=tpu)
    tpunb.compare(lambda x: tf.matmul(x, x), tf.zeros([2, 2]), strategy=tpu)


def of_keras(tpu: Any) -> None:
    """Trains a model."""
    import keras

    with tpu.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(np.ones([16, 2]), np.ones([16, 1]), batch_size=8, verbose=0)


USES = [of_several_hosts, of_tensorflow_1, of_variables, of_checks, of_keras]


# TensorFlow's own, of its own asking for options in a graph.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_what_a_strategy_replaces_it_puts_back(use: Callable[[Any], None]) -> None:
    before = functions_and_classes()
    use(strategy_of(4))
    now = functions_and_classes()
    assert [name for name, value in before.items() if now.get(name) is not value] == []


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
def test_a_connection_that_is_closed_leaves_nothing() -> None:
    before = functions_and_classes()
    with tpunb.connect(simulate="4", patch=True) as connection:
        assert tf.distribute.cluster_resolver.TPUClusterResolver("local")
        of_tensorflow_1(connection.strategy)
        open_ = functions_and_classes()
        assert any(open_.get(name) is not value for name, value in before.items())
    now = functions_and_classes()
    assert [name for name, value in before.items() if now.get(name) is not value] == []
