"""The batch of a call of Keras's `fit`, `evaluate` or `predict`, compared with Keras itself."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.jax_process import said_with_jax
from support.keras_calls import X, Y, differences, model_that_records
from support.tiers import THOROUGH, thorough

from tpunb.cells.keras_calls import keras_call
from tpunb.compiler.program import CompileError

WITH_JAX = """
import keras
from support.keras_calls import differences

said = {"differences": differences(keras)}
"""


@pytest.fixture
def model() -> Any:
    return model_that_records(tf.keras, [])


@pytest.mark.parametrize("library", ["keras", *thorough(["tf_keras"])])
def test_keras_makes_the_same_batches(library: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert differences(importlib.import_module(library)) == {}


@THOROUGH
def test_keras_on_jax_makes_the_same_batches(tmp_path: Path) -> None:
    assert said_with_jax(WITH_JAX, tmp_path, keras=True)["differences"] == {}


def test_a_dataset_is_used_unchanged(model: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    call = keras_call(model.fit, (data,), {"epochs": 3})
    assert call is not None
    assert call.batch == (data,)


def test_class_weights_are_added_to_a_dataset(model: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16, drop_remainder=True)
    call = keras_call(model.fit, (data,), {"class_weight": {0: 2.0}})
    assert call is not None
    (weighted,) = call.batch
    assert weighted.element_spec[2] == tf.TensorSpec([16], tf.float32)


class Batches:
    """Data that can be read again and again, like a `keras.utils.PyDataset` or a loader."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.read += 1
        return X[:5], Y[:5]


class Loader:
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield X[:7], Y[:7]


def test_the_first_batch_of_rereadable_data(model: Any) -> None:
    batches = Batches()
    for data, rows in ((batches, 5), (Loader(), 7)):
        call = keras_call(model.fit, (data,), {"class_weight": {0: 2.0}})
        assert call is not None
        assert call.method.__name__ == "fit"
        assert [spec.shape.as_list() for spec in call.batch] == [[rows, 6], [rows], [rows]]
        predicted = keras_call(model.predict, (data,), {})
        assert predicted is not None
        assert [spec.shape.as_list() for spec in predicted.batch] == [[rows, 6]]
    assert batches.read == 2


def test_a_generator_keeps_its_batches(model: Any) -> None:
    batches = iter(Loader())
    with pytest.raises(CompileError, match=r"model\.train_on_batch\(\*next\(batches\)\)"):
        keras_call(model.fit, (batches,), {})
    assert len(list(batches)) == 1


def test_lists_of_numbers_are_refused(model: Any) -> None:
    with pytest.raises(CompileError, match="takes arrays, and not lists of numbers"):
        keras_call(model.fit, (X.tolist(), Y.tolist()), {})


def test_several_inputs_are_not_inputs_and_targets(model: Any) -> None:
    call = keras_call(model.predict, ([X, X],), {})
    assert call is not None
    ((inputs,),) = call.batch
    assert [spec.shape[0] for spec in inputs] == [32, 32]


def test_an_array_of_weights_applies_to_every_output(model: Any) -> None:
    call = keras_call(model.fit, (X, {"a": Y, "b": Y}), {"sample_weight": np.ones(96)})
    assert call is not None
    assert {name: spec.shape for name, spec in call.batch[2].items()} == {"a": [32], "b": [32]}


def test_a_note_on_larger_validation_batches(model: Any) -> None:
    named = {"validation_data": (X, Y), "validation_batch_size": 64}
    call = keras_call(model.fit, (X, Y), named)
    assert call is not None
    assert "model.evaluate(x, y, batch_size=64)" in call.notes[0]
    small = keras_call(model.fit, (X, Y), {**named, "validation_batch_size": 32})
    assert small is not None
    assert small.notes == ()


def test_a_note_on_a_model_that_runs_eagerly(model: Any) -> None:
    model.compile("sgd", "mse", run_eagerly=True)
    call = keras_call(model.fit, (X, Y), {})
    assert call is not None
    assert "run_eagerly=True" in call.notes[0]


def test_calling_a_model_predicts(model: Any) -> None:
    call = keras_call(model, (X[:5],), {"training": False})
    assert call is not None
    assert (call.method.__name__, call.batch[0].shape[0]) == ("predict", 5)
    with pytest.raises(CompileError, match="with its inputs alone"):
        keras_call(model, (X,), {"training": True})


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X, Y[:5]), {}, r"different numbers of examples: \(96, 6\), \(5,\)"),
        ((), {}, "model.fit is called without data"),
        ((X, Y), {"epoch": 3}, r"fit\(\) got an unexpected keyword argument 'epoch'"),
    ],
)
def test_wrong_calls(model: Any, args: Any, named: Any, message: str) -> None:
    with pytest.raises((CompileError, TypeError), match=message):
        keras_call(model.fit, args, named)


def test_a_custom_fit_is_refused(model: Any) -> None:
    class Own(type(model)):  # type: ignore[misc]
        def fit(self, data: Any) -> None:
            raise AssertionError

    own = Own(model.inputs, model.outputs)
    with pytest.raises(CompileError, match=r"Own\.fit is not Keras's own"):
        keras_call(own.fit, (X,), {})


def test_other_calls_are_not_keras_calls(model: Any) -> None:
    assert keras_call(np.sin, (X,), {}) is None
