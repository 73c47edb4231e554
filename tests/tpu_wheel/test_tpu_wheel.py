"""The real tensorflow-tpu, with Colab's IPython and widgets, on a machine without a TPU.

`make test-tpu-wheel` runs these tests in a separate environment; elsewhere they are skipped.
"""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS, output_of, run_code

from tpunb.errors.explain import explain
from tpunb.machine.libtpu_releases import fatal_pair
from tpunb.machine.tested_releases import FOR_TPU

ROOT = Path(__file__).parents[2]
INSTALLED = {
    distribution.metadata["Name"].lower().replace("_", "-")
    for distribution in metadata.distributions()
}

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not INSTALLED & set(FOR_TPU), reason="tensorflow-tpu is not installed"),
]
PLAIN = ("TF_CPP_MIN_LOG_LEVEL", "TPU_LOAD_LIBRARY", "TPU_SKIP_MDS_QUERY", "TPUNB_TPU")
"""Variables that the tests set, and a user's process does not have."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLAIN:
        monkeypatch.delenv(name, raising=False)


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
import tpunb
report = tpunb.doctor()
assert report.ok, report
assert report.prospect.kind == "virtual"
assert report.next_step == "%tpu_connect --simulate v5e-8"
shell = InteractiveShell()
def run(cell):
    result = shell.run_cell(cell)
    result.raise_error()
    return result.result
run("%load_ext tpunb")
run("import tensorflow as tf")
kinds = run("{device.device_type for device in tf.config.list_physical_devices()}")
assert kinds == {"CPU"}, kinds
run("connection = %tpu_connect")
run("%%tpu_run\\ntotal = ctx.all_reduce('sum', tf.cast(replica_id, tf.float32))")
assert run("[float(part) for part in total.values]") == [28.0] * 8
assert run("connection.kind") == "virtual"
checked = run("%%tpu_check\\ntf.strings.format('{}', replica_id)")
assert "unsupported-op" in str(checked), checked  # it has no XLA for the CPU, and knows it
run("%unload_ext tpunb")
print("all is well")
"""


@pytest.mark.usefixtures("plain")
def test_a_virtual_tpu_starts_without_waiting_and_without_logs() -> None:
    assert output_of(CELLS).splitlines()[-1] == "all is well"


REFUSED = """
import tensorflow as tf
assert [device.device_type for device in tf.config.list_physical_devices()][1:] == ["TPU_SYSTEM"]
import tpunb
try:
    tpunb.connect("local")
except tpunb.TpunbError as error:
    print("refused:", error)
connection = tpunb.connect(simulate="v5e-1")
print("replicas:", connection.strategy.num_replicas_in_sync)
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.tpu.experimental.initialize_tpu_system(resolver)
"""


@pytest.mark.usefixtures("plain")
def test_the_system_device_is_not_a_tpu() -> None:
    process = run_code(
        REFUSED, TPU_LOAD_LIBRARY="1", TPU_SKIP_MDS_QUERY="1", TF_CPP_MIN_LOG_LEVEL="2"
    )
    assert process.returncode == 1, process.stderr
    assert re.search(r"refused: TensorFlow \S+ sees no TPU on this machine", process.stdout)
    assert "replicas: 1" in process.stdout
    assert "RET_CHECK failure" in process.stderr
    entry = explain(process.stderr)
    assert entry is not None
    assert entry.number == 3


SEARCH = """
from tpunb.machine.import_tensorflow import import_tensorflow
import_tensorflow()
import tensorflow as tf
assert [device.device_type for device in tf.config.list_physical_devices()] == ["CPU"]
"""


@pytest.mark.usefixtures("plain")
def test_tensorflow_looks_for_a_tpu_only_once() -> None:
    process = run_code(WITHOUT_KERAS + SEARCH, TF_CPP_MIN_LOG_LEVEL="0")
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("No TPU platform found") == 1
    assert "tries left" not in process.stderr


def test_a_test_that_imports_tensorflow_does_not_wait(tf: Any) -> None:
    """The pytest plugin alone prevents a wait of minutes for a metadata server."""
    assert os.environ["TPU_LOAD_LIBRARY"] == "0"
    assert {device.device_type for device in tf.config.list_physical_devices()} == {"CPU"}


def test_this_pair_is_in_the_table() -> None:
    assert (
        fatal_pair({name: metadata.version(name) for name in ("tensorflow-tpu", "libtpu")}) is None
    )
    pinned = dict(
        line.split("==")
        for line in (ROOT / "tests" / "colab.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    if os.environ.get("CI"):
        assert {name: metadata.version(name) for name in pinned} == pinned
