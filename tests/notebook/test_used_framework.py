"""The framework that a notebook is for, from its imports."""

from __future__ import annotations

import sys

import pytest

from tpunb.notebook.used_framework import framework_of

JAX, TENSORFLOW = "jax", "tensorflow"


@pytest.fixture(autouse=True)
def _without_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


@pytest.mark.parametrize(
    ("cells", "framework"),
    [
        (["import jax"], JAX),
        (["import numpy as np", "from jax import numpy as jnp"], JAX),
        (["import jax.numpy as jnp"], JAX),
        (["from flax import nnx"], JAX),
        (["import optax, equinox as eqx"], JAX),
        (["import tensorflow as tf"], TENSORFLOW),
        (["from tensorflow.keras import layers"], TENSORFLOW),
        (["def later():\n    import jax"], JAX),
        (["try:\n    import jax\nexcept ImportError:\n    pass"], JAX),
        (["%%time\nimport jax"], JAX),
        (["%%capture out\nimport tensorflow as tf"], TENSORFLOW),
        (["!pip install -q flax\n%matplotlib inline\nimport jax"], JAX),
        (["x = jax.numpy.ones(3"], None),
        (["%%bash\npython -c 'import jax'"], None),
        (["%%writefile a.py\nimport jax"], None),
        (["import numpy, keras"], None),
        (["from . import jax", "jax = 1"], None),
        ([], None),
    ],
)
def test_imports(cells: list[str], framework: str | None) -> None:
    assert framework_of(cells) == framework


@pytest.mark.parametrize(
    "setting",
    [
        "import os; os.environ['KERAS_BACKEND'] = '{}'",
        "os.environ.setdefault('KERAS_BACKEND', '{}')",
        "os.environ.update(KERAS_BACKEND='{}')",
        "os.environ.update({{'KERAS_BACKEND': '{}'}})",
        "os.putenv('KERAS_BACKEND', '{}')",
        "%env KERAS_BACKEND={}",
        "%env KERAS_BACKEND {}",
        "%set_env KERAS_BACKEND={}",
        "keras.config.set_backend('{}')",
    ],
)
@pytest.mark.parametrize("backend", [JAX, TENSORFLOW])
def test_the_backend_of_keras(setting: str, backend: str) -> None:
    assert framework_of([setting.format(backend), "import keras"]) == backend


def test_the_backend_decides_before_the_imports() -> None:
    cells = ["import os", "os.environ['KERAS_BACKEND'] = 'jax'", "import keras, tensorflow as tf"]
    assert framework_of(cells) == JAX
    assert framework_of(["%env KERAS_BACKEND=torch", "import keras, jax"]) == JAX


def test_the_environment_has_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert framework_of(["import keras"]) == JAX
    assert framework_of(["from keras import layers", "import tensorflow as tf"]) == JAX
    assert framework_of(["import tensorflow as tf"]) == TENSORFLOW


BOTH = "import tensorflow as tf\nimport jax"


@pytest.mark.parametrize(
    ("cell", "framework"),
    [
        ("tf.data.Dataset.range(4)", JAX),
        ("tf.distribute.TPUStrategy()", TENSORFLOW),
        ("from tensorflow.distribute import TPUStrategy", TENSORFLOW),
        ("tf.distribute.cluster_resolver.TPUClusterResolver('')", TENSORFLOW),
        ("tf.config.list_logical_devices('TPU')", TENSORFLOW),
        ("tf.config.list_physical_devices('GPU')", JAX),
        ("tf.config.set_visible_devices([], 'TPU')", JAX),
    ],
)
def test_a_notebook_with_both_is_for_jax_unless_it_uses_a_tpu_of_tensorflow(
    cell: str, framework: str
) -> None:
    assert framework_of([BOTH, cell]) == framework


def test_nothing_is_imported() -> None:
    before = {"jax", "tensorflow"} & set(sys.modules)
    framework_of([BOTH, "import keras"])
    assert {"jax", "tensorflow"} & set(sys.modules) == before
