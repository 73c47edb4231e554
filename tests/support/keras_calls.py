"""Calls of a Keras model's methods, and the batches that Keras passes to the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpunb.cells.keras_calls import keras_call

X, Y = np.zeros((96, 6)), np.zeros(96, "int64")  # float64 becomes Keras's own type
WEIGHTS = np.ones(96)

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "no batch size": ("fit", (X, Y), {}),
    "a batch size": ("fit", (X, Y), {"batch_size": 24}),
    "by position": ("fit", (X, Y, 48), {}),
    "data by name": ("fit", (), {"x": X, "y": Y, "batch_size": 16}),
    "fewer rows than a batch": ("fit", (X[:12], Y[:12]), {}),
    "a larger batch than the data": ("fit", (X, Y), {"batch_size": 1000}),
    "steps": ("fit", (X, Y), {"steps_per_epoch": 4}),
    "what does not matter": (
        "fit",
        (X, Y),
        {"epochs": 2, "shuffle": False, "callbacks": [], "initial_epoch": 1, "validation_freq": 1},
    ),
    "a part for validation": ("fit", (X, Y), {"validation_split": 0.75}),
    "data for validation": ("fit", (X, Y), {"validation_split": 0.75, "validation_data": (X, Y)}),
    "weights of examples": ("fit", (X, Y), {"sample_weight": WEIGHTS, "batch_size": 8}),
    "weights of classes": ("fit", (X, Y), {"class_weight": {0: 2.0}}),
    "integers": ("fit", (X.astype("uint8"), Y), {}),
    "half precision": ("fit", (X.astype("float16"), Y), {}),
    "evaluate": ("evaluate", (X, Y), {"batch_size": 48}),
    "evaluate with weights": ("evaluate", (X, Y), {"sample_weight": WEIGHTS}),
    "steps of evaluate": ("evaluate", (X, Y), {"steps": 3}),
    "predict": ("predict", (X,), {}),
    "predict with a batch size": ("predict", (X, 12), {}),
    "a batch that trains": ("train_on_batch", (X[:7], Y[:7]), {}),
    "a batch with weights": ("train_on_batch", (X[:7], Y[:7], WEIGHTS[:7]), {}),
    "a batch with classes": ("train_on_batch", (X[:7], Y[:7]), {"class_weight": {0: 2.0}}),
    "a batch that evaluates": ("test_on_batch", (X[:7], Y[:7]), {}),
    "a batch that predicts": ("predict_on_batch", (X[:7],), {}),
}


def model_that_records(keras: Any, seen: list[Any]) -> Any:
    """Return a compiled model that records the data of its steps when they are traced."""

    def recording(name: str) -> Any:
        def step(self: Any, *args: Any) -> Any:
            seen.append(args[-1])
            return getattr(keras.Model, name)(self, *args)

        return step

    names = ("train_step", "test_step", "predict_step")
    kind = type("Recording", (keras.Model,), {name: recording(name) for name in names})
    inputs = keras.Input((6,))
    model = kind(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss)
    return model


def shapes_of(data: Any) -> list[tuple[list[int | None], str]]:
    """Return the shapes and types in the data of a step."""
    parts = data if isinstance(data, (list, tuple)) else [data]
    return [
        (list(part.shape), np.dtype(getattr(part.dtype, "as_numpy_dtype", part.dtype)).name)
        for part in parts
        if part is not None
    ]


def differences(keras: Any) -> dict[str, Any]:
    """Return the calls for which our batch is none of Keras's, with both batches."""
    different = {}
    for name, (method, args, named) in CALLS.items():
        seen: list[Any] = []
        model = model_that_records(keras, seen)
        call = keras_call(getattr(model, method), args, named)
        assert call is not None
        getattr(model, method)(*args, **named, **({} if "batch" in method else {"verbose": 0}))
        ours = shapes_of(getattr(call.batch[0], "element_spec", call.batch))
        if ours not in [shapes_of(data) for data in seen]:
            different[name] = [ours, [shapes_of(data) for data in seen]]
    return different
