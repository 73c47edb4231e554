"""`%tpu_connect --patch`: TensorFlow's own names answer while the connection is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shell import Notebook

from tpunb.virtual.installation import current

pytestmark = pytest.mark.usefixtures("tf")

INIT = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
tf.distribute.TPUStrategy(resolver).num_replicas_in_sync
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for variable in ("TPUNB_TPU", "TPUNB_REQUIRE_TPU", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    with Notebook(tmp_path, "%load_ext tpunb") as notebook:
        yield notebook
    assert current() is None


def test_until_disconnected(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    assert book.good(INIT).value == 8
    assert "Already connected" in book.good("%tpu_connect --simulate v3-8 --patch").plain
    book.good("%tpu_disconnect")
    assert current() is None
    assert isinstance(book.run(INIT).error, ValueError)


def test_until_unloaded(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    book.good("%unload_ext tpunb")
    assert current() is None


def test_another_connection_takes_over(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    book.good("%tpu_connect --simulate 2 --patch")
    assert book.good(INIT).value == 2
    book.good("%tpu_connect --simulate 3")
    assert current() is None
