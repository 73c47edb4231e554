"""Notebooks for Keras 2, written like public TPU tutorials of 2020 and 2021."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.notebooks import notebook, outputs
from support.tiers import THOROUGH, thorough

import tpunb
from tpunb import cli
from tpunb.errors import ConnectError
from tpunb.machine import keras_2

pytestmark = pytest.mark.tensorflow

TPU = """\
import numpy as np
import tensorflow as tf

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU ", tpu.cluster_spec().as_dict()["worker"])
except ValueError:
    raise BaseException("ERROR: Not connected to a TPU runtime")
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.experimental.TPUStrategy(tpu)
print("REPLICAS: ", strategy.num_replicas_in_sync)"""

FLOWERS = (
    TPU,
    """\
CLASSES = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
IMAGE_SIZE = [16, 16]
BATCH_SIZE = 4 * strategy.num_replicas_in_sync
EPOCHS = 2

def load_image(label):
    image = tf.random.stateless_uniform([*IMAGE_SIZE, 3], [label, 7])
    return image, tf.one_hot(label, len(CLASSES))

dataset = tf.data.Dataset.range(64).map(lambda n: load_image(tf.cast(n % 5, tf.int32)))
train = dataset.repeat().batch(BATCH_SIZE, drop_remainder=True).prefetch(-1)""",
    """\
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu",
                               input_shape=[*IMAGE_SIZE, 3]),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(CLASSES), activation="softmax"),
    ])
    model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])""",
    """\
rates = []

class LearningRates(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rates.append(float(tf.keras.backend.get_value(self.model.optimizer.lr)))

decay = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.5 ** epoch)
history = model.fit(train, steps_per_epoch=2, epochs=EPOCHS, verbose=0,
                    callbacks=[decay, LearningRates()])""",
    "np.round(rates, 4).tolist()",
)

BARD = (
    TPU,
    """\
txt = "To be, or not to be, that is the question. " * 8
VOCABULARY, EMBEDDING_DIM, SEQ_LEN, BATCH_SIZE = 256, 8, 10, 16

def input_fn():
    source = tf.constant([ord(c) for c in txt], dtype=tf.int32)
    ds = tf.data.Dataset.from_tensor_slices(source).batch(SEQ_LEN + 1, drop_remainder=True)
    ds = ds.map(lambda chunk: (chunk[:-1], chunk[1:]))
    return ds.repeat().batch(BATCH_SIZE, drop_remainder=True)""",
    """\
def lstm_model(seq_len=SEQ_LEN, batch_size=None, stateful=False):
    source = tf.keras.Input(name="seed", shape=(seq_len,), batch_size=batch_size, dtype=tf.int32)
    embedding = tf.keras.layers.Embedding(VOCABULARY, EMBEDDING_DIM)(source)
    lstm = tf.keras.layers.LSTM(16, stateful=stateful, return_sequences=True)(embedding)
    probabilities = tf.keras.layers.TimeDistributed(
        tf.keras.layers.Dense(VOCABULARY, activation="softmax"))(lstm)
    return tf.keras.Model(inputs=[source], outputs=[probabilities])

with strategy.scope():
    training_model = lstm_model()
    training_model.compile(
        optimizer=tf.keras.optimizers.RMSprop(learning_rate=0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"])
training_model.fit(input_fn(), steps_per_epoch=2, epochs=1, verbose=0);""",
    """\
prediction_model = lstm_model(seq_len=1, batch_size=2, stateful=True)
prediction_model.set_weights(training_model.get_weights())

prediction_model.reset_states()
last_word = np.array([[ord(c)] for c in "To"], dtype=np.int32)
predictions = [last_word]
for i in range(3):
    next_probits = prediction_model.predict(predictions[-1], verbose=0)[:, 0, :]
    predictions.append(next_probits.argmax(axis=-1, keepdims=True).astype(np.int32))""",
    "len(predictions)",
)

WEIGHTS = (
    TPU,
    """\
x_train = np.random.RandomState(0).rand(64, 28, 28).astype("float32")
y_train = np.arange(64) % 10

def create_model():
    return tf.keras.models.Sequential([
        tf.keras.layers.Flatten(input_shape=(28, 28)),
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(10),
    ])

with strategy.scope():
    model = create_model()
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-3),
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])
model.fit(x_train, y_train, batch_size=32, epochs=1, verbose=0);""",
    """\
model.save_weights("./mnist.h5", overwrite=True)

cpu_model = create_model()
cpu_model.load_weights("./mnist.h5")""",
    """\
difference = cpu_model.predict(x_train, verbose=0) - model.predict(x_train, verbose=0)
bool(np.abs(difference).max() < 1e-5)""",
)

NOTEBOOKS = {
    "flowers": (FLOWERS, "54", "`optimizer.learning_rate`", "[0.01, 0.005]"),
    "bard": (BARD, "51", "`layer.reset_state()`", "4"),
    "weights": (WEIGHTS, "53", '`model.save_weights("model.weights.h5")`', "True"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=THOROUGH) for name in ("bard", "flowers", "weights")]
)
def test_an_old_notebook(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook fails in Keras 3 with an error that has a fix, and runs unchanged in Keras 2."""
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    cells, code, spelling, result = NOTEBOOKS[name]
    source = notebook(tmp_path / "old.ipynb", *cells)
    command = ["run", str(source), "--tpu", "2"]

    assert cli.main(command) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert f"Known error {code}:" in error
    assert spelling in error
    assert "`tpunb run --keras 2`" in error

    assert cli.main([*command, "--keras", "2"]) == 0
    assert capsys.readouterr().out.startswith("tf.keras is Keras 2.\n")
    last = outputs(tmp_path / "old.executed.ipynb")[-1]
    assert last[0]["data"]["text/plain"] == result


CONNECT = """
import sys
import tpunb
from tpunb.errors import ConnectError

if "late" in sys.argv:
    import tensorflow
if "gone" in sys.argv:
    from importlib import metadata
    version = metadata.version
    def without(name):
        if name == "tf_keras":
            raise metadata.PackageNotFoundError(name)
        return version(name)
    metadata.version = without
try:
    connection = tpunb.connect(simulate=2, keras=2)
except ConnectError as error:
    print(error)
else:
    import tensorflow as tf
    print(connection.notes[-1], tf.keras.layers.Layer.__module__)
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("", ["tf.keras is Keras 2 (tf_keras 2.", "tf_keras.src."]),
        *thorough([("late", ["was imported with Keras 3 and", "Restart the kernel"])]),
        ("gone", ["which is not installed", 'pip install --no-deps "tf_keras==2.']),
    ],
)
def test_connecting(how: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    command = [sys.executable, "-c", CONNECT, how]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(text in process.stdout for text in expected), process.stdout


def test_a_keras_that_cannot_be_chosen() -> None:
    with pytest.raises(ConnectError, match="must be 2, not 4"):
        tpunb.connect(simulate=2, keras=4)


def test_another_release_of_tf_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_2, "tensorflow_version", lambda: "2.99.1")
    with pytest.raises(
        ConnectError, match=r"not made for TensorFlow 2\.99\.1\.\n.*tf_keras==2\.99\.\*"
    ):
        keras_2.require_keras_2()
