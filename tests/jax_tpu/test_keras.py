"""Keras on JAX: `keras.distribution` on eight virtual devices."""

from __future__ import annotations

from importlib import metadata

import pytest
from counterparts.children import run_code

# The folder tests/keras would do for an import.
INSTALLED = {distribution.name for distribution in metadata.distributions()}
pytestmark = pytest.mark.skipif("keras" not in INSTALLED, reason="Keras is not installed")

FIT = """
import sys
import numpy as np
if sys.argv[1] == "virtual":
    from tpunb import virtual
    virtual.install_when_imported("v5e-8", judge="off", required=True)
import keras
import jax
if sys.argv[1] != "virtual":
    jax.config.update("jax_num_cpu_devices", 8)
devices = keras.distribution.list_devices()
mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")
draw = np.random.default_rng(0)
x, y = draw.random((200, 16), "float32"), draw.random((200, 4), "float32")
for distribution in (
    keras.distribution.DataParallel(devices=devices),
    keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"),
):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.layers.Input((16,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(4),
    ])
    model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, validation_split=0.2)
    print(history.history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).sum())
    kernel = model.weights[0].value.sharding
    print(len(kernel.device_set), "devices", tuple(kernel.spec))
print({device.platform for device in jax.devices()}, "tensorflow" in sys.modules, file=sys.stderr)
"""


def test_fit_gives_the_numbers_of_plain_devices() -> None:
    """With `DataParallel` and with `ModelParallel`."""
    on_tpu, on_cpus = (run_code(FIT, where, KERAS_BACKEND="jax") for where in ("virtual", "plain"))
    assert on_tpu.stdout.count("\n8 devices") == 2, on_tpu.stderr
    assert on_tpu.stdout == on_cpus.stdout
    assert on_tpu.stderr.splitlines()[-1] == "{'tpu'} False"


LAYOUTS = """
import warnings
import numpy as np
import tpunb
from tpunb.errors import TpuWarning
connection = tpunb.connect(simulate="v5e-8", framework="jax", judge="off")
import keras
mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], keras.distribution.list_devices())

def said(*keys):
    layout = keras.distribution.LayoutMap(mesh)
    for key in keys:
        layout[key] = (None, "model")
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    layers = [keras.layers.Dense(128, name="d1"), keras.layers.Dense(8, name="d2")]
    model = keras.Sequential([keras.Input((64,)), *layers], name="net")
    model.compile("adam", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TpuWarning)
        model.fit(np.ones((64, 64)), np.ones((64, 8)), verbose=0, epochs=2)
        model.evaluate(np.ones((64, 64)), np.ones((64, 8)), verbose=0)
    print([str(each.message) for each in caught if each.category is TpuWarning])

said("decoder.*kernel")
said(".*d1.*kernel", ".*d3.*kernel")
said(".*d1.*kernel")
said("net/d1/kernel", ".*d2/kernel")
said(".*kernel")
keras.distribution.set_distribution(keras.distribution.DataParallel())
"""


def test_keys_of_a_layout_map_that_match_no_path() -> None:
    run = run_code(LAYOUTS, KERAS_BACKEND="jax")
    nothing, one, *right = run.stdout.splitlines()[-5:]
    assert "0 of 4 weights of net are sharded: `decoder.*kernel`" in nothing, run.stderr
    assert "net/d1/kernel, net/d1/bias" in nothing
    assert "1 of 4 weights of net are sharded: `.*d3.*kernel`" in one
    assert right == ["[]"] * 3


CURVES = """
import sys
import numpy as np
import tpunb
from tpunb import virtual
virtual.install("v5e-8", framework="jax", judge="off")
import keras
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(4)])
model.compile("sgd", "mse", metrics=["mae"])
x, y = np.ones((256, 16), "float32"), np.ones((256, 4), "float32")
curves = tpunb.LiveCurves()
fit = model.fit(x, y, batch_size=64, epochs=3, verbose=0, callbacks=[curves]).history
history = tpunb.history
# Four batches of the same size: the epoch's loss is their mean.
means = history.values("loss").reshape(3, 4).mean(axis=1)
np.testing.assert_allclose(means, fit["loss"], rtol=1e-4)
print(history.metrics, history.steps("loss").tolist(), "tensorflow" in sys.modules)
"""


def test_live_curves_record_every_step() -> None:
    run = run_code(CURVES, KERAS_BACKEND="jax", TPUNB_WIDGETS="never")
    expected = f"['loss', 'mae'] {list(range(1, 13))} False"
    assert run.stdout.splitlines()[-1:] == [expected], run.stderr


SEARCH = """
import jax, keras, numpy as np, tpunb

tpunb.connect(simulate="v5e-4", framework="jax", judge="off")

def made():
    layers = [keras.layers.Dense(size, name=name) for size, name in ((1024, "d1"), (512, "d2"))]
    model = keras.Sequential([keras.Input((512,)), *layers])
    model.compile("adam", "mse")
    return model

batch = jax.ShapeDtypeStruct((64, 512), "float32")
found = tpunb.search(made(), batch, batch, tpu="v5e-4", meshes=[(4,)], progress=lambda _: None)
print(found.best.results)
sharded = next(row for row in found.rows if row.name == "fully sharded")
exec(sharded.code)
model = made()
model.fit(np.ones((64, 512)), np.ones((64, 512)), verbose=0)
weights = {weight.path: weight.value for weight in model.weights}
moments = [v.value for v in model.optimizer.variables if "d1_kernel" in v.path]
for array in (weights["sequential_1/d1/kernel"], *moments, weights["sequential_1/d2/kernel"]):
    print(*array.sharding.shard_shape(array.shape))
print(sorted({row.mesh for row in found.rows}))
"""


def test_a_search_finds_the_layout_map_of_a_model(libtpu: None) -> None:
    run = run_code(SEARCH, KERAS_BACKEND="jax")
    said = run.stdout.splitlines()
    assert said[:-1] == [
        "its results equal those of your own layout",
        *["512 256"] * 3,
        "256 512",
    ], run.stderr
    assert said[-1] == "['data 4', 'model 4', 'none']"
