"""Keras models with the JAX backend, compiled for absent TPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.jax_process import said_with_jax
from support.tiers import THOROUGH

pytestmark = [pytest.mark.usefixtures("libtpu"), pytest.mark.slow]

MODEL = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, keras, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import pathlib, tempfile
import tpunb
from support.shell import Notebook

S = jax.ShapeDtypeStruct
BATCH = (S((1024, 16, 16, 3), "float32"), S((1024,), "int32"))


def made():
    model = keras.Sequential([
        keras.Input((16, 16, 3)),
        keras.layers.Conv2D(8, 3, name="first"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, name="last"),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=loss, metrics=["accuracy"])
    return model


def figures(program):
    memory = program.memory
    return [program.ok, program.replicas, memory.peak, memory.arguments, memory.outputs]


def own(model):
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    mesh = Mesh(np.array(devices), ("batch",))

    def spec(axes):
        return lambda one: S(one.shape, one.dtype, sharding=NamedSharding(mesh, P(*axes)))

    kinds = ("trainable", "non_trainable", "optimizer", "metrics")
    state = model._get_jax_state(**{f"{kind}_variables": True for kind in kinds})
    state = jax.tree.map(spec(()), state)
    kept = jax.tree.map(lambda one: one.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, kept))
    memory = step.lower(state, tuple(map(spec(("batch",)), BATCH))).compile().memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return [True, 8, memory.peak_memory_in_bytes, memory.argument_size_in_bytes, outputs]

"""

PROGRAM = """
model = made()
program = tpunb.compile(model, *BATCH, tpu="v5e-8")
said = {"ours": figures(program), "own": own(model)}
said["layers"] = sorted({one.layer for one in program.memory.largest if one.layer})
book = Notebook(pathlib.Path(tempfile.mkdtemp()))
book.good("%load_ext tpunb")
book.names.update(model=model, x=np.zeros((4096, 16, 16, 3)), y=np.zeros(4096, "int64"))
ran = book.good("%%tpu_compile --for v5e-8\\nmodel.fit(x, y, 1024, epochs=2, shuffle=False)").value
said["in a cell"] = [figures(ran), ran.examples, "set_distribution" in ran.notes[0]]
text = book.run("%%tpu_compile --for v5e-8\\nmodel.summary()").text
said["no step"] = text.strip().splitlines()[0]
"""

LARGEST_AND_DISTRIBUTED = """
model = made()
said = {"ours": figures(tpunb.compile(model, *BATCH, tpu="v5e-8"))}
found = tpunb.largest_batch(model, *BATCH, tpu="v5e-8", step=65536)
said["largest"] = [found.batch // 8 - found.per_replica, found.program.ok, found.program.examples]
for name, devices in (("distributed", None), ("on one device", keras.distribution.list_devices()[:1])):
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    said[name] = figures(tpunb.compile(made(), *BATCH, tpu="v5e-8"))
keras.distribution.set_distribution(keras.distribution.DataParallel())
try:
    tpunb.compile(made(), *BATCH, tpu="v5e-4")
except tpunb.TpunbError as error:
    said["other size"] = str(error)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compile a small model in a process with JAX, and return the results."""
    return said_with_jax(MODEL + PROGRAM, tmp_path_factory.mktemp("keras"), keras=True)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compile the model with other batches and with Keras's distributions."""
    program = MODEL + LARGEST_AND_DISTRIBUTED
    return said_with_jax(program, tmp_path_factory.mktemp("others"), keras=True)


def test_memory_equals_jaxs_analysis(said: dict[str, Any]) -> None:
    assert said["ours"] == said["own"]
    assert {"first", "last"} <= set(said["layers"])


def test_fit_in_a_cell_compiles_its_batch(said: dict[str, Any]) -> None:
    assert said["in a cell"] == [said["ours"], 1024, True]
    assert said["no step"] == "CompileError: A model's summary runs no step."


@THOROUGH
def test_a_data_distribution_has_the_same_program(variants: dict[str, Any]) -> None:
    assert variants["distributed"] == variants["ours"]
    assert variants["on one device"] == variants["ours"], "this machine has a single device"
    assert "8 devices, but a v5e-4 has 4 cores" in variants["other size"]
    assert "keras.distribution" in variants["other size"]


@THOROUGH
def test_the_largest_batch_is_global(variants: dict[str, Any]) -> None:
    rest, fits, _ = variants["largest"]
    assert rest == 0
    assert fits


def test_keras_that_scans_over_several_batches(tmp_path: Path) -> None:
    said = said_with_jax(
        """said = {}
import keras, numpy as np, tpunb
from keras.src.trainers.data_adapters import data_adapter_utils
model = keras.Sequential([keras.layers.Input((128,)), keras.layers.Dense(8)])
model.compile("sgd", "mse", steps_per_execution=4)
batch = np.zeros((64, 128), "float32"), np.zeros((64, 8), "float32")
said["before"] = tpunb.compile(model, *batch, tpu="v5e-8").notes
data_adapter_utils.super_batch_iterator = None  # as in keras-team/keras#23527
said["after"] = tpunb.compile(model, *batch, tpu="v5e-8").notes
""",
        tmp_path,
        keras=True,
    )
    assert said["before"] == []
    assert "keeps 4 batches" in said["after"][0]
    assert "add 12.75 KiB a core" in said["after"][0]


def test_a_layout_map_whose_keys_match_no_variable(tmp_path: Path) -> None:
    said = said_with_jax(
        """said = {}
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import keras, numpy as np, tpunb
places = keras.distribution
mesh = places.DeviceMesh((4, 2), ("batch", "model"), places.list_devices("cpu"))
layouts = places.LayoutMap(mesh)
layouts["dense.*kernel"] = (None, "model")
layouts["decoder/.*"] = ("model",)
places.set_distribution(places.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(8, name="dense")])
model.compile("sgd", "mse")
batch = np.zeros((64, 16), "float32"), np.zeros((64, 8), "float32")
said["notes"] = tpunb.compile(model, *batch, tpu="v5e-8").notes
""",
        tmp_path,
        keras=True,
    )
    (note,) = said["notes"]
    assert "0 of 2 weights of sequential are sharded: `dense.*kernel` and `decoder/.*`" in note
    assert "sequential/dense/kernel" in note
    assert "`.*dense.*kernel`" in note
