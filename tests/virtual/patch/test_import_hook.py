"""Install when TensorFlow is imported; a small package stands in for TensorFlow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS, run_code
from support.tiers import THOROUGH

from tpunb.errors import AcceleratorTypeError, TpuWarning
from tpunb.machine.watched_import import FirstImport
from tpunb.virtual import install_when_imported, installation, installer, uninstall

pytestmark = pytest.mark.tensorflow

NAME = "stands_for_tensorflow"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package that triggers the hook."""
    file = tmp_path / NAME / "__init__.py"
    file.parent.mkdir()
    file.write_text("value = 1\n")
    (file.parent / "part.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installer, "FRAMEWORKS", (NAME,))
    before = list(sys.meta_path)
    yield file
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def load() -> Any:
    importlib.invalidate_caches()
    return importlib.import_module(NAME)


def test_the_hook_runs_once_and_removes_itself(package: Path) -> None:
    arrived = []
    with FirstImport(lambda name: arrived.append(sys.modules[name].value), NAME):
        module = load()
        assert arrived == [1]
        assert not any(isinstance(f, FirstImport) for f in sys.meta_path)
        assert importlib.import_module(f"{NAME}.part").value == 2
        assert module.__spec__.loader.get_source(NAME) == "value = 1\n"
        assert "exec_module" not in vars(module.__loader__)
    assert arrived == [1]


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("too late")


def test_an_error_becomes_a_warning(package: Path) -> None:
    with (
        FirstImport(fail, NAME),
        pytest.warns(TpuWarning, match="does not have the virtual TPU: RuntimeError: too late"),
    ):
        assert load().value == 1


def test_a_required_hook_that_fails_fails_every_import(package: Path) -> None:
    with FirstImport(fail, NAME, required=True):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="too late"):
                load()
    assert load().value == 1


@pytest.mark.parametrize("broken", [True, False])
def test_import_errors_stay_the_same(package: Path, broken: bool) -> None:
    missing = "no_such_module_at_all"
    package.write_text(f"import {missing}\n")
    name = NAME if broken else missing
    with (
        FirstImport(fail, name, required=True) as hook,
        pytest.raises(ModuleNotFoundError, match=missing),
    ):
        importlib.import_module(name)
    assert hook.chosen is None


def test_a_failure_is_remembered_and_resets_the_environment(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delenv("COLAB_TPU_ADDR", raising=False)
    monkeypatch.setattr(installer, "_put", fail)
    install_when_imported("v3-8", environment=True)
    assert "COLAB_TPU_ADDR" in os.environ
    with pytest.warns(TpuWarning):
        load()
    assert "COLAB_TPU_ADDR" not in os.environ
    assert str(installation.failure()) == "too late"
    installation.set_failure(None)


def test_if_both_frameworks_are_installed_install_waits_for_the_first_import(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "imported_frameworks", set)
    monkeypatch.setattr(installer, "installed_frameworks", lambda: {NAME})
    put: list[str] = []
    monkeypatch.setattr(installer, "_put", lambda installation, framework: put.append(framework))
    installer.install("v3-8")
    assert not put
    load()
    assert put == [NAME]
    uninstall()


def test_a_framework_that_was_asked_for_is_installed_at_once(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    monkeypatch.setattr(installer, "_put", lambda installation, framework: put.append(framework))
    for framework in ("jax", "tensorflow"):
        monkeypatch.setattr(installer, "FRAMEWORKS", (framework,))
        installer.install("v3-8", framework=framework)
    assert put == ["jax", "tensorflow"]


def test_a_wrong_type_is_refused_at_once() -> None:
    before = list(sys.meta_path)
    with pytest.raises(AcceleratorTypeError, match="v3-8"):
        install_when_imported("v3-9")
    assert sys.meta_path == before


def test_uninstall_removes_the_hook(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    before = list(sys.meta_path)
    install_when_imported("v3-8")
    install_when_imported("v2-8")
    assert len(sys.meta_path) == len(before) + 1
    uninstall()
    assert sys.meta_path == before


NOTEBOOK = """
import sys
from tpunb.tensorflow.virtual import import_tensorflow
from tpunb.virtual import install_when_imported
install_when_imported("v3-8", environment=True)
assert "tensorflow" not in sys.modules
import os
tpu_address = "grpc://" + os.environ["COLAB_TPU_ADDR"]
import tensorflow as tf
import numpy as np
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu_address)
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
with strategy.scope():
    kernel = tf.Variable(tf.ones([3, 3, 3, 5]))
    bias = tf.Variable(tf.zeros([5]))

@tf.function
def step(batch):
    def replica(x):
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 2, "SAME"), bias))
            y = tf.nn.max_pool2d(y, 2, 2, "SAME") * tf.ones([5])
            loss = tf.reduce_sum(y)
        gradients = tape.gradient(loss, [kernel, bias])
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients)
    return strategy.run(replica, args=(batch,))

data = tf.data.Dataset.from_tensor_slices(tf.ones([11, 8, 8, 3])).batch(8)
sums = [strategy.experimental_local_results(g)[0].numpy()
        for batch in strategy.experimental_distribute_dataset(data) for g in step(batch)]
np.testing.assert_allclose(sums[0] / 8, sums[2] / 3, rtol=1e-5)
np.testing.assert_allclose(sums[1], [32.0] * 5)
np.testing.assert_allclose(sums[3], [12.0] * 5)
"""


@THOROUGH
def test_a_notebook_whose_replicas_run_out_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's kernels fail on empty batches. It is off in this process, so start another."""
    ran = run_code(
        WITHOUT_KERAS + NOTEBOOK,
        TF_ENABLE_ONEDNN_OPTS="1",
        PYTHONWARNINGS="error::tpunb.errors.TpuWarning",
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
